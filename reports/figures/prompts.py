"""The figures about prompts: accuracy by round, against epsilon, against rank, and what the residual changes. Each only
where the evidence fills it.

Bars are one standard deviation over seeds where there are several, else the interval over clients. A method keeps
colour and marker throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from reports.figures.against_epsilon import against_epsilon, rows
from reports.figures.drawing import (
    COLOURS,
    GREY,
    LINES,
    LOW,
    MARKERS,
    Plot,
    PrintedFigure,
    grid,
    legend,
    look_of,
    name_rows,
    printed,
    styled,
)
from reports.inputs import SPLITS
from reports.rows import MethodRow, as_printed

LINES_SHOWN = 8  # more lines in one panel hide each other
TITLES = {
    "local": "local classes: personalisation",
    "neighbour": "neighbour classes: generalisation",
    "overall": "all classes",
}
BARS = "Bars: one standard deviation over seeds where there are several, else the interval over clients."

Figure = tuple[PrintedFigure, str]  # with its caption


def draw(found: Sequence[MethodRow], accuracy: Table | None) -> dict[str, Figure]:
    """Figures with captions by name; those without a row are left out."""
    shown, what = few(found)
    given: list[tuple[str, str, str, Callable[[], Plot]]] = [
        ("accuracy", "Accuracy by round, on local and on neighbour classes",
         f"Mean over clients{' and seeds' if _several(found) else ''}; 0 rounds is before training. Hollow markers: "
         f"with noise. {what}",
         lambda: _by_round(shown, accuracy, _methods(found))),
        ("epsilon", "Accuracy against epsilon, on local and on neighbour classes",
         f"Privacy grows to the left, on a logarithmic axis; what is not noised stands at the right end. {BARS} "
         f"{_settings(found)}",
         lambda: _by_epsilon(as_printed(found), _methods(found))),
        ("rank", "Accuracy against the rank of the local prompt's factors",
         f"Solid lines and filled markers: with residual; dashed and hollow: without. {BARS}",
         lambda: _by_rank(found)),
        ("residual", "What the residual changes, by epsilon and rank",
         "Accuracy with the residual less that without it, all else equal: above 0 it helps. Bars, where there are "
         "several seeds: one standard "
         "deviation of the difference over them.",
         lambda: _by_residual(found)),
    ]  # fmt: skip
    with styled():
        drawings = {name: (printed(name, alt, plot()), caption.strip()) for name, alt, caption, plot in given}
    return {name: (drawing, caption) for name, (drawing, caption) in drawings.items() if drawing is not None}


def _methods(found: Sequence[MethodRow]) -> list[str]:
    return list(dict.fromkeys(v.method for v in found))


def _several(found: Sequence[MethodRow]) -> bool:
    return any(len(v.evidence) > 1 for v in found)


def _panels(found: Sequence[MethodRow]) -> list[str]:
    """Local and neighbour accuracy; overall where there is no other."""
    return [split for split in SPLITS[:2] if any(split in v.scores for v in found)] or ["overall"]


def few(found: Sequence[MethodRow]) -> tuple[list[MethodRow], str]:
    """The variants that one figure can show, and in words which were left out."""
    if len(found) <= LINES_SHOWN:
        return list(found), ""
    least = max((v.epsilon for v in found if v.private), default=math.inf)
    kept = [v for v in as_printed(found) if not v.private or v.epsilon == least]
    noised = f" or with ε {least:g}" if math.isfinite(least) else ""
    what = f"Of {len(found)} rows those without noise{noised} are shown; all stand in the data. {_settings(found)}"
    return kept, what.strip()


def _settings(found: Sequence[MethodRow]) -> str:
    several = [v for v in as_printed(found) if v.setting]
    names = list(dict.fromkeys(f"{v.name} {v.setting}" for v in several))
    return f"Of several settings one is drawn: {'; '.join(names)}." if names else ""


def _by_round(shown: Sequence[MethodRow], accuracy: Table | None, methods: Sequence[str]) -> Plot:
    if accuracy is None:
        return None
    splits = _panels(shown)
    means = accuracy[(accuracy.client == "mean") & accuracy.split.isin(splits)]
    data = means.groupby(["method", "split", "round"], sort=False).accuracy.mean().reset_index()
    levels = sorted({v.epsilon for v in shown}, reverse=True)
    figure, axes = grid(1, len(splits), height=3.0, margins=LOW, sharey=True)
    for panel, split in zip(axes[0], splits, strict=True):
        for v in shown:
            line = data[(data.method == v.label) & (data.split == split)].sort_values("round")
            style = look_of(methods, v.method, hollow=v.private) | {
                "linestyle": LINES[levels.index(v.epsilon) % len(LINES)]
            }
            panel.plot(line["round"] + 1, line.accuracy, **style, markevery=max(1, len(line) // 12), label=v.title)
        panel.set(title=TITLES[split], xlabel="rounds completed")
        panel.margins(x=0.02)
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelleft=True)
    name_rows(axes, "accuracy (%)")
    legend(figure)
    return figure, data.assign(rounds_completed=data["round"] + 1).drop(columns="round")


def _rows(found: Sequence[MethodRow], splits: Sequence[str]) -> Table:
    """What a figure of accuracies shows: each with its bar by split."""
    return _of_accuracy(rows(found, splits))


def _of_accuracy(table: Table) -> Table:
    return table.rename(columns={"quantity": "split", "value": "accuracy"})


def _by_epsilon(shown: Sequence[MethodRow], methods: Sequence[str]) -> Plot:
    splits = _panels(shown)
    plot = against_epsilon(shown, methods, splits, [TITLES[split] for split in splits])
    return plot and (plot[0], _of_accuracy(plot[1]))


def _by_rank(found: Sequence[MethodRow]) -> Plot:
    ranked = [v for v in found if "rank" in v.options]
    if not ranked:
        return None
    splits, methods = _panels(ranked), _methods(ranked)
    ranks = sorted({v.parameters["rank"] for v in ranked}, key=lambda rank: rank or math.inf)
    levels = sorted({v.epsilon for v in ranked}, reverse=True)
    figure, axes = grid(len(methods), len(splits), height=2.7, margins=LOW, sharey=True)
    for row, method in zip(axes, methods, strict=True):
        mine = [v for v in ranked if v.method == method]
        for panel, split in zip(row, splits, strict=True):
            for i, (level, residual) in enumerate(
                dict.fromkeys((v.epsilon, v.parameters.get("residual", True)) for v in mine)
            ):
                line = [
                    v
                    for v in mine
                    if (v.epsilon, v.parameters.get("residual", True)) == (level, residual) and split in v.scores
                ]
                line = sorted(line, key=lambda v: ranks.index(v.parameters["rank"]))
                at = [ranks.index(v.parameters["rank"]) + 0.03 * (i - len(levels) / 2) for v in line]
                look = _level(levels, level, solid=residual)
                label = (
                    f"{line[0].noise}, {'with' if residual else 'without'} residual"
                    if "residual" in mine[0].options
                    else line[0].noise
                )
                bars = np.array([v.scores[split].reach for v in line]).T
                panel.errorbar(
                    at, [v.scores[split].value for v in line], bars, **look, elinewidth=0.7, capsize=2, label=label
                )
            panel.set_xticks(range(len(ranks)), [str(rank) if rank else "full" for rank in ranks])
            panel.set(title=f"{mine[0].name}, {TITLES[split]}", xlabel="rank")
            panel.set_ylim(bottom=0)
            panel.tick_params(labelleft=True)
    name_rows(axes, "accuracy (%)")
    legend(figure)
    return figure, _rows(ranked, splits)


def _level(levels: Sequence[float], level: float, *, solid: bool) -> dict[str, Any]:
    """Colour and marker of an epsilon."""
    i = levels.index(level)
    colour = COLOURS[i % len(COLOURS)]
    look = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "linestyle": "-" if solid else "--"}
    return look | {"markerfacecolor": colour if solid else "white"}


def _by_residual(found: Sequence[MethodRow]) -> Plot:
    data = _differences(found)
    if data.empty:
        return None
    splits, levels = (
        [s for s in SPLITS if s in set(data.split) and s in _panels(found)],
        list(dict.fromkeys(data.epsilon)),
    )
    labels = list(dict.fromkeys(data.setting))
    figure, axes = grid(1, len(splits), height=2.6, margins=LOW, sharey=True)
    for panel, split in zip(axes[0], splits, strict=True):
        for i, label in enumerate(labels):
            dots = data[(data.split == split) & (data.setting == label)]
            at = [levels.index(level) + 0.11 * (i - (len(labels) - 1) / 2) for level in dots.epsilon]
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
            panel.errorbar(at, dots.difference, dots.sd.fillna(0), **look, elinewidth=0.8, capsize=2, label=label)
        panel.axhline(0, color=GREY, linewidth=0.9)
        panel.margins(y=0.15)
        panel.set_xticks(range(len(levels)), levels)
        panel.set(title=TITLES[split], xlabel="ε claimed per record")
        panel.tick_params(labelleft=True)
    name_rows(axes, "with less without residual (points)")
    legend(figure)
    return figure, data[data.split.isin(splits)]


def _differences(found: Sequence[MethodRow]) -> Table:
    """With less without residual, of variants that differ in nothing else, over the seeds that both have."""
    lines = []
    for v in (v for v in found if v.parameters.get("residual") is True):
        own = {**v.parameters, "residual": False}
        for other in (w for w in found if (w.method, w.epsilon) == (v.method, v.epsilon) and w.parameters == own):
            for split in (s for s in SPLITS if s in v.scores and s in other.scores):
                mine, theirs = v.scores[split].seeds, other.scores[split].seeds
                values = [x - theirs[seed] for seed, x in mine.items() if seed in theirs]
                setting = v.setting.replace(", with residual", "").replace("with residual", "") or v.name
                epsilon = f"{v.epsilon:g}" if v.private else "none"
                spread = stdev(values) if len(values) > 1 else math.nan
                if values:
                    lines.append((v.method, setting, epsilon, split, mean(values), spread, len(values)))
    return Table(lines, columns=["method", "setting", "epsilon", "split", "difference", "sd", "seeds"])
