"""Reads the texts of a drawn figure with their boxes, as a renderer places them."""

import itertools
from collections.abc import Iterator
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

TOUCHING = 1.0  # pixels, of 100 to an inch, by which boxes may reach into each other: their edges are blank


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Every text that is drawn, with its box in pixels: labels of ticks within the axes, titles, legends, notes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer: Any = canvas.get_renderer()
    hidden = set(_of_hidden_ticks(figure))
    drawn = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
    shown = (t for t in drawn if t.axes is None or t.axes.get_visible())
    return [(t.get_text(), t.get_window_extent(renderer)) for t in shown]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts whose boxes intersect, and (text, "edge") of those that the figure's edge cuts."""
    boxes = texts(figure)
    pairs = [(a[0], b[0]) for a, b in itertools.combinations(boxes, 2) if _meet(a[1], b[1])]
    width, height = figure.bbox.width, figure.bbox.height
    beyond = ((text, max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)) for text, box in boxes)
    return pairs + [(text, "edge") for text, by in beyond if by > TOUCHING]


def _meet(a: Any, b: Any) -> bool:
    across = min(a.x1, b.x1) - max(a.x0, b.x0)
    down = min(a.y1, b.y1) - max(a.y0, b.y0)
    return bool(across > TOUCHING and down > TOUCHING)


def _of_hidden_ticks(figure: Figure) -> Iterator[Text]:
    """Labels of ticks that lie outside of their axes or are switched off, which matplotlib keeps and does not draw."""
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            shown = axis._update_ticks() if panel.axison else []  # type: ignore[attr-defined]
            for tick in (*axis.majorTicks, *axis.minorTicks):
                for label in (tick.label1, tick.label2):
                    if tick not in shown or not label.get_visible():
                        yield label
            if not panel.axison:
                yield from (axis.label, axis.offsetText)
