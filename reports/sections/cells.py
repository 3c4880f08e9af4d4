"""All scores: every score against every kind of non-members, corrected for their number."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedaudit.attacks.score_names import parts as signal_parts
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.verdict_cards import COMPARISON, tint

ORDER = 90


def section(page: Page) -> Section | None:
    """AUROCs of all scores as heat tables; None if nothing was attacked."""
    parts = page.parts("cells", _blocks)
    return Section([("cells", "All scores")], {"cells": parts}, tables=page.files("cells")) if parts else None


def _blocks(cells: pd.DataFrame) -> list[Row]:
    """A block per comparison (`place`), with `n` scores: `grids`, a heat table per part of the text (a row per kind and
    order of entropy, a column per K), and `single`, the signals without K."""
    blocks: list[Row] = []
    for place, part in cells.groupby(list(COMPARISON), sort=False):
        grids: dict[str, dict[str, dict[int, Any]]] = {}
        single = []
        for row in part.to_dict("records"):
            cell = row | {"shade": tint(row["auroc"])}
            name, share, piece = signal_parts(row["signal"])
            if share is None:
                single.append(cell)
            else:
                grids.setdefault(piece, {}).setdefault(name, {})[share] = cell
        tables = [(piece, sorted({k for row in rows.values() for k in row}), rows) for piece, rows in grids.items()]
        blocks.append({"place": place, "n": len(part), "grids": tables, "single": single})
    return blocks
