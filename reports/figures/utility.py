"""Figures of utility: by round, against rank, and the effect of the residual. One without data is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from fedaudit.reports.figures.against_epsilon import BARS, PANELS, accuracies, rows
from fedaudit.reports.figures.drawing import GREY, LOW, Plot, Sketch, grid, legend, look_of, name_rows
from fedaudit.reports.rows import MethodRow
from fedaudit.terms.splits import SPLITS

METRICS = {
    "loss": "loss (nats per token)",
    "bleu4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "exact_match": "exact match (%)",
}
ANSWERS_NOTE = (
    " Loss: lower is better, the others: higher. Answers are asked for before the first and after the last round, the "
    "loss after every one; hollow markers are the mean of the clients' own models."
)


def sketches(runs: Sequence[MethodRow], lines: Table, titles: Sequence[str]) -> list[Sketch]:
    """The figures of utility, to be drawn later: by round, over rank, and what the residual changes. `lines` is the
    table of `by_round`, `titles` are the names of its runs, which fix their colours."""
    return [
        Sketch("utility", "Utility by round",
               "On test records, mean over seeds where there are several; 0 rounds is before training."
               + (ANSWERS_NOTE if set(lines.metric) & set(METRICS.values()) else ""), _lines_plot, (lines, titles)),
        Sketch("rank", "Accuracy against the rank of the local prompt's factors",
               f"Filled markers: with residual; hollow: without. {BARS}",
               _rank_plot, (runs,)),
        Sketch("residual", "What the residual changes, by epsilon and rank",
               "Accuracy with the residual less that without it, all else equal: above 0 it helps. Bars, where there "
               "are several seeds: one standard deviation of the difference over them.", _residual_plot, (runs,)),
    ]  # fmt: skip


def by_round(accuracy: Table, answers: Table, splits: Sequence[str]) -> Table:
    """A row per metric, method, model and round (-1: before training) with the mean over seeds of the utility in the
    column `value`. `accuracy` and `answers` are the tables `accuracy` and `utility`; accuracies are those on `splits`,
    answers on novel objects are left out."""
    mean = accuracy[(accuracy.client == "mean") & accuracy.split.isin(splits)]
    panel = mean.split.map({split: f"{PANELS[split].name}, accuracy (%)" for split in splits})
    mean = mean.assign(metric=panel, model="clients' prompts", value=mean.accuracy)
    metrics = [name for name in METRICS if name in answers]
    texts = answers[answers.model != "novel"].melt(["method", "round", "model"], metrics, "metric")
    texts = texts.assign(metric=texts.metric.map(METRICS)).dropna(subset="value")
    data = pd.concat([table for table in (mean, texts) if len(table)] or [mean])
    return data.groupby(["metric", "method", "model", "round"], sort=False).value.mean().reset_index()


def _lines_plot(data: Table, methods: Sequence[str]) -> Plot:
    if data.empty:
        return None
    metrics = list(dict.fromkeys(data.metric))
    columns, several = min(4, len(metrics)), data.model.nunique() > 1
    figure, axes = grid(math.ceil(len(metrics) / columns), columns, height=2.4, margins=LOW)
    for panel, metric in zip(axes.flat, metrics, strict=False):
        lines = data[data.metric == metric].groupby(["method", "model"], sort=False)
        for (method, model), line in lines:
            look = look_of(methods, method, hollow=model == "clients")
            label = f"{method}: {model}" if several else method
            panel.plot(line["round"] + 1, line.value, **look, markevery=max(1, len(line) // 12), label=label)
        panel.set(title=metric, xlabel="rounds completed")
        panel.yaxis.set_major_formatter("{x:.3g}")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.flat[len(metrics) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, data.assign(rounds_completed=data["round"] + 1).drop(columns="round")


def _rank_plot(runs: Sequence[MethodRow]) -> Plot:
    """The figure of accuracy against rank, with its data: a row of panels per method, a column per split; None if no
    run varies its rank."""
    ranked = [v for v in runs if "rank" in v.options]
    if not ranked:
        return None
    splits, methods = accuracies(ranked), list(dict.fromkeys(v.method for v in ranked))
    ranks = sorted({v.parameters["rank"] for v in ranked}, key=lambda rank: rank or math.inf)
    looks = [f"{v.name}, {v.noise}" for v in ranked]
    figure, axes = grid(len(methods), len(splits), height=2.7, margins=LOW, sharey=True)
    for row, method in zip(axes, methods, strict=True):
        of_method = [v for v in ranked if v.method == method]
        lines: dict[tuple[float, bool], list[MethodRow]] = {}  # by epsilon and residual
        for v in of_method:
            lines.setdefault((v.epsilon, v.parameters.get("residual", True)), []).append(v)
        for panel, split in zip(row, splits, strict=True):
            for i, (level, residual) in enumerate(lines):
                line = [v for v in lines[level, residual] if split in v.scores]
                line.sort(key=lambda v: ranks.index(v.parameters["rank"]))
                at = [ranks.index(v.parameters["rank"]) + 0.03 * (i - len(lines) / 2) for v in line]
                look = look_of(looks, f"{line[0].name}, {line[0].noise}", hollow=not residual)
                which = f", {'with' if residual else 'without'} residual" if "residual" in of_method[0].options else ""
                bars, label = np.array([v.scores[split].reach for v in line]).T, line[0].noise + which
                panel.errorbar(
                    at, [v.scores[split].value for v in line], bars, **look, elinewidth=0.7, capsize=2, label=label
                )
            panel.set_xticks(range(len(ranks)), [str(rank) if rank else "full" for rank in ranks])
            panel.set(title=f"{of_method[0].name}, {PANELS[split].name}", xlabel="rank")
            panel.set_ylim(bottom=0)
            panel.tick_params(labelleft=True)
    name_rows(axes, "accuracy (%)")
    legend(figure)
    return figure, rows(ranked, splits)


def _residual_plot(runs: Sequence[MethodRow]) -> Plot:
    """The figure, with its data, of accuracy with the residual less accuracy without it, against epsilon, a panel per
    split; None without runs that differ in this only."""
    data = _differences(runs)
    if data.empty:
        return None
    splits = [s for s in SPLITS if s in set(data.split) and s in accuracies(runs)]
    levels = list(dict.fromkeys(data.epsilon))
    labels = list(dict.fromkeys(zip(data.method, data.setting, strict=True)))
    lines = [f"{method}, {label}" for method, label in labels]
    figure, axes = grid(1, len(splits), height=2.6, margins=LOW, sharey=True)
    for panel, split in zip(axes[0], splits, strict=True):
        for i, (method, label) in enumerate(labels):
            dots = data[(data.split == split) & (data.method == method) & (data.setting == label)]
            at = [levels.index(level) + 0.11 * (i - (len(labels) - 1) / 2) for level in dots.epsilon]
            look = look_of(lines, lines[i]) | {"linestyle": ""}
            panel.errorbar(at, dots.difference, dots.sd.fillna(0), **look, elinewidth=0.8, capsize=2, label=label)
        panel.axhline(0, color=GREY, linewidth=0.9)
        panel.margins(y=0.15)
        panel.set_xticks(range(len(levels)), levels)
        panel.set(title=PANELS[split].name, xlabel="ε claimed per record")
        panel.tick_params(labelleft=True)
    name_rows(axes, "with less without residual (points)")
    legend(figure)
    return figure, data[data.split.isin(splits)]


def _differences(runs: Sequence[MethodRow]) -> Table:
    """Accuracy with less without residual, a row per split and pair of otherwise equal runs: mean `difference` and `sd`
    over common seeds (NaN for one), whose number is `seeds`."""
    lines = []
    for v in (v for v in runs if v.parameters.get("residual") is True):
        without = {**v.parameters, "residual": False}
        for other in (w for w in runs if (w.method, w.epsilon) == (v.method, v.epsilon) and w.parameters == without):
            for split in (s for s in SPLITS if s in v.scores and s in other.scores):
                mine, theirs = v.scores[split].seeds, other.scores[split].seeds
                values = [x - theirs[seed] for seed, x in mine.items() if seed in theirs]
                setting = v.setting.replace(", with residual", "").replace("with residual", "") or v.name
                epsilon = f"{v.epsilon:g}" if v.private else "none"
                spread = stdev(values) if len(values) > 1 else math.nan
                if values:
                    lines.append((v.method, setting, epsilon, split, mean(values), spread, len(values)))
    return Table(lines, columns=["method", "setting", "epsilon", "split", "difference", "sd", "seeds"])
