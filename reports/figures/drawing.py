"""What all figures share: colours, panels of fixed margins, one legend, and printing as SVG and PDF with the rows
behind a figure.

A method keeps its colour, marker and line style in every figure (colours of Okabe and Ito, safe for colour-blind
readers); nothing is told by colour alone.
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
SYMBOLS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "◀", "▶", "⬟")  # the markers, for text
LINES = ("-", "--", "-.", ":")
INK, GREY = "#1c2733", "#8a94a0"
WIDTH = 11.0  # inches; 1056 CSS pixels

Margins = tuple[
    float, float, float, float
]  # left, between columns, top (with the legend's line and the title), bottom; inches
USUAL, LOW = (0.62, 0.62, 0.75, 0.52), (0.62, 0.62, 0.6, 0.52)  # titles of two lines and of one
_FONT = "'DejaVu Sans', sans-serif"  # what matplotlib measures with; wider than what browsers put in its place
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedaudit",  # ids from the content, not from a clock
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar sign in a caption is a dollar sign
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # a fixed place: looking for one takes a tenth of the time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e6e9ed",
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
    """A printed figure: its name in the files, what it shows for readers who cannot see it, the rows behind it, and
    what stands below it."""

    name: str
    alt: str
    svg: bytes
    pdf: bytes
    data: Table
    caption: str = ""

    @property
    def inline(self) -> Markup:
        """The SVG as an element of a page: no prolog, no fixed size, no ids that another figure has."""
        text = self.svg.decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", text).replace("xlink:href", "href")
        view = re.findall(r'viewBox="[^"]*"', text)[0]
        root = f'<svg {view} role="img" aria-label="{escape(self.alt)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: root, text, count=1))


Plot = tuple[Figure, Table] | None  # None: the table holds no row that this figure shows
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # as `map`, maybe on several processes


@dataclass(frozen=True)
class Sketch:
    """A figure that is yet to be drawn: `plot` of what is `given`. It travels to another process."""

    name: str
    alt: str
    caption: str
    plot: Callable[..., Plot]
    given: tuple[Any, ...]


def draw(sketches: Iterable[Sketch], each: Each = map) -> dict[str, PrintedFigure]:
    """Figures by name; those without a row are left out. `each` may draw in parallel."""
    return {figure.name: figure for figure in each(_drawn, sketches) if figure is not None}


def _drawn(sketch: Sketch) -> PrintedFigure | None:
    with styled():
        return printed(sketch.name, sketch.alt, sketch.plot(*sketch.given), sketch.caption)


@contextmanager
def styled() -> Iterator[None]:
    """The same look whatever the user's matplotlib settings are."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # readers have fonts that this machine lacks
        yield


def printed(name: str, alt: str, plot: Plot, caption: str = "") -> PrintedFigure | None:
    """As SVG and PDF, without dates."""
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
    """A figure of page width with panels `height` inches high. Fixed margins (inches) are quick and repeatable."""
    left, gap, top, bottom = margins
    between = bottom + 0.46  # a panel's axis below and the next one's title, two lines
    total = top + rows * height + (rows - 1) * between + bottom
    width = (WIDTH - left - 0.12 - (columns - 1) * gap) / columns
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    edges = {"left": left / WIDTH, "right": 1 - 0.12 / WIDTH, "top": 1 - top / total, "bottom": bottom / total}
    figure.subplots_adjust(**edges, wspace=gap / width, hspace=between / height)
    return figure, axes


def look_of(methods: Sequence[str], method: str, *, hollow: bool = False) -> dict[str, Any]:
    """Colour, marker and line style of a method."""
    i = list(methods).index(method)
    colour = COLOURS[i % len(COLOURS)]
    look = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
    return look | {"markerfacecolor": "white" if hollow else colour}


def mark(i: int) -> dict[str, str]:
    """Symbol and colour of the i-th method in text, as `look_of` draws it."""
    return {"symbol": SYMBOLS[i % len(SYMBOLS)], "colour": COLOURS[i % len(COLOURS)]}


def legend(figure: Figure) -> None:
    """One legend for all panels, in lines above them; the figure grows where one line is too short."""
    pairs = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in figure.axes]
    unique = {label: handle for pair in pairs for handle, label in pair}
    start = figure.axes[0].get_position().x0
    widest = max(
        (0.062 * len(label) + 0.6 for label in unique), default=1
    )  # inches: letters, and the sample before them
    columns = min(len(unique) or 1, max(1, int((1 - start) * WIDTH / widest)))
    _grow(figure, 0.18 * (math.ceil(len(unique) / columns) - 1))
    corner = (start, 1 - 0.02 / figure.get_figheight())
    place = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0, "borderpad": 0}
    figure.legend(unique.values(), unique.keys(), ncols=columns, **place)


def _grow(figure: Figure, inches: float) -> None:
    """Make a figure higher at the top; its panels keep their size."""
    old, edges = figure.get_figheight(), figure.subplotpars
    figure.set_figheight(old + inches)
    figure.subplots_adjust(top=edges.top * old / (old + inches), bottom=edges.bottom * old / (old + inches))


def name_rows(axes: Any, label: str) -> None:
    for row in axes:
        row[0].set_ylabel(label)


def panels(axes: Any, down: Sequence[str], across: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    for row, a in zip(axes, down, strict=True):
        for panel, b in zip(row, across, strict=True):
            yield panel, a, b
