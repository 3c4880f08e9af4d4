"""The index of tables and figures of papers that were asked for together: what each shows, how far ours agrees."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from reports.rows import as_rows
from reports.section import Row
from reports.templates import csv, render


def rendered(asked: str, title: str, names: Sequence[str], rows: Sequence[Row]) -> dict[str, bytes]:
    """The index as page and CSV by the endings of their names. `names` are what the page calls the rows. A row: item,
    shows, agreement, seconds, page (relative; empty where there is none), why there is none."""
    table = pd.DataFrame(rows)
    shown = [row | {"name": name} for name, row in zip(names, as_rows(table), strict=True)]
    parts = {"title": title, "asked": asked, "rows": shown, "seconds": table.seconds.sum()}
    return {"csv": csv(table), "html": render("papers/index.html", parts)}
