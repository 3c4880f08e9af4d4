"""Steps that papers' tables and figures share: check the evidence, read printed numbers, draw and write a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedaudit.reports.beside_dpfpl import DROWNED
from fedaudit.reports.evidence import Evidence, check
from fedaudit.reports.figures.drawing import Plot, PrintedFigure, Sketch, draw
from fedaudit.reports.printed_table import Row, printed
from fedaudit.reports.rows import MethodRow, variants
from fedaudit.reports.templates import Write, write_drawings

EvidenceByTask = Mapping[str, Sequence[Evidence]]  # by column or panel of the item; one per method, setting and seed
PrintedCells = dict[str, dict[Row, str]]  # numbers as a paper prints them, by column and row
PrintedRow = Mapping[str, str]  # a row of a file of printed numbers, by its columns


def checked_tasks(evidence: EvidenceByTask, item: str) -> Iterator[tuple[str, Sequence[Evidence]]]:
    """Yield each task with its evidence, checked by `reports.evidence.check`. ValueError: the evidence is invalid, or
    there is no task; `item` ("table" or "figure") is for its message."""
    if not evidence:
        raise ValueError(f"evidence is empty; the {item} needs at least one task")
    for task, runs in evidence.items():
        check(runs)
        yield task, runs


def only_task(evidence: EvidenceByTask) -> tuple[str, Sequence[Evidence]]:
    """The task of a figure that draws one, with its evidence. ValueError: as `checked_tasks`, or there are several."""
    (task, runs), *more = checked_tasks(evidence, "figure")
    if more:
        raise ValueError(f"evidence has the tasks {', '.join(evidence)}; the figure draws one")
    return task, runs


def variants_by_task(evidence: EvidenceByTask) -> dict[str, list[MethodRow]]:
    """By task its methods, one row per setting of a method, with all seeds. ValueError: evidence is invalid."""
    for runs in evidence.values():
        check(runs)
    return {task: variants(runs) for task, runs in evidence.items()}


def drowned_note(rows: Sequence[MethodRow]) -> list[str]:
    """The sentence `DROWNED` if any method's noise exceeds ten times its signal; else an empty list."""
    return [DROWNED] if any((v.ratio or 0) > 10 for v in rows) else []


def printed_cells(
    table: pd.DataFrame, column: Callable[[PrintedRow], str], row: Callable[[PrintedRow], Row], value: str = "value"
) -> PrintedCells:
    """Printed numbers arranged as a table, {column: {row: number}}. `table` has a line per number, with the number in
    its column `value`; `column` and `row` compute from such a line where the number stands."""
    cells: PrintedCells = {}
    for line in table.to_dict("records"):
        cells.setdefault(column(line), {})[row(line)] = line[value]
    return cells


def means_and_spreads(
    name: str, column: Callable[[PrintedRow], str], row: Callable[[PrintedRow], Row]
) -> tuple[PrintedCells, PrintedCells]:
    """The columns mean and std of the file NAME.csv, each arranged as in `printed_cells`."""
    table = printed(name)
    return printed_cells(table, column, row, "mean"), printed_cells(table, column, row, "std")


def write_figure(name: str, alt: str, write: Write, plot: Callable[..., Plot], *arguments: Any) -> PrintedFigure:
    """Draw `plot(*arguments)`, which must not be None, and write NAME.svg, NAME.pdf and its data as NAME.csv through
    `write(name, bytes)`. `alt` describes the figure for readers who cannot see it."""
    figure = draw([Sketch(name, alt, "", plot, arguments)])[name]
    write_drawings([figure], write, folder="")
    return figure
