"""Communication: what was sent, beside what FedAvg sends with the same clients."""

from __future__ import annotations

from typing import Any

import pandas as pd

from reports.figures import membership as figures
from reports.inputs import joined
from reports.section import Page, Section

ORDER = 40
MANY = 6  # runs that are drawn beside each other


def section(page: Page) -> Section | None:
    """Where the messages of rounds were counted."""
    table = joined(page.first, "cost")
    if not len(table):
        return None
    methods = [e.method for e in page.first]
    drawn = {"cost": figures.cost(table, methods, each=page.each)} if len(methods) <= MANY else {}
    rows = [_row(method, table[table.method == method]) for method in methods if (table.method == method).any()]
    beside = {} if drawn else {"cost": table}  # a figure brings its own rows
    return Section([("communication", "Communication")], {"communication": rows}, drawn, beside=beside)


def _row(method: str, rounds: pd.DataFrame) -> dict[str, Any]:
    """Bytes of a client in a round, mean over all that took part, and the share of FedAvg's."""
    messages = int(rounds.messages.sum())
    down, up, whole = (int(rounds[name].sum()) for name in ("bytes_down", "bytes_up", "fedavg_bytes"))
    share = (down + up) / whole if whole else None
    return {"method": method, "down": down / messages, "up": up / messages, "share": share}
