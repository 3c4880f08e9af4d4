"""The index page of several reproduced tables and figures of papers: what each shows, and how far ours agrees."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedaudit.reports.archive import attach
from fedaudit.reports.rows import as_rows
from fedaudit.reports.section import Row
from fedaudit.reports.templates import csv, render


def render_files(asked: str, title: str, names: Sequence[str], rows: Sequence[Row]) -> dict[str, bytes]:
    """The index as {"csv": bytes, "html": bytes}.

    `asked` is the command's argument, quoted on the page; `names` are the page's names for the rows. A row has item,
    shows, agreement, seconds, page (relative; empty where there is none) and why (the reason that there is none).
    """
    table = pd.DataFrame(rows)
    named = [row | {"name": name} for name, row in zip(names, as_rows(table), strict=True)]
    parts = {"title": title, "asked": asked, "rows": named, "seconds": table.seconds.sum()}
    numbers = csv(table)
    return {"csv": numbers, "html": attach({f"{asked}.csv": numbers}, render("papers/index.html", parts))}
