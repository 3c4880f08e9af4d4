"""Revealed: what a server decoded of clients that compute on secret shares, what they sent, and what is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedaudit.reports.section import Page, Row, Section

ORDER = 72
ROUNDS = 12  # rounds that the page shows, evenly spaced; the files have all
TABLES = ("revealed", "class_scatter", "sent", "located", "distance_information", "colluding")


def section(page: Page) -> Section | None:
    """The section of decoded numbers, traffic and attacks on them; None unless clients computed on secret shares."""
    names = [part["name"] for part in page.parts("revealed", len)]
    if not names:
        return None
    rows = {table: {part["name"]: part["shown"] for part in page.parts(table, _some_rows)} for table in TABLES}
    parts = [{"name": name} | {table: by_run.get(name, []) for table, by_run in rows.items()} for name in names]
    for part in parts:
        part["traffic"] = _traffic(part.pop("sent"))
    links = [("revealed", "What was revealed")]
    return Section(links, {"revealed": parts}, tables=page.files(*TABLES))


def _some_rows(table: pd.DataFrame) -> list[Row]:
    """The table's rows, with rounds counted from 1. A table with one row per round is thinned to `ROUNDS` of them."""
    if "round" not in table:
        return table.to_dict("records")
    counted = table.assign(round=table["round"] + 1)
    if "client" not in table:
        counted = counted.iloc[
            np.unique(np.linspace(0, len(counted) - 1, min(ROUNDS, len(counted))).round().astype(int))
        ]
    return counted.to_dict("records")


def _traffic(rows: list[Row]) -> list[dict[str, Any]]:
    """Bytes that a client sent in a round, a row per kind of message (in words): `mean` and largest (`most`) over
    rounds and clients."""
    table = pd.DataFrame(rows)
    kinds = {"shares": "shares, to the other clients", "masks": "masks of distances, to the other clients",
             "answers": "answers, to the server"}  # fmt: skip
    return [{"kind": words, "mean": table[kind].mean(), "most": table[kind].max()} for kind, words in kinds.items()]
