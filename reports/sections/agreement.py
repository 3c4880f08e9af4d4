"""Agreement: whether the attacks find the same records exposed."""

from __future__ import annotations

import math

import pandas as pd

from fedaudit.terms.threat_models import THREAT_MODELS
from reports.evidence import ordered
from reports.section import Page, Row, Section
from reports.verdict_cards import tint

ORDER = 75


def section(page: Page) -> Section | None:
    """The section of rank correlations between attacks' scores; None unless several attacks scored the same records."""
    parts = page.parts("agreement", _squares)
    links = [("agreement", "Agreement")]
    return Section(links, {"agreement": parts}, tables=page.files("agreement")) if parts else None


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
