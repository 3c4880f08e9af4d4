"""`--audit curves --out FOLDER` without a training: compares the runs on disk. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.audits.facts import AUDITS
from fedaudit.command.argv import check
from fedaudit.command.flags import DEFAULT_PRESET, Parser, add_choices, add_fields, add_place, params_from_options
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TRAINING = ("method", "task", "attack", "run", "paper", "config")  # any of these asks for a training or an attack


@dataclass(frozen=True)
class ComparisonRequest:
    """Which audits to run over all runs on disk under `out`."""

    across: Mapping[str, DataclassInstance]  # parameters, by audit
    out: Path
    quiet: bool
    open: bool
    dry_run: bool
    words: Sequence[str]  # of the command


def read(words: Sequence[str]) -> ComparisonRequest | None:
    """The comparison of runs on disk that the command-line words ask for; None if they ask for anything else, such as a
    training or help. InputError: a word does not fit."""
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
    options, unknown = parser.parse_known_args(others)
    if unknown:
        flag = unknown[0].partition("=")[0]
        raise InputError(
            f"{flag}: has no place beside --audit {chosen.audit} without --method, which compares the runs on disk; "
            "name a --method to train, or leave it out"
        )
    across = {name: params_from_options(AUDITS[name].params, options) for name in dict.fromkeys(names)}
    return ComparisonRequest(across, Path(options.out), options.quiet, options.open, options.dry_run, list(words))
