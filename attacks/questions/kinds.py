"""The kinds of records, by name."""

from attacks.questions.base import Questions
from attacks.questions.classes import ClassQuestions
from attacks.questions.texts import TextQuestions

KINDS: dict[str, Questions] = {"texts": TextQuestions(), "classes": ClassQuestions()}
