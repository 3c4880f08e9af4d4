"""Shared by all figures: colours, grids of panels with fixed margins, one legend, and printing as SVG and PDF.

A method keeps its colour, marker and line style in every figure. Colours are Okabe and Ito's, safe for colour-blind
readers, and markers and line styles tell methods apart without colour.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.figure import Figure
from pandas import DataFrame as Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
SYMBOLS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "◀", "▶", "⬟")  # MARKERS as letters
LINES = ("-", "--", "-.", ":")
INK, GREY, GRID = "#1c2733", "#8a94a0", "#e6e9ed"
# what turns over on dark screens: custom properties of style.html
ON_PAGE = {"#ffffff": "--page", INK: "--ink", "#000000": "--ink", GREY: "--axis", GRID: "--grid"}
WIDTH = 11.0  # inches; 1056 CSS pixels

# inches: left, between columns, top (with one line of the legend and the title), bottom
Margins = tuple[float, float, float, float]
USUAL, LOW = (0.62, 0.62, 0.75, 0.52), (0.62, 0.62, 0.6, 0.52)  # for titles of two lines, and of one
_FONT = "'DejaVu Sans', sans-serif"  # matplotlib measures text with it; wider than the fonts that browsers use
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedaudit",  # ids from the content, not from a clock
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar sign stays a dollar sign
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed: placing titles automatically takes a tenth of the time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, eq=False)
class PrintedFigure:
    """A figure as files."""

    name: str  # of its files
    alt: str  # description for readers who cannot see it
    svg: bytes
    pdf: bytes
    data: Table  # the rows that it shows
    caption: str = ""

    @property
    def inline(self) -> Markup:
        """The SVG as an HTML element: without prolog and fixed size, its ids prefixed with the figure's name, and
        background, text and axes in the page's own colours."""
        text = self.svg.decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", text).replace("xlink:href", "href")
        for colour, name in ON_PAGE.items():
            text = text.replace(f": {colour}", f": var({name})")
        view = re.findall(r'viewBox="[^"]*"', text)[0]
        root = f'<svg {view} role="img" aria-label="{escape(self.alt)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: root, text, count=1))


Plot = tuple[Figure, Table] | None  # a figure and its data; None if there is nothing to draw
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # works as `map`, maybe on several processes


@dataclass(frozen=True)
class Sketch:
    """A figure to be drawn by `plot(*arguments)`, maybe in another process: all fields can be pickled."""

    name: str
    alt: str
    caption: str
    plot: Callable[..., Plot]
    arguments: tuple[Any, ...]


def draw(sketches: Iterable[Sketch], each: Each = map) -> dict[str, PrintedFigure]:
    """Draw figures and return them by name; those with nothing to show are left out. `each` may draw in parallel."""
    return {figure.name: figure for figure in each(_draw_one, sketches) if figure is not None}


def _draw_one(sketch: Sketch) -> PrintedFigure | None:
    with styled():
        return printed(sketch.name, sketch.alt, sketch.plot(*sketch.arguments), sketch.caption)


@contextmanager
def styled() -> Iterator[None]:
    """Use, within a `with` statement, the style of the reports in place of the user's matplotlib settings."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # readers may have fonts that this machine lacks
        yield


def printed(name: str, alt: str, plot: Plot, caption: str = "") -> PrintedFigure | None:
    """Print a plot as SVG and PDF, without dates; None if the plot is None. Call within `styled()`."""
    if plot is None:
        return None
    svg, pdf = io.BytesIO(), io.BytesIO()
    about = {"Creator": None, "Title": alt}
    plot[0].savefig(svg, format="svg", metadata={**about, "Date": None, "Format": None, "Type": None})
    plot[0].savefig(pdf, format="pdf", metadata={**about, "CreationDate": None, "Producer": None})
    generic = svg.getvalue().replace(_FONT.encode(), b"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif")
    generic = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b"?", generic)  # XML has no such characters
    return PrintedFigure(name, alt, generic, pdf.getvalue(), plot[1], caption)


def grid(rows: int, columns: int, *, height: float, margins: Margins, **shared: Any) -> tuple[Figure, Any]:
    """A figure of page width with a rows × columns array of panels, each `height` inches high. `shared` goes to
    matplotlib's `subplots` (sharex, sharey). Margins are fixed, in inches: quick, and equal on every machine."""
    left, gap, top, bottom = margins
    between = bottom + 0.46  # a panel's axis, and the title of the one below, two lines
    total = top + rows * height + (rows - 1) * between + bottom
    width = (WIDTH - left - 0.12 - (columns - 1) * gap) / columns
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    edges = {"left": left / WIDTH, "right": 1 - 0.12 / WIDTH, "top": 1 - top / total, "bottom": bottom / total}
    figure.subplots_adjust(**edges, wspace=gap / width, hspace=between / height)
    return figure, axes


def look_of(methods: Sequence[object], method: object, *, hollow: bool = False) -> dict[str, Any]:
    """Matplotlib properties of a method, or of another line: colour, marker (`hollow` or filled) and line style, by its
    position in `methods`."""
    i = list(methods).index(method)
    colour = COLOURS[i % len(COLOURS)]
    look = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
    return look | {"markerfacecolor": "white" if hollow else colour}


def mark(i: int) -> dict[str, str]:
    """Symbol and colour of the i-th method for text, matching `look_of`."""
    return {"symbol": SYMBOLS[i % len(SYMBOLS)], "colour": COLOURS[i % len(COLOURS)]}


def legend(figure: Figure) -> None:
    """Add one legend for all panels above them; the figure grows by the lines that it needs beyond one."""
    pairs = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in figure.axes]
    unique = {label: handle for pair in pairs for handle, label in pair}
    start = figure.axes[0].get_position().x0
    widest = max((0.062 * len(label) + 0.6 for label in unique), default=1)  # inches: letters, and the line before them
    columns = min(len(unique) or 1, max(1, int((1 - start) * WIDTH / widest)))
    _grow(figure, 0.18 * (math.ceil(len(unique) / columns) - 1))
    corner = (start, 1 - 0.02 / figure.get_figheight())
    position = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0, "borderpad": 0}
    figure.legend(unique.values(), unique.keys(), ncols=columns, **position)


def _grow(figure: Figure, inches: float) -> None:
    """Make a figure higher at the top; its panels keep their size."""
    old, edges = figure.get_figheight(), figure.subplotpars
    figure.set_figheight(old + inches)
    figure.subplots_adjust(top=edges.top * old / (old + inches), bottom=edges.bottom * old / (old + inches))


def name_rows(axes: Any, label: str) -> None:
    """Label the vertical axis of the first panel in every row."""
    for row in axes:
        row[0].set_ylabel(label)


def panels(axes: Any, row_names: Sequence[str], column_names: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    """Yield every panel of `grid` with the names of its row and column, row by row."""
    for row, row_name in zip(axes, row_names, strict=True):
        for panel, column_name in zip(row, column_names, strict=True):
            yield panel, row_name, column_name
