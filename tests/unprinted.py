"""Figures that nobody looks at: printing them, as SVG and PDF, is half of a tiny run. They are plotted all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.reports.figures.drawing import Plot, PrintedFigure


def unprinted(name: str, alt: str, plot: Plot, caption: str = "") -> PrintedFigure | None:
    """A figure with the table behind it, and nothing to be seen."""
    from fedaudit.reports.figures.drawing import PrintedFigure

    return plot and PrintedFigure(name, alt, b'<svg viewBox="0 0 1 1"></svg>', b"%PDF", plot[1], caption)


@contextmanager
def nothing_printed(but: bool = False) -> Iterator[None]:
    """Within it no figure is printed, `but` where somebody looks at it."""
    from fedaudit.reports.figures import drawing

    whole = drawing.printed
    drawing.printed = whole if but else unprinted
    try:
        yield
    finally:
        drawing.printed = whole
