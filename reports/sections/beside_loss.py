"""Beside the loss: which attacks find more than the calibrated loss finds on the same records, and which less."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedaudit.reports.evidence import ordered
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.verdict_cards import tint
from fedaudit.terms.threat_models import THREAT_MODELS

ORDER = 74


def section(page: Page) -> Section | None:
    """The section of attacks' AUROCs beside that of the calibrated loss; None if no other attack was compared with
    it."""
    parts = page.parts("beside_loss", _square)
    links = [("beside-loss", "Beside the loss")]
    return Section(links, {"beside_loss": parts}, tables=page.files("beside_loss")) if parts else None


def _square(table: pd.DataFrame) -> Row:
    """The table as `columns`, pairs of adversary and kind of model, and `lines`, pairs of a score and its cells by
    column (None: not measured)."""
    order = ordered(table.threat_model, THREAT_MODELS)
    models = table[["threat_model", "way"]].drop_duplicates().itertuples(index=False, name=None)
    columns = sorted(models, key=lambda model: order.index(model[0]))
    cells = {(row["threat_model"], row["way"], row["signal"]): _cell(row) for row in table.to_dict("records")}
    lines = [(s, [cells.get((*column, s)) for column in columns]) for s in dict.fromkeys(table.signal)]
    return {"columns": columns, "lines": lines}


def _cell(row: dict[str, Any]) -> Row:
    """A cell with its colour, whether the gain is above or below 0 (`word`), and whether there is one (`gained`)."""
    word = "above" if row["gain_low"] > 0 else "below" if row["gain_high"] < 0 else ""
    return row | {"shade": tint(row["auroc"]), "word": word, "gained": row["gain"] == row["gain"]}
