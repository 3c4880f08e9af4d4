"""`--paper secfpp:figure2`: a paper's figure that is computed from nothing that was trained. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.command.flags import DEFAULT_PRESET, Parser, add_choices, add_place
from fedaudit.command.words import check
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import papers


@dataclass(frozen=True)
class Computed:
    """Which figure, and where its page goes."""

    figure: str
    out: Path
    quiet: bool
    dry_run: bool


def read(words: Sequence[str]) -> Computed | None:
    """What the words ask for; None where they ask for a training. InputError: a word that has no place."""
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, others = first.parse_known_args(words)
    known = papers.figures().get(chosen.paper or "")
    if known is None or known.preset is not None:
        return None
    check(words)
    named = [name for name in ("method", "attack", "audit", "task", "run", "config") if getattr(chosen, name)]
    named += ["preset"] if chosen.preset != DEFAULT_PRESET else []
    parser = Parser(
        prog="audit.py",
        usage=f"audit.py --paper {chosen.paper} [options]",
        description=known.summary,
        allow_abbrev=False,
    )
    add_place(parser)
    options, left = parser.parse_known_args(others)
    if flags := [f"--{name}" for name in named] + [word.partition("=")[0] for word in left]:
        raise InputError(f"{flags[0]}: has no place beside --paper {chosen.paper}, which trains nothing; leave it out")
    return Computed(chosen.paper, Path(options.out), options.quiet, options.dry_run)
