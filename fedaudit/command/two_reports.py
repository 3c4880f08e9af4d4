"""`--compare A B`: a page of two reports beside each other, from their folders. Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.command import browser, exits
from fedaudit.command.argv import check
from fedaudit.command.flags import OUT, Parser, add_manner
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import index


@dataclass(frozen=True)
class TwoReports:
    """The folders of two reports, and the options of the command."""

    folders: Sequence[Path]
    out: Path
    quiet: bool
    open: bool
    words: Sequence[str]


def read(words: Sequence[str]) -> TwoReports | None:
    """The two reports that the command-line words ask for; None if they ask for anything else, or for help. InputError:
    a word does not fit."""
    if {"--help", "-h"} & {*words} or not any(word.partition("=")[0] == "--compare" for word in words):
        return None
    check(words)
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--compare", nargs="+")
    parser.add_argument("--out", default=OUT)
    add_manner(parser)
    options, unknown = parser.parse_known_args(words)
    if len(options.compare) != 2:
        named = ", ".join(options.compare)
        raise InputError(f"--compare {named}: takes the folders of two reports, as in --compare A B")
    if unknown:
        raise InputError(
            f"{unknown[0].partition('=')[0]}: has no place beside --compare, which reads two reports from disk; there "
            "are --out, --open and --quiet"
        )
    folders = [Path(os.path.expanduser(path)) for path in options.compare]
    return TwoReports(folders, Path(options.out), options.quiet, options.open, list(words))


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add --compare to the help of other commands, which never see it: it is read before them."""
    group = parser.add_argument_group("two reports")
    text = "the folders of two reports on disk, of one task: both on one page, with their differences; trains nothing"
    group.add_argument("--compare", nargs=2, metavar=("A", "B"), help=text)


def main(request: TwoReports) -> int:
    """Write the page, print the differences and its path, and return the exit code."""
    from fedaudit.pipeline import two_reports

    progress = Progress(quiet=request.quiet)
    page, sentences = two_reports.write(request.folders, request.out, request.words, progress)
    index.write(request.out, progress.say)
    for sentence in sentences:
        print(sentence)
    print(f"report: {page}")
    if request.open:
        browser.show(page)
    return exits.DONE
