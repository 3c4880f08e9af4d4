"""Beside the loss: which attacks find more than the calibrated loss finds on the same records, and which less."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedaudit.terms.threat_models import THREAT_MODELS
from reports.evidence import ordered
from reports.section import Page, Row, Section
from reports.verdict_cards import tint

ORDER = 74


def section(page: Page) -> Section | None:
    """Where other attacks stand beside the calibrated loss."""
    found = page.parts("beside_loss", _square)
    links = [("beside-loss", "Beside the loss")]
    return Section(links, {"beside_loss": found}, tables=page.files("beside_loss")) if found else None


def _square(table: pd.DataFrame) -> Row:
    """A line for every score, a column for every adversary and way."""
    order = ordered(table.threat_model, THREAT_MODELS)
    held = table[["threat_model", "way"]].drop_duplicates().itertuples(index=False, name=None)
    places = sorted(held, key=lambda place: order.index(place[0]))
    cells = {(row["threat_model"], row["way"], row["signal"]): _shaded(row) for row in table.to_dict("records")}
    lines = [(s, [cells.get((*place, s)) for place in places]) for s in dict.fromkeys(table.signal)]
    return {"places": places, "lines": lines}


def _shaded(row: dict[str, Any]) -> Row:
    word = "above" if row["gain_low"] > 0 else "below" if row["gain_high"] < 0 else ""
    return row | {"shade": tint(row["auroc"]), "word": word, "gained": row["gain"] == row["gain"]}
