"""Agreement: whether the attacks find the same records exposed."""

from __future__ import annotations

import math

import pandas as pd

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.evidence import ordered
from fedaudit.reports.formats import tau
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.verdict_cards import tint
from fedaudit.terms.threat_models import THREAT_MODELS

ORDER = 75
CELL, LABELS = 20, 240  # pixels of the map: a cell, and the names before its first


def section(page: Page) -> Section | None:
    """The section of rank correlations between attacks' scores; None unless several attacks scored the same records."""
    parts = page.parts("agreement", _shown)
    links = [("agreement", "Agreement")]
    return Section(links, {"agreement": parts}, tables=page.files("agreement")) if parts else None


def _shown(table: pd.DataFrame) -> Row:
    """All `squares`, and the `map` of the one with the most scores."""
    squares = _squares(table)
    return {"squares": squares, "map": _map(max(squares, key=lambda square: len(square["names"])))}


def _map(square: Row) -> Row:
    """A square as a picture in pixels: `boxes`, cells of width `cell` at `x` and `y`, in which a square of width `side`
    (0: no number) has the area of the correlation's size, and is hollow where that is `below` 0."""
    boxes, pairs = [], []
    for i, (first, cells) in enumerate(square["lines"]):
        for j, cell in enumerate(cells):
            x, y = LABELS + CELL * j, CELL * (i + 1)  # below a row of numbers
            rho = cell["spearman"] if cell and math.isfinite(cell["spearman"]) else 0.0
            side = round((CELL - 4) * math.sqrt(abs(rho)), 1)
            edge = (CELL - side) / 2
            names = f"{signal_name(first)} and {signal_name(square['names'][j])}: {tau(rho)}"
            boxes.append({"x": x, "y": y, "side": side, "left": round(x + edge, 1), "top": round(y + edge, 1),
                          "below": rho < 0, "title": names})  # fmt: skip
            if i < j and cell:
                pairs.append((rho, names))
    return {
        "threat": square["threat"],
        "names": square["names"],
        "cell": CELL,
        "first": LABELS,
        "boxes": boxes,
        "closest": max(pairs)[1],
        "width": LABELS + CELL * len(square["names"]) + 2,
        "height": CELL * (len(square["names"]) + 1) + 2,
    }


def _squares(table: pd.DataFrame) -> list[Row]:
    """A square per attacked model, by adversary (`threat`) and kind of `model`: `lines` of cells for all pairs of
    `names` (None on the diagonal), and `chances`, the shares of records that two lists have in common by chance."""
    squares = []
    order = ordered(table.threat_model, THREAT_MODELS)
    models = table.groupby(["threat_model", "way"], sort=False)
    for (threat, model), part in sorted(models, key=lambda group: order.index(group[0][0])):
        names = list(dict.fromkeys([*part.signal_a, *part.signal_b]))
        pairs = {  # a correlation of -1 to 1 has the colour of an AUROC of 0 to 1
            frozenset((row["signal_a"], row["signal_b"])): row | {"shade": tint(0.5 + row["spearman"] / 2)}
            for row in part.to_dict("records")
        }
        lines = [(a, [pairs.get(frozenset((a, b))) if a != b else None for b in names]) for a in names]
        chances = sorted({round(float(x), 3) for x in part.chance if math.isfinite(x)})
        squares.append({"threat": threat, "model": model, "names": names, "chances": chances, "lines": lines})
    return squares
