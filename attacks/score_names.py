"""What readers call a score: "lira/online" is "LiRA, online" in tables and figures, and "LiRA (online)" in sentences.

Both stand in the file that makes the score, which is read and not imported: an attack's `Facts.signals`, or `SIGNALS`
of a file below attacks/ that is none.
Parts of a score's name may be open: "mink/{k}/{slice}" is every score of that form, and its words hold the same parts.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from attacks.facts import ATTACKS
from fedaudit.machinery import plugins


class ScoreName(NamedTuple):
    """What readers call a score, and the K of one that looks at K percent of the tokens."""

    in_tables: str
    in_sentences: str
    percent: int | None = None


@functools.cache
def name_of(signal: str) -> ScoreName:
    """The declared name of a score, its open parts filled in; of one that no file declares, its parts."""
    for pattern, (in_tables, in_sentences) in _declared():
        if match := pattern.fullmatch(signal):
            parts = match.groupdict()
            percent = int(parts["k"]) if "k" in parts else None
            return ScoreName(in_tables.format(**parts), in_sentences.format(**parts), percent)
    return ScoreName(signal.replace("/", ", "), signal)


def signal_name(signal: str) -> str:
    """A score's name in tables and figures: "renyi/2/10/caption" is "MaxRényi, order 2, K 10 %, caption"."""
    return name_of(signal).in_tables


def parts(signal: str) -> tuple[str, int | None, str]:
    """A name in tables in three: "MaxRényi, order 2", the K of 10 percent (or None), and the last part, "caption"."""
    name, *piece = signal_name(signal).rsplit(", ", 1)
    percent = name_of(signal).percent
    return name.removesuffix(f", K {percent} %"), percent, "".join(piece)


@functools.cache
def _declared() -> list[tuple[re.Pattern[str], tuple[str, str]]]:
    """Every declared score, as a pattern of its name, with its names in tables and in sentences."""
    others = (plugins.literal(path, "SIGNALS") or () for path in plugins.package_folder("attacks").rglob("*.py"))
    return [
        (re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(signal))), (in_tables, in_sentences))
        for signals in (*(plugin.facts.signals for plugin in ATTACKS.values()), *others)
        for signal, in_tables, in_sentences in signals
    ]
