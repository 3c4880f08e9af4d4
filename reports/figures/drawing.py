"""Shared by all figures: colours, grids of panels with fixed margins, one legend, notes beside points, and printing as
SVG and PDF.

In every figure of a page the hue of a line is its method and the dash its noise: solid without noise, then the more
broken the smaller epsilon is. The marker is the run's own. A hollow marker, and a paler tint of the hue, are another
model or other records of the same run. Reference lines are black or grey. Colours are Okabe and Ito's without the
yellow, which paper does not show: safe for colour-blind readers.
"""

from __future__ import annotations

import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from pandas import DataFrame as Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
SYMBOLS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "◀", "▶", "⬟")  # MARKERS as letters
LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (3, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 2)), (0, (1, 1.5)))
TINTS = (0.0, 0.4, 0.65)  # share of white in the hue of a method's first model or records, and of others
_NOISE = re.compile(r"(?:ε |epsilon[ =])([0-9.e+-]+)")
INK, GREY, GRID = "#1c2733", "#8a94a0", "#e6e9ed"
# what turns over on dark screens: custom properties of style.html
ON_PAGE = {"#ffffff": "--page", INK: "--ink", "#000000": "--ink", GREY: "--axis", GRID: "--grid"}
WIDTH = 11.0  # inches; 1056 CSS pixels
RIGHT = 0.24  # inches at the right edge, for half of a number below it
_BESIDE = 0.3  # inches by which a title may be wider than its panel
_LETTER = 0.082  # inches of a title's letter, rather more than most

# inches: left, between columns, top (with one line of the legend and the title), bottom
Margins = tuple[float, float, float, float]
USUAL, LOW = (0.68, 0.68, 0.75, 0.52), (0.68, 0.68, 0.6, 0.52)  # for titles of two lines, and of one
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
    "axes.formatter.useoffset": False,  # its text would lie on a label
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
    fold_titles(plot[0])
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
    width = (WIDTH - left - RIGHT - (columns - 1) * gap) / columns
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    edges = {"left": left / WIDTH, "right": 1 - RIGHT / WIDTH, "top": 1 - top / total, "bottom": bottom / total}
    figure.subplots_adjust(**edges, wspace=gap / width, hspace=between / height)
    return figure, axes


def look_of(lines: Sequence[object], line: object, *, hollow: bool = False, tint: int = 0) -> dict[str, Any]:
    """Matplotlib properties of a line, one of `lines`, by its name: "METHOD", "METHOD, ε 0.4, rank 8", "METHOD
    epsilon=0.4" or the label METHOD:epsilon=0.4. The hue is the method's, in its `tint` (0: full), the dash that of the
    noise, the marker (`hollow` or filled) the line's own."""
    names = [str(one) for one in lines]
    name = str(line)
    levels = sorted({_noise_of(one) for one in [*names, "no noise"]}, reverse=True)
    colour = _tinted(_hue_of(names, name), TINTS[tint % len(TINTS)])
    look = {
        "color": colour,
        "marker": MARKERS[names.index(name) % len(MARKERS)],
        "linestyle": LINES[levels.index(_noise_of(name)) % len(LINES)],
    }
    return look | {"markerfacecolor": "white" if hollow else colour}


def _hue_of(names: Sequence[str], name: str) -> str:
    methods = list(dict.fromkeys(map(_method_of, names)))
    return COLOURS[methods.index(_method_of(name)) % len(COLOURS)]


def _method_of(name: str) -> str:
    """The method in the name of a line: what stands before its settings."""
    return re.split(r", | \w+=|:", name)[0]


def _noise_of(name: str) -> float:
    """The epsilon in the name of a line; infinity without noise."""
    epsilon = _NOISE.search(name)
    return float(epsilon[1]) if epsilon else math.inf


def _tinted(colour: str, white: float) -> str:
    """A colour (hex) with a share of white."""
    if not white:
        return colour
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def mark(names: Sequence[str], name: str) -> dict[str, str]:
    """Symbol and colour of a line for text, matching `look_of`."""
    return {"symbol": SYMBOLS[list(names).index(name) % len(SYMBOLS)], "colour": _hue_of(names, name)}


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


Note = tuple[str, float, float]  # a text, and the point that it is about, in data coordinates
_MARKER = 4  # pixels from a point's middle to its marker's edge
_NEAR = 20  # pixels; a note further from its point has a line to it
_STEPS = range(7, 240, 6)  # pixels from a point at which its note is tried
_AROUND = [
    math.radians(angle) for angle in (45, 135, -45, -135, 90, -90, 0, 180, 68, 112, -68, -112, 22, 158, -22, -158)
]
_LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5}


