"""Figures that nobody looks at: printing them, as SVG and PDF, is half of a tiny run. They are plotted all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from fedaudit.machinery.store import Folder
    from fedaudit.reports.evidence import Evidence
    from fedaudit.reports.figures.drawing import Plot, PrintedFigure


def unprinted(name: str, alt: str, plot: Plot, caption: str = "") -> PrintedFigure | None:
    """A figure with the table behind it, and nothing to be seen."""
    from fedaudit.reports.figures.drawing import PrintedFigure

    return plot and PrintedFigure(name, alt, b'<svg viewBox="0 0 1 1"></svg>', b"%PDF", plot[1], caption)


@contextmanager
def nothing_printed(but: bool = False) -> Iterator[None]:
    """Within it no figure is printed, `but` where somebody looks at it."""
    with contextlib.nullcontext() if but else mock.patch("fedaudit.reports.figures.drawing.printed", unprinted):
        yield


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Within it pages have no figures, which take most of the time of a page."""
    with mock.patch("fedaudit.reports.figures.drawing._draw_one", _undrawn):
        yield


@contextmanager
def with_pages() -> Iterator[None]:
    """Within it reports have their pages, also where `no_pages` holds around it."""
    from fedaudit.pipeline import page

    with mock.patch("fedaudit.pipeline.compute.write_page", page.write_page):
        yield


@contextmanager
def no_pages() -> Iterator[None]:
    """Within it the report of an audit is its findings and runs, with the verdicts that a page has; nothing is drawn."""
    with mock.patch("fedaudit.pipeline.compute.write_page", _write_rows):
        yield


def _undrawn(_: object) -> None:
    """In the place of what draws one figure."""


def _write_rows(evidence: Sequence[Evidence], folder: Folder, *_: object, **__: object) -> None:
    from fedaudit.reports.corrected_verdicts import with_verdicts
    from fedaudit.reports.report import rows_as_json
    from fedaudit.reports.runs import runs

    judged = with_verdicts(evidence)
    folder.write("findings.json", rows_as_json([finding for e in judged for finding in e.findings]))
    folder.write("runs.json", rows_as_json(runs(judged)))
