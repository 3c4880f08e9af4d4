"""DP-FPL's ablations over rank, noise and residual (Figures 2, 4, 5 and 6): ours in one row, the paper's below.

The figures print no numbers. The paper's points are taken from its Tables 6 to 11, which lack the full rank; the
figures have it, and so do ours. We compare three things at the settings that both sides have: in how many the residual
raises accuracy, how often a smaller epsilon lowers it, and the order of ranks at the same epsilon.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import pandas as pd

from fedaudit.reports.beside_dpfpl import Agreement, scale
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures.drawing import LOW, Plot, grid, legend, look_of
from fedaudit.reports.formats import p_value, tau
from fedaudit.reports.papers.common import EvidenceByTask, drowned_note, only_task, write_figure
from fedaudit.reports.printed_table import agreed_in_words, printed, seeds_of, within_levels
from fedaudit.reports.rows import variants
from fedaudit.reports.templates import Write, render
from fedaudit.terms.splits import LOCAL, NEIGHBOUR

SPLITS = {LOCAL: "local classes", NEIGHBOUR: "neighbour classes"}
COLUMNS = "whose epsilon rank residual split accuracy down up".split()
SETTING = ["epsilon", "rank", "residual"]
SIDES = ("ours", "the paper")  # values of the column "whose"


def build(dataset: str, number: int, evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figureN.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns in words
    how far the order of ranks, with and without residual, agrees with the paper's.

    `evidence` holds, by the name of the one task, runs of DP-FPL: one per rank, residual, epsilon and seed. ValueError:
    there are no or several tasks, or fewer than two settings.
    """
    task, runs = only_task(evidence)
    our_points = ours(runs)
    if our_points[SETTING].drop_duplicates().shape[0] < 2:
        raise ValueError(f"task {task!r} must have accuracies of several settings of DP-FPL")
    points = pd.concat([our_points, paper(dataset)], ignore_index=True)
    title = f"DP-FPL, Figure {number}: rank, noise and residual"
    drawing = write_figure(f"figure{number}", f"{title}, ours and the paper's on {dataset}", write, plot, points)
    methods = variants(runs)
    write("index.html", render("ablation.html", {
        "title": title, "dataset": dataset, "number": number, "drawing": drawing, "rows": _rows(points),
        "seeds": seeds_of(evidence), "splits": SPLITS, "readings": readings(points),
        "scale": scale(methods, dirichlet=False), "drowned": "".join(drowned_note(methods)),
    }))  # fmt: skip
    return agreed_in_words(orders_of(points))


