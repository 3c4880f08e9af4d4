"""The kinds of records, by name."""

from fedaudit.attacks.questions.base import Questions
from fedaudit.attacks.questions.classes import ClassQuestions
from fedaudit.attacks.questions.texts import TextQuestions

KINDS: dict[str, Questions] = {"texts": TextQuestions(), "classes": ClassQuestions()}
