"""All scores: every score against every kind of non-members, corrected for their number."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attacks.score_names import parts
from reports.section import Page, Row, Section
from reports.verdict_cards import PLACE, tint

ORDER = 90


def section(page: Page) -> Section | None:
    """Where something was attacked."""
    found = page.parts("cells", _blocks)
    return Section([("cells", "All scores")], {"cells": found}, tables=page.files("cells")) if found else None


def _blocks(cells: pd.DataFrame) -> list[Row]:
    """By comparison: a heat table per slice (rows: kind and order, columns: K), and a list of the signals without a
    K."""
    found: list[Row] = []
    for place, part in cells.groupby(list(PLACE), sort=False):
        grids: dict[str, dict[str, dict[int, Any]]] = {}
        single = []
        for row in part.to_dict("records"):
            cell = row | {"shade": tint(row["auroc"])}
            name, share, piece = parts(row["signal"])
            if share is None:
                single.append(cell)
            else:
                grids.setdefault(piece, {}).setdefault(name, {})[share] = cell
        tables = [(piece, sorted({k for row in rows.values() for k in row}), rows) for piece, rows in grids.items()]
        found.append({"place": place, "n": len(part), "grids": tables, "single": single})
    return found
