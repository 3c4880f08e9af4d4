"""Leakage against utility: every point of a sweep, the best attack at each, and which are on the Pareto front."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from fedaudit.terms.threat_models import THREAT_MODELS
from reports.evidence import ordered
from reports.figures.drawing import Sketch, draw
from reports.figures.trade_offs import front_plot, sweep_plot, swept_names
from reports.rows import as_rows
from reports.section import Page, Row, Section

ORDER = 42
DRAWN = 4  # worlds whose figures are drawn
FRONT = (
    "A marker is a setting: utility to the right, the AUROC of the best attack upwards; bars are intervals over "
    "trainings and records. Filled markers lie on the Pareto front (no other setting leaks as little at as much "
    "utility), joined by a line; the number beside one is the share of draws from all points' errors in which it does."
)
SWEEP = (
    "Utility, and against each adversary the AUROC of the best attack and its TPR at 1 % FPR where that could be "
    "measured; bars are intervals over trainings and records. Settings that differ in nothing else are joined."
)


def section(page: Page) -> Section | None:
    """Where the audit was asked for."""
    found = page.across.get("curves")
    if found is None:
        return None
    table = found.tables["curves"]
    best = table[table.best_of.notna()]
    worlds = list(dict.fromkeys(best.world))[:DRAWN]
    sketches = [Sketch("front", "Leakage against utility, Pareto front", FRONT, front_plot, (best, worlds))]
    for i, world in enumerate(worlds, 1):
        mine = best[best.world == world]
        sketches += [_over(mine, name, str(i) if len(worlds) > 1 else "") for name in swept_names(mine)]
    drawn = draw(sketches, page.each)
    context: dict[str, Any] = {
        "curves": {
            "rows": _rows(best),
            "said": list(found.sentences),
            "confidence": float(table.confidence.max()),  # that of the best attack is corrected
            "figures": list(drawn),
            "worlds": len(set(best.world)) > 1,
        }
    }
    return Section([("curves", "Leakage against utility")], context, drawn, tables={"curves": table})


def _over(mine: pd.DataFrame, name: str, number: str) -> Sketch:
    """The figure of a world over one parameter; `number` tells worlds apart."""
    key = "-".join(filter(None, ["over", re.sub(r"\W|_", "-", name), number]))
    about = ", ".join([_word(name), *([str(mine.world.iloc[0])] if number else [])])
    return Sketch(key, f"Utility and leakage over {about}", f"Over {about}. {SWEEP}", sweep_plot, (mine, name))


def _word(name: str) -> str:
    return "methods" if name == "method.name" else name.partition(".")[2].replace("_", " ")


def _rows(best: pd.DataFrame) -> list[Row]:
    """By adversary, the most useful points first."""
    order = ordered(best.threat_model, THREAT_MODELS)
    rows: list[Row] = as_rows(best.astype({"best_of": int}))
    for row in rows:
        row["decimals"] = 3 if row["utility_metric"] == "loss" else 1
    better = {world: -1.0 if part.utility_metric.iloc[0] == "loss" else 1.0 for world, part in best.groupby("world")}
    return sorted(
        rows, key=lambda row: (row["world"], order.index(row["threat_model"]), -better[row["world"]] * row["utility"])
    )
