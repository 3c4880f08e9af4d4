"""Tokens: how sure the model is of every word of a member and of a non-member."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from fedaudit.reports.figures.drawing import Sketch, draw
from fedaudit.reports.figures.tokens import CONFIDENT, UNCERTAIN, scale, shade, tokens_plot
from fedaudit.reports.section import Page, Section

ORDER = 65


def section(page: Page) -> Section | None:
    """The section of entropies token by token; None unless records are texts."""
    table = page.table("tokens")
    if table.empty:
        return None
    alt = "Entropy of each caption token of a member and of a non-member"
    drawn = draw([Sketch("tokens", alt, "", tokens_plot, (table, page.titles))], page.each)
    return Section([("tokens", "Token by token")], {"tokens": _panels(table)}, drawn)


def _panels(tokens: pd.DataFrame) -> dict[str, Any]:
    """`panels` by method and kind of record: `runs`, pairs of a part of the text and its tokens, each with its `word`,
    and `now` and `base` (tuned, base model): (entropy in nats, background, text colour). `top`, `ends`: upper end in
    nats and both end colours of the scale."""
    tokens = tokens.astype({"entropy": float, "base_entropy": float})
    top = scale(tokens)
    panels = []
    for (method, panel), part in tokens.groupby(["method", "panel"], sort=False):
        cells = [
            {"slice": t.slice, "word": t.token}
            | {name: (x, *shade(x, top)) for name, x in (("now", t.entropy), ("base", t.base_entropy))}
            for t in part.sort_values("position").itertuples()
        ]
        runs = [(name, list(run)) for name, run in itertools.groupby(cells, key=lambda cell: cell["slice"])]
        panels.append({"method": method, "panel": panel, "record": part.record.iloc[0], "runs": runs})
    return {"top": top, "panels": panels, "ends": (CONFIDENT, UNCERTAIN)}
