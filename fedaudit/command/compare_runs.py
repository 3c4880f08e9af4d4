"""`--audit curves --out FOLDER` alone: audits that compare runs, over those that are on disk. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from audits.facts import AUDITS
from fedaudit.command.argv import check
from fedaudit.command.flags import DEFAULT_PRESET, Parser, add_choices, add_fields, add_place, make
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TRAINING = ("method", "task", "attack", "run", "paper", "config")  # choices that say what is trained or attacked


@dataclass(frozen=True)
class Asked:
    """Which audits compare the runs under a folder."""

    across: Mapping[str, DataclassInstance]  # parameters by name
    out: Path
    quiet: bool
    dry_run: bool


def read(words: Sequence[str]) -> Asked | None:
    """What the words ask for; None where they ask for a training, or for help. InputError: a word that has no place."""
    if {"--help", "-h"} & {*words}:
        return None
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, others = first.parse_known_args(words)
    names = [word.strip() for word in (chosen.audit or "").split(",")]
    if any(getattr(chosen, name) for name in TRAINING) or chosen.preset != DEFAULT_PRESET:
        return None
    if not all(name in AUDITS and AUDITS[name].facts.across for name in names):
        return None
    check(words)
    parser = Parser(add_help=False, allow_abbrev=False)
    add_place(parser)
    for name in names:
        add_fields(parser, f"audit {name}", AUDITS[name].params)
    options, left = parser.parse_known_args(others)
    if left:
        flag = left[0].partition("=")[0]
        raise InputError(
            f"{flag}: has no place beside --audit {chosen.audit} without --method, which compares the runs on disk; "
            "name a --method to train, or leave it out"
        )
    across = {name: make(AUDITS[name].params, options) for name in dict.fromkeys(names)}
    return Asked(across, Path(options.out), options.quiet, options.dry_run)
