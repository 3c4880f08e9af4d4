"""Leakage against utility: every point of a sweep, the best attack at each, and which are on the Pareto front."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from fedaudit.reports.evidence import ordered
from fedaudit.reports.figures.drawing import Sketch, draw
from fedaudit.reports.figures.trade_offs import front_plot, sweep_plot, swept_names
from fedaudit.reports.rows import as_rows
from fedaudit.reports.section import Page, Row, Section
from fedaudit.terms.threat_models import THREAT_MODELS

ORDER = 42
DRAWN = 4  # worlds that have figures; a world is what compared settings share, such as the task
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
    """The section of every setting's utility and leakage; None if the audit `curves` was not run."""
    audit = page.across.get("curves")
    if audit is None:
        return None
    table = audit.tables["curves"]
    best = table[table.best_of.notna()]
    worlds = list(dict.fromkeys(best.world))[:DRAWN]
    sketches = [Sketch("front", "Leakage against utility, Pareto front", FRONT, front_plot, (best, worlds))]
    for i, world in enumerate(worlds, 1):
        points = best[best.world == world]
        sketches += [_sweep_sketch(points, name, str(i) if len(worlds) > 1 else "") for name in swept_names(points)]
    drawn = draw(sketches, page.each)
    context: dict[str, Any] = {
        "curves": {
            "rows": _rows(best),
            "sentences": list(audit.sentences),
            "confidence": float(table.confidence.max()),  # the best attack's own is higher: corrected for picking it
            "figures": list(drawn),
            "worlds": len(set(best.world)) > 1,
        }
    }
    return Section([("curves", "Leakage against utility")], context, drawn, tables={"curves": table})


def _sweep_sketch(points: pd.DataFrame, name: str, number: str) -> Sketch:
    """The figure of one world over the parameter `name`; `number` tells worlds apart (empty for a single one)."""
    key = "-".join(filter(None, ["over", re.sub(r"\W|_", "-", name), number]))
    about = ", ".join([_parameter_name(name), *([str(points.world.iloc[0])] if number else [])])
    return Sketch(key, f"Utility and leakage over {about}", f"Over {about}. {SWEEP}", sweep_plot, (points, name))


def _parameter_name(name: str) -> str:
    """A parameter's dotted path in words."""
    return "methods" if name == "method.name" else name.partition(".")[2].replace("_", " ")


def _rows(best: pd.DataFrame) -> list[Row]:
    """The table's rows by world and adversary, the best utility first, with `decimals` for printing utility."""
    order = ordered(best.threat_model, THREAT_MODELS)
    rows: list[Row] = as_rows(best.astype({"best_of": int}))
    for row in rows:
        row["decimals"] = 3 if row["utility_metric"] == "loss" else 1
    sign = {world: 1.0 if part.utility_metric.iloc[0] == "loss" else -1.0 for world, part in best.groupby("world")}
    return sorted(
        rows, key=lambda row: (row["world"], order.index(row["threat_model"]), sign[row["world"]] * row["utility"])
    )
