"""`--nightly matrix.yaml`: runs a matrix of audits, computes only what changed, and compares the results with earlier
nights and with gates.

Exit code 1: a gate is crossed; otherwise 4: a cell failed, or no report answers a gate. Imports nothing heavy.
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

from fedaudit.command import browser, exits
from fedaudit.command.argv import check, given_fields
from fedaudit.command.flags import Parser, add_place, add_places_of_work, dests
from fedaudit.command.gates import Gate
from fedaudit.command.matrix import Matrix, MatrixCell
from fedaudit.command.matrix import read as read_matrix
from fedaudit.command.window import tell
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import index
from fedaudit.pipeline.kept_rounds import thin
from fedaudit.pipeline.nights import Nights
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    from fedaudit.reports.nightly import CellOfNight

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # variable with the path of a file that a CI job shows on its page

Read = Callable[[Sequence[str]], Plan]  # turns the words of a cell into its plan


@dataclass(frozen=True)
class NightlyRequest:
    """A matrix to run, and the options of the command."""

    matrix: Matrix
    out: Path
    quiet: bool
    dry_run: bool
    debug: bool
    open: bool


def read(words: Sequence[str], plan: Read) -> NightlyRequest | None:
    """The night that --nightly asks for, its file read; None if the words have no --nightly. `plan` turns a cell's
    words into its plan. InputError: a word does not go with --nightly, or the file is wrong."""
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--nightly")
    chosen, _ = first.parse_known_args(words)
    if not chosen.nightly:
        return None
    parser = Parser(
        prog="audit.py",
        usage="audit.py --nightly matrix.yaml [options]",
        description=(
            "Run a matrix of audits, of which only what changed is computed; say which gates are crossed, and what "
            "changed beyond noise."
        ),
        epilog=(
            "The file holds base, matrix, exclude and fail_if (docs/reference/nightly.md). Exit code 1: a gate is "
            "crossed; 4: a cell failed, or no report answers a gate."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--nightly", metavar="FILE", help="the matrix")
    add_place(parser)
    add_places_of_work(parser)
    check(words)
    options, others = parser.parse_known_args(words)
    if others:
        flag = others[0].partition("=")[0]
        raise InputError(
            f"{flag}: has no place beside --nightly, whose file says what is run; write it into base or matrix"
        )
    flags = {"threads" if name == "workers" else name for name in given_fields(words)}
    of_cells = ["threads", "plugins", *sorted(dests(add_places_of_work))]
    ours = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in of_cells if name in flags]
    ours.append(f"--out={options.out}")
    set_here = given_fields(ours)
    matrix = read_matrix(
        Path(options.nightly), lambda cell: plan([*(w for w in cell if not given_fields([w]) & set_here), *ours])
    )
    return NightlyRequest(matrix, Path(options.out), options.quiet, options.dry_run, options.debug, options.open)


def main(request: NightlyRequest) -> int:
    """Run all cells, print and write the results, and return the exit code: `CROSSED` if a gate is crossed, else
    `FAILED` if a cell failed or a gate has no answer, else `DONE`. With --dry-run only print estimates."""
    progress = Progress(quiet=request.quiet)
    if request.dry_run:
        for part in _estimates(request.matrix, progress):
            tell(part)
        return exits.DONE
    from fedaudit.pipeline.nights import write_pages
    from fedaudit.reports.nightly import FAILED, gate_rows

    started = datetime.datetime.now(datetime.UTC)
    cells = []
    for i, cell in enumerate(request.matrix.cells):
        progress.say(f"cell {i + 1} of {len(request.matrix.cells)}: {cell.name}")
        cells.append(_run(cell, request, progress))
    for cell, result in zip(request.matrix.cells, cells, strict=True):  # after the last one: cells may share trainings
        if result.status != FAILED:
            thin(cell.plan.cells, cell.plan.keep_rounds, progress.say)
    nights = Nights(request.out, request.matrix.name)
    night, rows = nights.add(cells, started, progress.say)
    in_short, events = write_pages(nights, night, cells, rows, progress)
    index.write(request.out, progress.say)
    gates = gate_rows(cells)
    tell(f"night {night}: {in_short}")
    for line in events:
        tell(line)
    _to_step_summary(nights.path / "summary.md")
    print(f"page: {nights.path / 'index.html'}")
    if request.open:
        browser.show(nights.path / "index.html")
    crossed = [f"crossed: {gate['gate']}: {said}" for gate in gates for _, said in gate["crossed"]]
    failed = [f"failed: {cell.name}: {cell.why}" for cell in cells if cell.status == FAILED]
    failed += [f"unanswered: {gate['gate']}: no cell's report answers it" for gate in gates if gate["silent"]]
    for line in crossed + failed:
        tell(line, sys.stderr)
    return exits.CROSSED if crossed else exits.FAILED if failed else exits.DONE


def _run(cell: MatrixCell, request: NightlyRequest, progress: Progress) -> CellOfNight:
    """Run a cell, and return what came of it; an error is caught and becomes its `why`, except after a signal to
    stop."""
    from fedaudit.pipeline.run import run
    from fedaudit.reports.nightly import COMPUTED, FAILED, REUSED, CellOfNight

    started = time.monotonic()
    try:
        outcome = run(dataclasses.replace(cell.plan), progress)  # a copy, so that what it loads can be freed
        answers = _answers(cell.gates, outcome.findings)
    except Exception as error:  # the other cells are run whatever happens
        if exits.is_stopping():
            raise
        why = exits.explain(error, request.debug)
        return CellOfNight(cell.name, cell.seedless, FAILED, time.monotonic() - started, why)
    status = REUSED if outcome.reused == ["report"] else COMPUTED
    report = outcome.report.parent.relative_to(request.out).as_posix()
    return CellOfNight(cell.name, cell.seedless, status, time.monotonic() - started, report=report, **answers)


def _answers(gates: Sequence[Gate], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{"held": gates that nothing crosses, "crossed": {gate: sentences}, "silent": gates without an answer}."""
    crossed: dict[str, list[str]] = {}
    silent = []
    for gate in gates:
        try:
            crossed[gate.text] = gate.crossed(findings)
        except InputError:
            silent.append(gate.text)
    return {
        "held": tuple(gate for gate, sentences in crossed.items() if not sentences),
        "crossed": {gate: sentences for gate, sentences in crossed.items() if sentences},
        "silent": tuple(silent),
    }


def _to_step_summary(summary: Path) -> None:
    """Append the summary to the file whose path is in the environment variable STEP_SUMMARY, if it is set. InputError:
    it cannot be written."""
    if not (path := os.environ.get(STEP_SUMMARY)):
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(summary.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{STEP_SUMMARY} {path}: cannot be written ({error.strerror or error})") from error


def _estimates(matrix: Matrix, progress: Progress) -> Iterator[str]:
    """Yield a line on the matrix, then a text per cell: on disk, or what it would take. Trainings that cost the same
    are timed once."""
    from fedaudit.command.dry_run import estimate
    from fedaudit.pipeline.finished import sound

    timings: dict[Hashable, Any] = {}
    yield f"{len(matrix.cells)} cells, gates: {'; '.join(gate.text for gate in matrix.gates) or 'none'}"
    for cell in matrix.cells:
        on_disk = sound(cell.plan)
        yield f"\n{cell.name}: {'on disk, nothing to compute' if on_disk else estimate(cell.plan, progress, timings)}"