@functools.cache
def paper(dataset: str) -> pd.DataFrame:
    """The accuracies that Tables 6 to 11 print for a data set, in percent, a row per setting and split, with their
    spread as lengths `down` and `up` of error bars; the column `whose` is "the paper"."""
    rows = [
        ("the paper", math.inf if r["epsilon"] == "none" else float(r["epsilon"]), int(r["rank"]),
         r["residual"] == "yes", {"neighbor": NEIGHBOUR}.get(r["split"], r["split"]), float(r["mean"]),
         float(r["std"]), float(r["std"]))
        for number in range(6, 12)
        for r in printed(f"dpfpl_table{number}").to_dict("records")
        if r["dataset"] == dataset
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def ours(runs: Sequence[Evidence]) -> pd.DataFrame:
    """Our accuracies of DP-FPL in percent, a row per setting and split, the mean over seeds; the column `whose` is
    "ours". `down` and `up` are the lengths of the error bar: one standard deviation over seeds, or the interval of a
    single seed."""
    rows = [
        ("ours", v.epsilon, v.parameters["rank"], v.parameters["residual"], split, v.scores[split].value,
         *v.scores[split].reach)
        for v in variants(runs)
        for split in SPLITS
        if v.method == "dpfpl" and split in v.scores
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def readings(points: pd.DataFrame) -> list[str]:
    """Compare our points with the paper's: one sentence per split, for splits where both sides share settings."""
    orders, sentences = orders_of(points), []
    for name, both in _shared_settings(points).items():
        residuals, steps = [_residual_helps(side) for side in both], [_noise_costs(side) for side in both]
        sentences.append(
            f"{name}: the residual raises accuracy in {residuals[0]} settings (the paper: {residuals[1]}); the next "
            f"smaller ε lowers it in {steps[0]} steps (the paper: {steps[1]}); order of ranks, with and without "
            f"residual, at the same ε: {_order(orders[name])}"
        )
    return sentences


def orders_of(points: pd.DataFrame) -> dict[str, Agreement]:
    """By a split's name in words: Kendall's tau-b between our order of ranks (with and without residual) and the
    paper's, the mean over epsilons. Splits with fewer than two shared settings are left out."""
    agreements = {}
    for name, both in _shared_settings(points).items():
        ours, theirs = (
            {(f"rank {rank}, {residual}", f"{epsilon:g}"): v for (epsilon, rank, residual), v in side.items()}
            for side in both
        )
        agreements[name] = within_levels(ours, theirs)
    return agreements


def _order(a: Agreement) -> str:
    if a.tau is None:
        return "there is none"
    return f"τ {tau(a.tau)}" + ("" if a.p is None else f", p {p_value(a.p)}")


def _shared_settings(points: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """By a split's name in words: our accuracies and the paper's at the settings that both have, indexed by epsilon,
    rank and residual. Splits with fewer than two such settings are left out."""
    by_split = {}
    for split, name in SPLITS.items():
        mine, theirs = (
            points[(points.whose == side) & (points.split == split)].set_index(SETTING).accuracy for side in SIDES
        )
        shared = sorted(set(mine.index) & set(theirs.index))
        if len(shared) > 1:
            by_split[name] = mine.loc[shared], theirs.loc[shared]
    return by_split


def _residual_helps(accuracies: pd.Series) -> str:
    """Count the pairs of settings, alike but for the residual, in which the residual raises accuracy: "3 of 4"."""
    pairs = [(v, accuracies[epsilon, rank, False]) for (epsilon, rank, residual), v in accuracies.items()
             if residual and (epsilon, rank, False) in accuracies.index]  # fmt: skip
    return _count(a > b for a, b in pairs)


def _noise_costs(accuracies: pd.Series) -> str:
    """Count the steps to the next smaller epsilon, at the same rank and residual, in which accuracy falls: "3 of 4"."""
    lines: dict[tuple[int, bool], list[tuple[float, float]]] = {}
    for (epsilon, rank, residual), v in accuracies.items():
        lines.setdefault((rank, residual), []).append((epsilon, v))
    steps = [step for line in lines.values() for step in itertools.pairwise(sorted(line))]
    return _count(less < more for (_, less), (_, more) in steps)


def _count(outcomes: Iterable[bool]) -> str:
    outcomes = list(outcomes)
    return f"{sum(outcomes)} of {len(outcomes)}"


def _rows(points: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of the page's table, one per setting: epsilon, rank and residual in words, and `cells`: per split our
    accuracy and the paper's, None where there is none."""
    accuracies = points.set_index(["whose", *SETTING, "split"]).accuracy.to_dict()
    settings = sorted(
        set(map(tuple, points[SETTING].to_numpy().tolist())), key=lambda p: (-p[0], p[1] or math.inf, not p[2])
    )
    return [
        {
            "epsilon": "none" if math.isinf(epsilon) else f"{epsilon:g}",
            "rank": int(rank) or "full",
            "residual": "yes" if residual else "no",
            "cells": [accuracies.get((side, epsilon, rank, residual, s)) for s in SPLITS for side in SIDES],
        }
        for epsilon, rank, residual in settings
    ]


def plot(points: pd.DataFrame) -> Plot:
    """Draw accuracy against rank, and return the figure with its data: a row of panels for ours and one for the
    paper's, a column per split with and without residual, a line per epsilon."""
    columns = list(itertools.product(SPLITS, (True, False)))
    levels = sorted(points.epsilon.unique(), reverse=True)
    lines = ["DP-FPL, no noise" if math.isinf(level) else f"DP-FPL, ε {level:g}" for level in levels]
    ranks = sorted(points["rank"].unique(), key=lambda rank: rank or math.inf)
    figure, axes = grid(2, len(columns), height=2.3, margins=LOW, sharey="row")
    for row, side in zip(axes, SIDES, strict=True):
        for panel, (split, residual) in zip(row, columns, strict=True):
            subset = points[(points.whose == side) & (points.split == split) & (points.residual == residual)]
            for i, level in enumerate(levels):
                line = subset[subset.epsilon == level].sort_values("rank", key=lambda column: column.map(ranks.index))
                look = look_of(lines, lines[i]) | {"label": lines[i].partition(", ")[2]}
                x = line["rank"].map(ranks.index)
                panel.errorbar(x, line.accuracy, [line.down, line.up], **look, elinewidth=0.7)
            panel.set_xticks(range(len(ranks)), [str(rank or "full") for rank in ranks])
            panel.set_title(f"{side}: {split}, {'with' if residual else 'without'} residual", fontsize=8)
            panel.set_xlabel("rank")
        row[0].set_ylabel("accuracy (%)")
    legend(figure)
    return figure, points
