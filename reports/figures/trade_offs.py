"""Leakage against utility with the Pareto front, and both over what was swept. Tables are those of the audit `curves`,
one row per point and adversary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame as Table

from audits.run_comparison import EPSILON, METHOD, format_value
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from fedaudit.terms.threat_models import THREAT_MODELS
from reports.evidence import ordered
from reports.figures.drawing import GREY, INK, LOW, USUAL, Plot, grid, legend, look_of

NAMED = 8  # points of a front that are named inside a panel
LINES_SHOWN = 8
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
    """The parameters of a world's points that take several values."""
    names = [name for name in table if "." in str(name)]
    return [name for name in names if table[name].dropna().map(repr).nunique() > 1]


def front_plot(best: Table, worlds: Sequence[str]) -> Plot:
    """A panel for each adversary and world; None without a point."""
    best = best[best.world.isin(worlds)]
    if best.empty:
        return None
    places = [
        (world, threat) for world in worlds for threat in ordered(best[best.world == world].threat_model, THREAT_MODELS)
    ]
    methods, columns = list(dict.fromkeys(best.method)), min(COLUMNS, len(places))
    figure, axes = grid(math.ceil(len(places) / columns), columns, height=2.9, margins=LOW)
    for panel, (world, threat) in zip(axes.flat, places, strict=False):
        part = best[(best.world == world) & (best.threat_model == threat)]
        _front(panel, part, methods)
        panel.set_title(f"{threat}{f', {world}' if len(worlds) > 1 else ''}")
        panel.set(xlabel=UTILITY[part.utility_metric.iloc[0]], ylabel="AUROC, best attack")
        if part.utility_metric.iloc[0] == "loss":
            panel.invert_xaxis()  # so that better is to the right everywhere
    for panel in axes.flat[len(places) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, best


def _front(panel: Any, part: Table, methods: Sequence[str]) -> None:
    panel.axhline(0.5, color=GREY, linewidth=1.1)
    line = part[part.front].sort_values("utility")
    panel.plot(line.utility, line.auroc, color=INK, linewidth=0.9, linestyle=":", zorder=1)
    for method, own in part.groupby("method", sort=False):
        look = look_of(methods, str(method)) | {"linestyle": ""}
        panel.errorbar(
            own.utility, own.auroc, _bars(own, "auroc"), _bars(own, "utility"),
            fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.6,
        )  # fmt: skip
        for front, face in ((True, look["color"]), (False, "white")):
            some = own[own.front == front]
            panel.plot(some.utility, some.auroc, **look | {"markerfacecolor": face}, label=str(method))
    middle = (part.utility.min() + part.utility.max()) / 2
    for row in line.to_dict("records") if len(line) <= NAMED else []:
        text = f"{row['point'].removeprefix(row['method']).strip() or row['method']} ({100 * row['front_p']:.0f} %)"
        inward = (row["utility"] > middle) != (row["utility_metric"] == "loss")  # that axis is turned round
        place = {"xytext": (-4 if inward else 4, 4), "ha": "right" if inward else "left"}
        panel.annotate(text, (row["utility"], row["auroc"]), **place, textcoords="offset points", fontsize=7)


def _bars(rows: Table, name: str) -> Any:
    """Down and up from the value; nothing where there is no interval."""
    low, high = (rows[f"{name}_{end}"].astype(float) for end in ("low", "high"))
    down, up = (rows[name] - low).fillna(0.0), (high - rows[name]).fillna(0.0)
    return np.maximum(0.0, np.array([down, up]))


def sweep_plot(table: Table, name: str) -> Plot:
    """Utility, AUROC and TPR of a world's points over one parameter; a line for points that differ in nothing else."""
    table = table[table[name].notna()]
    values = sorted(table[name].unique().tolist(), key=_place)
    if len(values) < 2:
        return None
    threats, others = ordered(table.threat_model, THREAT_MODELS), [n for n in swept_names(table) if n != name]
    lines = list(dict.fromkeys(_line(row, others) for row in table.to_dict("records")))[:LINES_SHOWN]
    panels = [(None, "utility")] + [(threat, "auroc") for threat in threats]
    panels += [(t, "tpr_1") for t in threats if table[table.threat_model == t].tpr_1.notna().any()]
    columns = min(COLUMNS, len(panels))
    figure, axes = grid(math.ceil(len(panels) / columns), columns, height=2.6, margins=USUAL)
    for panel, (threat, quantity) in zip(axes.flat, panels, strict=False):
        part = table[table.threat_model == (threat or threats[0])]
        _sweep(panel, part, name, quantity, values, lines, others)
        label = {"utility": UTILITY[part.utility_metric.iloc[0]], "auroc": "AUROC", "tpr_1": "TPR at 1 % FPR"}[quantity]
        panel.set(title=threat or "utility", ylabel=label, xlabel=_axis(name))
        panel.set_xticks(range(len(values)), [format_value(value) for value in values])
        if quantity == "auroc":
            panel.axhline(0.5, color=GREY, linewidth=1.1)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, table


def _sweep(
    panel: Any,
    part: Table,
    name: str,
    quantity: str,
    values: Sequence[Any],
    lines: Sequence[str],
    others: Sequence[str],
) -> None:
    labels = [_line(row, others) for row in part.to_dict("records")]
    for i, line in enumerate(lines):
        own = part[[label == line for label in labels]]
        own = own[own[quantity].notna()].sort_values(name, key=lambda column: column.map(values.index))
        if own.empty:
            continue
        at = own[name].map(values.index) + 0.04 * (i - (len(lines) - 1) / 2)
        look = look_of(lines, line) | ({"linestyle": ""} if name == METHOD else {})
        panel.errorbar(
            at, own[quantity], _bars(own, quantity), fmt="none", ecolor=look["color"], elinewidth=0.8, capsize=2
        )
        panel.plot(at, own[quantity], **look, label=line)


def _line(row: dict[str, Any], others: Sequence[str]) -> str:
    """What points share that are joined, in words."""
    own = [f"{n.partition('.')[2]} {format_value(row[n])}" for n in others if n != METHOD and not _missing(row[n])]
    return ", ".join([str(row["method"]), *own])


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _place(value: Any) -> tuple[int, float, str]:
    """Numbers by size, "inf" among them, then words."""
    try:
        return 0, float(value), ""
    except (TypeError, ValueError):
        return 1, 0.0, str(value)


def _axis(name: str) -> str:
    return {EPSILON: "ε claimed per record", METHOD: "method"}.get(name, name.partition(".")[2].replace("_", " "))
