"""Communication: what was sent, beside what FedAvg sends with the same clients."""

from __future__ import annotations

from reports.figures.communication import cost_plot
from reports.figures.drawing import Sketch, draw
from reports.section import Page, Section

ORDER = 100
MANY = 6  # with more runs there is no figure


def section(page: Page) -> Section | None:
    """The section of bytes per client and round; None if messages were not counted."""
    rows = [{"name": v.title} | sent for v in page.runs if (sent := v.sent)]
    if not rows:
        return None
    caption = "Bytes in each round, all clients; the dash is what FedAvg sends with the same clients."
    figure = Sketch("cost", "Bytes sent by round, down and up", caption, cost_plot, (page.table("cost"), page.titles))
    drawn = draw([figure], page.each) if len(rows) <= MANY else {}
    figure_tables = {} if drawn else page.files("cost")  # a figure is written with its data
    return Section([("communication", "Communication")], {"communication": rows}, drawn, figure_tables=figure_tables)
