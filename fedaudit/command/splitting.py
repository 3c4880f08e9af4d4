"""`--split CANDIDATES --out FOLDER`: flips the coins of a training that is done elsewhere. Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.command.argv import check, number, whole
from fedaudit.command.choices import canaries_class
from fedaudit.command.flags import Parser, add_manner, params_from_values
from fedaudit.command.window import tell
from fedaudit.external.coins import REFERENCE_SHARE
from fedaudit.machinery.errors import InputError

_HELP = (
    "JSON lines of records: flips a fair coin for each and writes who is a member into the folder --out; with "
    "--reference-share, --canaries and --canary-kind (docs/guides/coins.md)"
)


@dataclass(frozen=True)
class SplitRequest:
    """The records to deal, and how."""

    candidates: Path
    out: Path
    reference_share: float
    canaries: int
    canary_kind: str
    linked: bool


def read(words: Sequence[str]) -> SplitRequest | None:
    """The split that the command-line words ask for; None if they ask for anything else, or for help. InputError: a
    word does not fit."""
    if {"--help", "-h"} & {*words} or not any(word.partition("=")[0] == "--split" for word in words):
        return None
    check(words)
    parser = Parser(add_help=False, allow_abbrev=False)
    add_split(parser)
    parser.add_argument("--out")
    add_manner(parser)
    parser.add_argument("--linked-files", action=argparse.BooleanOptionalAction, default=False)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        raise InputError(
            f"{unknown[0].partition('=')[0]}: has no place beside --split, which deals records; there are --out, "
            "--reference-share, --canaries, --canary-kind and --linked-files"
        )
    if options.out is None:
        raise InputError(f"--split {options.split}: needs --out, the folder that the lists are written to")
    canaries = {name: getattr(options, name) for name in ("canaries", "canary_kind")}
    params = params_from_values(canaries_class(), {n: v for n, v in canaries.items() if v is not None})
    if not 0 <= options.reference_share <= 0.9:
        raise InputError(f"--reference-share {options.reference_share:g}: must lie between 0 and 0.9")
    candidates, out = (Path(os.path.expanduser(path)) for path in (options.split, options.out))
    return SplitRequest(
        candidates, out, options.reference_share, params.canaries, params.canary_kind, options.linked_files
    )


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a split, without those that other commands have too."""
    group = parser.add_argument_group("coins before a training elsewhere")
    group.add_argument(
        "--split", metavar="CANDIDATES",
        help=_HELP,
    )  # fmt: skip
    group.add_argument(
        "--reference-share", type=number, default=REFERENCE_SHARE, metavar="SHARE",
        help=f"share of the records that no coin is flipped for, for thresholds (default: {REFERENCE_SHARE})",
    )  # fmt: skip
    group.add_argument("--canaries", type=whole, metavar="N", help="candidates that become canaries (default: 0)")
    group.add_argument("--canary-kind", metavar="KIND", help="mislabelled (default), ood or natural")


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add --split to the help of other commands, which never see it: it is read before them."""
    group = parser.add_argument_group("coins before a training elsewhere")
    group.add_argument("--split", metavar="CANDIDATES", help=_HELP)


def main(request: SplitRequest) -> int:
    """Deal the records, print what was done, and return the exit code 0."""
    from fedaudit.audits.statistics import one_run
    from fedaudit.audits.statistics.guesses import number_of_guesses
    from fedaudit.audits.subject import DELTA
    from fedaudit.external.records import CANDIDATES
    from fedaudit.external.split import split

    done = split(
        request.candidates, request.out, reference_share=request.reference_share, canaries=request.canaries,
        canary_kind=request.canary_kind, linked=request.linked,
    )  # fmt: skip
    for sentence in done.sentences:
        tell(sentence)
    guessed = done.canaries or sum(done.counts[name] for name in CANDIDATES)
    most = one_run.ceiling(number_of_guesses(guessed), canaries=guessed, delta=DELTA)
    what = "canaries" if done.canaries else "candidates"
    tell(
        f"measured epsilon: guesses are about the {guessed} {what}; if every one were right, it would be {most:.2f} "
        f"(delta {DELTA:g})"
    )
    return 0
