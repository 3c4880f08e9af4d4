"""Leakage against utility with the Pareto front, and both over a swept parameter. Tables are the audit `curves`', one
row per setting ("point") and adversary. A world is what compared settings share, such as the task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame as Table

from fedaudit.audits.run_comparison import EPSILON, METHOD, format_value
from fedaudit.reports.evidence import ordered
from fedaudit.reports.figures.drawing import GREY, INK, LOW, USUAL, Note, Plot, grid, legend, look_of, place_notes
from fedaudit.reports.formats import is_missing
from fedaudit.reports.rows import LINES_SHOWN
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from fedaudit.terms.threat_models import THREAT_MODELS

NAMED = 8  # a front of more points has no names inside its panel
COLUMNS = 3
UTILITY = {
    LOCAL: "accuracy, local classes (%)",
    NEIGHBOUR: "accuracy, neighbour classes (%)",
    OVERALL: "accuracy, all classes (%)",
    OWN_TEST: "accuracy, own test sets (%)",
    "exact_match": "exact match (%)",
    "cider": "CIDEr",
    "loss": "loss (nats per token)",
}


def swept_names(table: Table) -> list[str]:
    """The columns of parameters (dotted paths) that take several values."""
    names = [name for name in table if "." in str(name)]
    return [name for name in names if table[name].dropna().map(repr).nunique() > 1]


def front_plot(best: Table, worlds: Sequence[str]) -> Plot:
    """The figure of the best attack's AUROC against utility, a panel per adversary of each of `worlds` (tasks with
    their data), with its data; None without a point."""
    best = best[best.world.isin(worlds)]
    if best.empty:
        return None
    pairs = [
        (world, threat) for world in worlds for threat in ordered(best[best.world == world].threat_model, THREAT_MODELS)
    ]
    methods, columns = list(dict.fromkeys(best.method)), min(COLUMNS, len(pairs))
    figure, axes = grid(math.ceil(len(pairs) / columns), columns, height=2.9, margins=LOW)
    for panel, (world, threat) in zip(axes.flat, pairs, strict=False):
        part = best[(best.world == world) & (best.threat_model == threat)]
        _draw_front(panel, part, methods)
        panel.set_title(f"{threat}{f', {world}' if len(worlds) > 1 else ''}")
        panel.set(xlabel=UTILITY[part.utility_metric.iloc[0]], ylabel="AUROC, best attack")
        if part.utility_metric.iloc[0] == "loss":
            panel.invert_xaxis()  # better is to the right in every panel
        place_notes(panel, _notes(part), size=7)
    for panel in axes.flat[len(pairs) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, best


def _draw_front(panel: Any, part: Table, methods: Sequence[str]) -> None:
    panel.axhline(0.5, color=GREY, linewidth=1.1)
    line = part[part.front].sort_values("utility")
    panel.plot(line.utility, line.auroc, color=INK, linewidth=0.9, linestyle=":", zorder=1)
    for method, points in part.groupby("method", sort=False):
        look = look_of(methods, str(method)) | {"linestyle": ""}
        panel.errorbar(
            points.utility, points.auroc, _bar_lengths(points, "auroc"), _bar_lengths(points, "utility"),
            fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.6,
        )  # fmt: skip
        for front, face in ((True, look["color"]), (False, "white")):
            some = points[points.front == front]
            panel.plot(some.utility, some.auroc, **look | {"markerfacecolor": face}, label=str(method))


def _notes(part: Table) -> list[Note]:
    """The names of the points on a front with their shares of draws, at these points; none of a long front."""
    front = part[part.front].sort_values("utility").to_dict("records")
    names = [row["point"].removeprefix(row["method"]).strip() or row["method"] for row in front]
    notes = [
        (f"{name} ({100 * row['front_p']:.0f} %)", row["utility"], row["auroc"])
        for name, row in zip(names, front, strict=True)
    ]
    return notes if len(notes) <= NAMED else []


def _bar_lengths(rows: Table, name: str) -> Any:
    """Lengths of error bars of the column `name` down and up, shape (2, rows); 0 where there is no interval."""
    low, high = (rows[f"{name}_{end}"].astype(float) for end in ("low", "high"))
    down, up = (rows[name] - low).fillna(0.0), (high - rows[name]).fillna(0.0)
    return np.maximum(0.0, np.array([down, up]))


def sweep_plot(table: Table, name: str) -> Plot:
    """The figure of utility, AUROC and TPR of one world's points over the parameter `name`, with its data: a panel per
    quantity and adversary, a line for points that differ in nothing else (`LINES_SHOWN` at most); None if `name` has
    fewer than two values."""
    table = table[table[name].notna()]
    values = sorted(table[name].unique().tolist(), key=_sort_key)
    if len(values) < 2:
        return None
    threats, others = ordered(table.threat_model, THREAT_MODELS), [n for n in swept_names(table) if n != name]
    lines = list(dict.fromkeys(_line_name(row, others) for row in table.to_dict("records")))[:LINES_SHOWN]
    panels = [(None, "utility")] + [(threat, "auroc") for threat in threats]
    panels += [(t, "tpr_1") for t in threats if table[table.threat_model == t].tpr_1.notna().any()]
    columns = min(COLUMNS, len(panels))
    figure, axes = grid(math.ceil(len(panels) / columns), columns, height=2.6, margins=USUAL)
    for panel, (threat, quantity) in zip(axes.flat, panels, strict=False):
        part = table[table.threat_model == (threat or threats[0])]
        _draw_sweep(panel, part, name, quantity, values, lines, others)
        label = {"utility": UTILITY[part.utility_metric.iloc[0]], "auroc": "AUROC", "tpr_1": "TPR at 1 % FPR"}[quantity]
        panel.set(title=threat or "utility", ylabel=label, xlabel=_axis_label(name))
        panel.set_xticks(range(len(values)), [format_value(value) for value in values])
        if quantity == "auroc":
            panel.axhline(0.5, color=GREY, linewidth=1.1)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, table


def _draw_sweep(
    panel: Any,
    part: Table,
    name: str,
    quantity: str,
    values: Sequence[Any],
    lines: Sequence[str],
    others: Sequence[str],
) -> None:
    labels = [_line_name(row, others) for row in part.to_dict("records")]
    for i, line in enumerate(lines):
        points = part[[label == line for label in labels]]
        points = points[points[quantity].notna()].sort_values(name, key=lambda column: column.map(values.index))
        if points.empty:
            continue
        at = points[name].map(values.index) + 0.04 * (i - (len(lines) - 1) / 2)
        look = look_of(lines, line) | ({"linestyle": ""} if name == METHOD else {})
        bars = {"fmt": "none", "ecolor": look["color"], "elinewidth": 0.8, "capsize": 2}
        panel.errorbar(at, points[quantity], _bar_lengths(points, quantity), **bars)
        panel.plot(at, points[quantity], **look, label=line)


def _line_name(row: dict[str, Any], others: Sequence[str]) -> str:
    """The name of a row's line: its method and the parameters `others`, in words."""
    words = [f"{n.partition('.')[2]} {format_value(row[n])}" for n in others if n != METHOD and not is_missing(row[n])]
    return ", ".join([str(row["method"]), *words])


def _sort_key(value: Any) -> tuple[int, float, str]:
    """The key that sorts numbers by size, "inf" among them, before words."""
    try:
        return 0, float(value), ""
    except (TypeError, ValueError):
        return 1, 0.0, str(value)


def _axis_label(name: str) -> str:
    """The label of a parameter's axis."""
    return {EPSILON: "ε claimed per record", METHOD: "method"}.get(name, name.partition(".")[2].replace("_", " "))
