"""Readable names of scores: "lira/online" is "LiRA, online" in tables and figures, and "LiRA (online)" in sentences.

The file that makes a score declares both, and is read without being imported: an attack in `Facts.signals`, another
file below attacks/ in `SIGNALS`. A declared name may have fields in braces: "mink/{k}/{slice}" declares every score of
that form, and its readable names have the same fields.
"""

import functools
import re
from typing import NamedTuple

from fedaudit.attacks.facts import ATTACKS
from fedaudit.machinery import places, plugins


class ScoreName(NamedTuple):
    """Readable names of a score; `percent` is the K of a score over K percent of the tokens, else None."""

    in_tables: str
    in_sentences: str
    percent: int | None = None


@functools.cache
def name_of(signal: str) -> ScoreName:
    """The readable names of a score, its fields (order, K, part) filled in; derived from the score's own name if no
    file declares it."""
    for pattern, (in_tables, in_sentences) in _declared():
        if match := pattern.fullmatch(signal):
            parts = match.groupdict()
            percent = int(parts["k"]) if "k" in parts else None
            return ScoreName(in_tables.format(**parts), in_sentences.format(**parts), percent)
    return ScoreName(signal.replace("/", ", "), signal)


def signal_name(signal: str) -> str:
    """The name of a score in tables: "MaxRényi, order 2, K 10 %, caption" for "renyi/2/10/caption"."""
    return name_of(signal).in_tables


def parts(signal: str) -> tuple[str, int | None, str]:
    """A score's name in tables, split in three: ("MaxRényi, order 2", 10, "caption") for "renyi/2/10/caption". The
    percentage is None, and the last part "", where the name has none."""
    name, *piece = signal_name(signal).rsplit(", ", 1)
    percent = name_of(signal).percent
    return name.removesuffix(f", K {percent} %"), percent, "".join(piece)


@functools.cache
def _declared() -> list[tuple[re.Pattern[str], tuple[str, str]]]:
    """All scores that attacks declare: a pattern for the score's name with a group per {field}, and (name in tables,
    name in sentences), as format strings of these fields."""
    others = (
        plugins.literal(path, "SIGNALS") or () for path in plugins.package_folder("fedaudit.attacks").rglob("*.py")
    )
    return [
        (re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(signal))), (in_tables, in_sentences))
        for signals in (*(plugin.facts.signals for plugin in ATTACKS.values()), *others)
        for signal, in_tables, in_sentences in signals
    ]


places.on_change(_declared.cache_clear)
