"""Costs at equal utility: bytes and rounds until a setting is as good as the others, seconds by phase and memory."""

from __future__ import annotations

from typing import Any

from fedaudit.reports.figures.communication import until_plot
from fedaudit.reports.figures.drawing import Sketch, draw
from fedaudit.reports.rows import as_rows
from fedaudit.reports.section import Page, Section

ORDER = 101
CAPTION = (
    "Utility after every round against the bytes of all clients until then, mean over seeds; the line is the utility "
    "at which settings are compared."
)


def section(page: Page) -> Section | None:
    """The section of costs of settings at equal utility; None if the audit `cost` was not run."""
    audit = page.across.get("cost")
    if audit is None:
        return None
    table, by_round = audit.tables["costs"], audit.tables["cost_by_round"]
    phases = [name for name in table if str(name).startswith("seconds_")]
    order = [f"seconds_{name}" for name in ("clients", "server", "utility")]
    phases.sort(key=lambda name: order.index(name) if name in order else len(order))
    context: dict[str, Any] = {
        "cost": {
            "rows": as_rows(table),
            "sentences": list(audit.sentences),
            "phases": [(name, name.removeprefix("seconds_").replace("_", " ")) for name in phases],
            "worlds": table.world.nunique() > 1,
        }
    }
    sketch = Sketch("cost-until", "Utility against bytes sent", CAPTION, until_plot, (by_round, table))
    drawn = draw([sketch], page.each)
    return Section([("cost", "Costs at equal utility")], context, drawn, tables={"costs": table})
