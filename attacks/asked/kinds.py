"""The kinds of records, by name."""

from __future__ import annotations

from attacks.asked.base import Askable
from attacks.asked.classes import AskedClasses
from attacks.asked.texts import AskedTexts

KINDS: dict[str, Askable] = {"texts": AskedTexts(), "classes": AskedClasses()}