def place_notes(panel: Any, notes: Sequence[Note], size: float = 7.5) -> None:
    """Write notes beside their points, inside the panel and so that none lies on another, with a thin line to a point
    that is not near. Call it when all is drawn, as it needs the final axes. A note like one that stands close to its
    point already is left out, as is one for which there is no room."""
    panel.get_xlim(), panel.get_ylim()  # settles limits that are still open
    renderer = FigureCanvasAgg(panel.figure).get_renderer()
    inside, points_per_pixel = panel.get_window_extent(), 72 / panel.figure.dpi
    pixels = [panel.transData.transform((x, y)) for _, x, y in notes]
    markers = [Bbox.from_extents(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for x, y in pixels]
    placed: list[tuple[str, Any]] = []
    for (text, x, y), at in zip(notes, pixels, strict=True):
        note = panel.annotate(text, (x, y), (0, 0), textcoords="offset points", size=size, ha="center", va="center")
        extent = note.get_window_extent(renderer)
        free = (
            (box, step)
            for step in _STEPS
            for box in _boxes_around(at, step, extent.width / 2, extent.height / 2)
            if _is_free(box, inside, [*markers, *(other for _, other in placed)])
        )
        nearest = None if _said_near(text, at, placed) else next(free, None)
        if nearest is None:
            note.remove()
            continue
        box, step = nearest
        placed.append((text, box))
        offset = ((box.x0 + box.x1) / 2 - at[0]) * points_per_pixel, ((box.y0 + box.y1) / 2 - at[1]) * points_per_pixel
        note.set_position(offset)
        if step > _NEAR:
            panel.annotate("", (x, y), offset, textcoords="offset points", arrowprops=_LEADER)


def _boxes_around(at: Sequence[float], step: float, half_width: float, half_height: float) -> Iterator[Any]:
    """Yield boxes of a size, in pixels, whose edges lie `step` away from the point `at` in all directions."""
    for angle in _AROUND:
        x = at[0] + math.cos(angle) * (step + half_width)
        y = at[1] + math.sin(angle) * (step + half_height)
        yield Bbox.from_extents(x - half_width, y - half_height, x + half_width, y + half_height)


def _is_free(box: Any, inside: Any, others: Sequence[Any]) -> bool:
    within = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
    return within and not any(box.overlaps(other) for other in others)


def _said_near(text: str, at: Sequence[float], placed: Sequence[tuple[str, Any]]) -> bool:
    """Whether the same text stands within two lines of a point, in pixels, already."""
    return any(text == other and box.padded(2 * box.height).contains(*at) for other, box in placed)


def fold_titles(figure: Figure) -> None:
    """Wrap titles of panels that are wider than their panel; the figure grows, its panels keep their size."""
    titled = [panel for panel in figure.axes if panel.get_title(loc="left")]
    if not titled:
        return
    before = max(panel.get_title(loc="left").count("\n") for panel in titled)
    for panel in titled:
        letters = int((panel.get_position().width * WIDTH + _BESIDE) / _LETTER)
        wrap = functools.partial(textwrap.wrap, width=letters, break_on_hyphens=False, break_long_words=False)
        folded = [part for line in panel.get_title(loc="left").split("\n") for part in wrap(line) or [""]]
        panel.set_title("\n".join(folded), loc="left")
    after = max(panel.get_title(loc="left").count("\n") for panel in titled)
    if after > before:
        _spread(figure, 0.17 * (after - before), 0.17 * max(0, after - max(1, before)))


def _spread(figure: Figure, top: float, between: float) -> None:
    """Make a figure higher by `top` inches above its panels and by `between` over each further row of them."""
    old, edges = figure.get_figheight(), figure.subplotpars
    spec = figure.axes[0].get_gridspec()
    rows = spec.nrows if spec else 1
    height = (edges.top - edges.bottom) * old / (rows + (rows - 1) * edges.hspace)  # inches of a panel
    new = old + top + (rows - 1) * between
    figure.set_figheight(new)
    above, below = (1 - edges.top) * old + top, edges.bottom * old
    figure.subplots_adjust(top=1 - above / new, bottom=below / new, hspace=edges.hspace + between / height)


def name_rows(axes: Any, label: str) -> None:
    """Label the vertical axis of the first panel in every row."""
    for row in axes:
        row[0].set_ylabel(label)


def panels(axes: Any, row_names: Sequence[str], column_names: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    """Yield every panel of `grid` with the names of its row and column, row by row."""
    for row, row_name in zip(axes, row_names, strict=True):
        for panel, column_name in zip(row, column_names, strict=True):
            yield panel, row_name, column_name
