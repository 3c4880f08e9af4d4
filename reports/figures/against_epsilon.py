"""Accuracy and leakage of the same runs against epsilon, a panel each, as in DP-FPL's Figure 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame as Table

from fedaudit.reports.figures.drawing import GREY, LOW, Plot, grid, legend, look_of
from fedaudit.reports.rows import MethodRow
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, SPLITS


@dataclass(frozen=True)
class Panel:
    """The vertical axis of one quantity."""

    name: str
    label: str
    least: tuple[float, float]  # range that the axis spans at least, so that noise is not blown up
    guessing: float | None = None  # the value of a guessing attack, drawn as a line; None for accuracies


ACCURACY = "accuracy (%)"
PANELS = {
    LOCAL: Panel("local classes", ACCURACY, (0, 1)),
    NEIGHBOUR: Panel("neighbour classes", ACCURACY, (0, 1)),
    OVERALL: Panel("all classes", ACCURACY, (0, 1)),
    "success": Panel("attack success", "correct guesses (%)", (40, 62), 50.0),
    "auroc": Panel("attack AUROC", "AUROC", (0.4, 0.62), 0.5),
}
BARS = "Bars: one standard deviation over seeds where there are several, else the confidence interval."


def accuracies(runs: Sequence[MethodRow]) -> list[str]:
    """The splits to draw: local and neighbour if any run has them, else overall, if any has it."""
    splits = [split for split in SPLITS if any(split in v.scores for v in runs)]
    return [split for split in splits if split in (LOCAL, NEIGHBOUR)] or [split for split in splits if split == OVERALL]


def against_epsilon(runs: Sequence[MethodRow], methods: Sequence[str], quantities: Sequence[str]) -> Plot:
    """The figure with its data: a panel per quantity (a key of the runs' scores), a line per method; None without two
    epsilons (no noise is one).

    Runs without noise stand at the right end. A method that was only run without noise is a horizontal line. Panels of
    accuracies share their axis. `methods` fixes the colours.
    """
    levels = sorted({v.epsilon for v in runs if v.private})
    if not levels or len({v.epsilon for v in runs}) < 2:
        return None
    at = {level: math.log10(level) for level in levels}
    at[math.inf] = max(at.values()) + max(0.3, 0.18 * (max(at.values()) - min(at.values())))
    lines = [m for m in methods if any(v.method == m and v.private for v in runs)]
    figure, axes = grid(1, len(quantities), height=3.0, margins=LOW)
    for i, (panel, quantity) in enumerate(zip(axes[0], quantities, strict=True)):
        _draw_lines(panel, runs, methods, lines, quantity, at)
        _draw_axes(panel, PANELS[quantity], at, levels)
        panel.set_title(f"({'abcde'[i]}) {PANELS[quantity].name}")
    accuracy_panels = [p for p, q in zip(axes[0], quantities, strict=True) if PANELS[q].label == ACCURACY]
    for panel in accuracy_panels:
        panel.set_ylim(0, max(p.get_ylim()[1] for p in accuracy_panels))
    legend(figure)
    return figure, rows(runs, quantities)


def _draw_lines(
    panel: Any,
    runs: Sequence[MethodRow],
    methods: Sequence[str],
    lines: Sequence[str],
    quantity: str,
    at: dict[float, float],
) -> None:
    """Draw a line for each method in `lines`, a horizontal one for the others; `at` is the position of each epsilon on
    the axis."""
    width = at[math.inf] - min(at.values())
    for i, method in enumerate(lines):
        of_method = sorted((v for v in runs if v.method == method and quantity in v.scores), key=lambda v: v.epsilon)
        shift = 0.012 * width * (i - (len(lines) - 1) / 2)  # so that bars do not hide each other
        if of_method:
            _draw_line(panel, of_method, quantity, [at[v.epsilon] + shift for v in of_method], look_of(methods, method))
    for v in (v for v in runs if v.method not in lines and quantity in v.scores):
        colour = look_of(methods, v.method)["color"]
        panel.axhline(v.scores[quantity].value, color=colour, linewidth=1.1, label=v.title, zorder=1)


def _draw_line(
    panel: Any, of_method: Sequence[MethodRow], quantity: str, at: Sequence[float], look: dict[str, Any]
) -> None:
    """Draw one method at the positions `at`: noised runs joined, and a pale step to the one without noise."""
    values = [v.scores[quantity].value for v in of_method]
    bars = np.array([v.scores[quantity].reach for v in of_method]).T
    panel.errorbar(at, values, bars, fmt="none", ecolor=look["color"], elinewidth=0.8, capsize=2)
    n = sum(v.private for v in of_method)
    panel.plot(at[:n], values[:n], **look, label=of_method[0].name)
    panel.plot(at[max(0, n - 1) :], values[max(0, n - 1) :], **look, linewidth=1, alpha=0.5)


def _draw_axes(panel: Any, about: Panel, at: dict[float, float], levels: Sequence[float]) -> None:
    panel.axvline((at[max(levels)] + at[math.inf]) / 2, color=GREY, linewidth=0.8, linestyle=":")
    panel.set_xticks(list(at.values()), [f"{level:g}" if math.isfinite(level) else "none" for level in at])
    panel.set(xlabel="ε claimed per record", ylabel=about.label)
    low, high = panel.get_ylim()
    panel.set_ylim(min(low, about.least[0]) if about.guessing else 0, max(high, about.least[1]))
    if about.guessing is not None:
        panel.axhline(about.guessing, color=GREY, linewidth=1.1)


def rows(runs: Sequence[MethodRow], quantities: Sequence[str]) -> Table:
    """The data of a figure: one row per run and quantity that it has, with the lengths `down` and `up` of its error bar
    and the number of `seeds`."""
    lines = []
    for v in runs:
        for quantity in (q for q in quantities if q in v.scores):
            score = v.scores[quantity]
            epsilon = f"{v.epsilon:g}" if v.private else "none"
            options = (v.parameters.get("rank"), v.parameters.get("residual"))
            lines.append((v.label, epsilon, *options, quantity, score.value, *score.reach, len(score.seeds)))
    return Table(lines, columns=["method", "epsilon", "rank", "residual", "quantity", "value", "down", "up", "seeds"])
