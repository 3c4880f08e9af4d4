"""The index of tables and figures of papers that were asked for together: what each shows, how far ours agrees."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from reports.rows import as_rows
from reports.section import Row
from reports.templates import csv, render

TITLES = {"dpfpl": "DP-FPL", "fedrand": "FedRand", "secfpp": "SecFPP", "dp2fl": "DP²FL", "all": "Four papers"}


def rendered(asked: str, rows: Sequence[Row]) -> dict[str, bytes]:
    """The index as page and CSV by the endings of their names. A row: item, shows, agreement, seconds, page (relative;
    empty where there is none), why there is none."""
    table = pd.DataFrame(rows)
    shown = as_rows(table)
    for row in shown:
        row["name"] = f"{TITLES[row['item'].partition(':')[0]]}, {_words(row['item'].partition(':')[2])}"
    parts = {"title": TITLES[asked], "asked": asked, "rows": shown, "seconds": table.seconds.sum()}
    return {"csv": csv(table), "html": render("papers/index.html", parts)}


def _words(item: str) -> str:
    """table2 as Table 2."""
    kind = item.rstrip("0123456789")
    return f"{kind.capitalize()} {item.removeprefix(kind)}"
