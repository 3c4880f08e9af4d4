"""Communication: what was sent, beside what FedAvg sends with the same clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaudit.reports.figures.communication import cost_plot
from fedaudit.reports.figures.drawing import Sketch, draw
from fedaudit.reports.section import Page, Section

if TYPE_CHECKING:
    import pandas as pd

ORDER = 100
MANY = 6  # with more runs there is no figure


def section(page: Page) -> Section | None:
    """The section of bytes per client and round; None if messages were not counted."""
    rows = [{"name": v.title} | sent | {"even": _is_even(v.table("cost"))} for v in page.runs if (sent := v.sent)]
    if not rows:
        return None
    caption = "Bytes in each round, all clients; the dash is what FedAvg sends with the same clients."
    figure = Sketch("cost", "Bytes sent by round, down and up", caption, cost_plot, (page.table("cost"), page.titles))
    drawn = draw([figure], page.each) if len(rows) <= MANY else {}
    figure_tables = {} if drawn else page.files("cost")  # a figure is written with its data
    return Section([("communication", "Communication")], {"communication": rows}, drawn, figure_tables=figure_tables)


def _is_even(cost: pd.DataFrame) -> bool:
    """Whether a message is as long in every round, down and up."""
    return all((cost[name] / cost.messages).nunique() == 1 for name in ("bytes_down", "bytes_up"))
