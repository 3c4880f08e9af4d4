"""Probes: what a server reads that acts, and what its clients could notice."""

from __future__ import annotations

import pandas as pd

from fedaudit.reports.section import Page, Row, Section

ORDER = 84


def section(page: Page) -> Section | None:
    """How many records each probe named; None if no attack sent one."""
    parts = page.parts("probes", by_attack)
    return (
        Section([("probes", "A server that acts")], {"probes": parts}, tables=page.files("probes")) if parts else None
    )


def by_attack(table: pd.DataFrame) -> list[Row]:
    """One row per attack and round (from 1): means over the clients that answered, and their numbers."""
    grouped = table.groupby(["attack", "round"])
    rows = grouped[["batch", "named", "chance", "growth", "honest_growth", "answer", "refused_honest"]].mean()
    rows = rows.assign(asked=grouped.client.nunique(), answered=grouped.named.count()).reset_index()
    return rows.assign(round=rows["round"] + 1).to_dict("records")
