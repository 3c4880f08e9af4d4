"""`--nightly matrix.yaml`: a matrix of audits, of which only what changed is computed, held against earlier nights and
against limits.

Exit codes: 1 where a limit is crossed, else 4 where a cell failed or a limit had no answer. Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.command import exits
from fedaudit.command.argv import check
from fedaudit.command.flags import Parser, add_place
from fedaudit.command.gates import Gate
from fedaudit.command.matrix import Matrix, MatrixCell
from fedaudit.command.matrix import read as read_matrix
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.nights import Nights
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    from reports.nightly import CellOfNight

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # the file that a CI job shows on its page

Read = Callable[[Sequence[str]], Plan]


@dataclass(frozen=True)
class AskedMatrix:
    """A matrix, and what to do with it."""

    matrix: Matrix
    out: Path
    quiet: bool
    dry_run: bool
    debug: bool


def read(words: Sequence[str], plan: Read) -> AskedMatrix | None:
    """What the words ask for; None where they ask for no matrix. InputError: a word that has no place beside it, or
    what is wrong in the file; nothing has run then."""
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--nightly")
    chosen, _ = first.parse_known_args(words)
    if not chosen.nightly:
        return None
    parser = Parser(
        prog="audit.py",
        usage="audit.py --nightly matrix.yaml [options]",
        description=(
            "Run a matrix of audits, of which only what changed is computed; say which limits are crossed, and what "
            "changed beyond noise."
        ),
        epilog=(
            "The file holds base, matrix, exclude and limits (docs/nightly.md). Exit code 1: a limit is crossed; 4: a "
            "cell failed, or no report answers a limit."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--nightly", metavar="FILE", help="the matrix")
    add_place(parser)
    check(words)
    options, others = parser.parse_known_args(words)
    if others:
        flag = others[0].partition("=")[0]
        raise InputError(
            f"{flag}: has no place beside --nightly, whose file says what is run; write it into base or matrix"
        )
    matrix = read_matrix(Path(options.nightly), lambda own: plan([*own, f"--out={options.out}"]))
    return AskedMatrix(matrix, Path(options.out), options.quiet, options.dry_run, options.debug)


def main(asked: AskedMatrix) -> int:
    """Run a night, or say what would run; the exit code."""
    progress = Progress(quiet=asked.quiet)
    if asked.dry_run:
        for part in _estimated(asked.matrix, progress):
            print(part, flush=True)
        return exits.DONE
    from fedaudit.pipeline.nights import write_pages
    from reports.nightly import FAILED, limit_rows, sentence

    started = datetime.datetime.now(datetime.UTC)
    cells = []
    for i, cell in enumerate(asked.matrix.cells):
        progress.say(f"cell {i + 1} of {len(asked.matrix.cells)}: {cell.name}")
        cells.append(_run(cell, asked, progress))
    nights = Nights(asked.out, asked.matrix.name)
    night, rows = nights.add(cells, started, progress.say)
    written = write_pages(nights, night, cells, rows, progress)
    limits = limit_rows(cells)
    print(f"night {night}: {sentence(cells, len(written.changes), limits, first=night == 1)}")
    for line in (*written.changes, *written.shown):
        print(line)
    _to_step_summary(written.summary)
    print(f"page: {written.page}")
    crossed = [f"crossed: {limit['limit']}: {said}" for limit in limits for _, said in limit["crossed"]]
    failed = [f"failed: {one.name}: {one.why}" for one in cells if one.status == FAILED]
    failed += [f"unanswered: {limit['limit']}: no cell's report answers it" for limit in limits if limit["silent"]]
    for line in crossed + failed:
        print(line, file=sys.stderr)
    return exits.CROSSED if crossed else exits.FAILED if failed else exits.DONE


def _run(cell: MatrixCell, asked: AskedMatrix, progress: Progress) -> CellOfNight:
    """Run a cell, or say why it failed; the others go on."""
    from fedaudit.pipeline.run import run
    from reports.nightly import COMPUTED, FAILED, REUSED, CellOfNight

    started = time.monotonic()
    try:
        outcome = run(dataclasses.replace(cell.plan), progress)  # what it loads goes with it
        answers = _answers(cell.limits, outcome.findings)
    except Exception as error:  # whatever it is, the other cells are still wanted
        if exits.stopping():
            raise
        why = exits.explained(error, asked.debug)
        return CellOfNight(cell.name, cell.seedless, FAILED, time.monotonic() - started, why)
    status = REUSED if outcome.reused == ["report"] else COMPUTED
    report = outcome.report.parent.relative_to(asked.out).as_posix()
    return CellOfNight(cell.name, cell.seedless, status, time.monotonic() - started, report=report, **answers)


def _answers(limits: Sequence[Gate], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The limits that findings hold, those that they cross with a sentence each, and those that they do not answer."""
    crossed: dict[str, list[str]] = {}
    silent = []
    for gate in limits:
        try:
            crossed[gate.text] = gate.crossed(findings)
        except InputError:
            silent.append(gate.text)
    held = tuple(limit for limit, said in crossed.items() if not said)
    return {"held": held, "crossed": {n: said for n, said in crossed.items() if said}, "silent": tuple(silent)}


def _to_step_summary(summary: Path) -> None:
    """Add the summary to the file that a CI job names for it. InputError: it cannot be written."""
    if not (place := os.environ.get(STEP_SUMMARY)):
        return
    try:
        with open(place, "a", encoding="utf-8") as file:
            file.write(summary.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{STEP_SUMMARY} {place}: cannot be written ({error.strerror or error})") from error


def _estimated(matrix: Matrix, progress: Progress) -> Iterator[str]:
    """Which cells are on disk, and what the others would take, one after the other; what costs the same is timed
    once."""
    from fedaudit.command.dry_run import estimate
    from fedaudit.pipeline.finished import sound

    known: dict[Hashable, Any] = {}
    yield f"{len(matrix.cells)} cells, limits: {'; '.join(gate.text for gate in matrix.limits) or 'none'}"
    for cell in matrix.cells:
        there = sound(cell.plan)
        yield f"\n{cell.name}: {'on disk, nothing to compute' if there else estimate(cell.plan, progress, known)}"
