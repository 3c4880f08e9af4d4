"""Batches: how well the server's solution for the batches explains the messages, round by round."""

from __future__ import annotations

import pandas as pd

from fedaudit.reports.section import Page, Row, Section

ORDER = 85


def section(page: Page) -> Section | None:
    """Residuals and errors of the decomposition; None if no message was decomposed."""
    parts = page.parts("batches", by_round)
    return Section([("batches", "Batches")], {"batches": parts}, tables=page.files("batches")) if parts else None


def by_round(table: pd.DataFrame) -> list[Row]:
    """One row per round (from 1): medians over clients of residual, least and error, their number `clients`, and how
    many records were skipped."""
    grouped = table.groupby("round")
    rows = grouped[["residual", "least", "error"]].median()
    rows = rows.assign(clients=grouped.client.nunique(), skipped=grouped.skipped.sum()).reset_index()
    return rows.assign(round=rows["round"] + 1).to_dict("records")
