"""DP-FPL's ablations over rank, noise and residual (Figures 2, 4, 5 and 6): ours in one row, the paper's below.

The paper's points are those of its Tables 6 to 11, which have no full rank; the figures, which print no numbers, have
it, and so have ours. What is compared is the shape, settings as in the tables: where the residual helps, where less
epsilon costs accuracy, and the order of ranks with and without residual at the same epsilon, as the tables compare it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedaudit.terms.splits import LOCAL, NEIGHBOUR
from reports.beside_dpfpl import DROWNED, Agreement, scale
from reports.evidence import Evidence, check
from reports.figures.drawing import COLOURS, LINES, LOW, MARKERS, Plot, grid, legend, printed, styled
from reports.formats import p_value, tau
from reports.printed_table import agreed_in_words, within_levels
from reports.rows import variants
from reports.templates import Write, render, write_drawings

SPLITS = {LOCAL: "local classes", NEIGHBOUR: "neighbour classes"}
COLUMNS = "whose epsilon rank residual split accuracy down up".split()
PLACE = ["epsilon", "rank", "residual"]


def build(dataset: str, number: int, evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figureN.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns how far
    ranks, with and without residual, come in the paper's order.

    `evidence` holds, by task, cells of DP-FPL: one per rank, residual, epsilon and seed. ValueError: no task, or one
    without two settings.
    """
    if not evidence:
        raise ValueError("evidence is empty; the figure needs at least one task")
    for task, cells in evidence.items():
        check(cells)
        mine = ours(cells)
        if mine[PLACE].drop_duplicates().shape[0] < 2:
            raise ValueError(f"task {task!r} must have accuracies of several settings of DP-FPL")
    points = pd.concat([mine, paper(dataset)], ignore_index=True)
    title = f"DP-FPL, Figure {number}: rank, noise and residual"
    with styled():
        drawing = printed(f"figure{number}", f"{title}, ours and the paper's on {dataset}", plot(points))
    assert drawing is not None
    write_drawings([drawing], write, folder="")
    rows, found = _rows(points), [v for own in evidence.values() for v in variants(own)]
    seeds = sorted({e.seed for own in evidence.values() for e in own})
    write("index.html", render("ablation.html", {
        "title": title, "dataset": dataset, "number": number, "drawing": drawing, "rows": rows, "seeds": seeds,
        "splits": SPLITS, "readings": readings(points), "scale": scale(found, dirichlet=False),
        "drowned": DROWNED if any((v.ratio or 0) > 10 for v in found) else "",
    }))  # fmt: skip
    return agreed_in_words(orders_of(points))


@functools.cache
def paper(dataset: str) -> pd.DataFrame:
    """The printed accuracies on a data set, with their printed spread."""
    files = (Path(__file__).with_name(f"dpfpl_table{i}.csv") for i in range(6, 12))
    tables = [pd.read_csv(file, dtype={"epsilon": str}, keep_default_na=False) for file in files]
    rows = [
        ("the paper", math.inf if r["epsilon"] == "none" else float(r["epsilon"]), int(r["rank"]),
         r["residual"] == "yes", {"neighbor": NEIGHBOUR}.get(r["split"], r["split"]), float(r["mean"]),
         float(r["std"]), float(r["std"]))
        for r in pd.concat(tables).to_dict("records")
        if r["dataset"] == dataset
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def ours(cells: Sequence[Evidence]) -> pd.DataFrame:
    """Accuracies of DP-FPL's settings; down and up to the end of a bar, as in all reports."""
    rows = [
        ("ours", v.epsilon, v.parameters["rank"], v.parameters["residual"], split, v.scores[split].value,
         *v.scores[split].reach)
        for v in variants(cells)
        for split in SPLITS
        if v.method == "dpfpl" and split in v.scores
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def readings(points: pd.DataFrame) -> list[str]:
    """How far the paper's shape is found here, by split."""
    orders, found = orders_of(points), []
    for name, both in _both(points).items():
        helps, steps = [_helps(values) for values in both], [_costs(values) for values in both]
        found.append(
            f"{name}: the residual raises accuracy in {helps[0]} settings (the paper: {helps[1]}); the next smaller ε "
            f"lowers it in {steps[0]} steps (the paper: {steps[1]}); order of ranks, with and without residual, at the "
            f"same ε: {_order(orders[name])}"
        )
    return found


def orders_of(points: pd.DataFrame) -> dict[str, Agreement]:
    """By what a split is called the mean over epsilons of Kendall's tau-b of ours with the paper's."""
    found = {}
    for name, both in _both(points).items():
        ours, theirs = (
            {(f"rank {rank}, {residual}", f"{epsilon:g}"): v for (epsilon, rank, residual), v in side.items()}
            for side in both
        )
        found[name] = within_levels(ours, theirs)
    return found


def _order(a: Agreement) -> str:
    if a.tau is None:
        return "there is none"
    return f"τ {tau(a.tau)}" + ("" if a.p is None else f", p {p_value(a.p)}")


def _both(points: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """By what a split is called ours and the paper's accuracies of the settings that both have, two at least."""
    found = {}
    for split, name in SPLITS.items():
        mine, theirs = (
            points[(points.whose == whose) & (points.split == split)].set_index(PLACE).accuracy
            for whose in ("ours", "the paper")
        )
        same = sorted(set(mine.index) & set(theirs.index))
        if len(same) > 1:
            found[name] = mine.loc[same], theirs.loc[same]
    return found


def _helps(values: pd.Series) -> str:
    """In how many pairs of settings that differ in the residual alone it raises accuracy."""
    pairs = [(v, values[epsilon, rank, False]) for (epsilon, rank, residual), v in values.items()
             if residual and (epsilon, rank, False) in values.index]  # fmt: skip
    return _share(a > b for a, b in pairs)


def _costs(values: pd.Series) -> str:
    """In how many steps to the next smaller epsilon, all else equal, accuracy falls."""
    lines: dict[tuple[int, bool], list[tuple[float, float]]] = {}
    for (epsilon, rank, residual), v in values.items():
        lines.setdefault((rank, residual), []).append((epsilon, v))
    steps = [step for line in lines.values() for step in itertools.pairwise(sorted(line))]
    return _share(less < more for (_, less), (_, more) in steps)


def _share(right: Iterable[bool]) -> str:
    found = list(right)
    return f"{sum(found)} of {len(found)}"


def _rows(points: pd.DataFrame) -> list[dict[str, object]]:
    """A row per setting: by whose and split the accuracy, None where there is none."""
    cells = points.set_index(["whose", *PLACE, "split"]).accuracy.to_dict()
    places = sorted(
        set(map(tuple, points[PLACE].to_numpy().tolist())), key=lambda p: (-p[0], p[1] or math.inf, not p[2])
    )
    return [
        {
            "epsilon": "none" if math.isinf(epsilon) else f"{epsilon:g}",
            "rank": int(rank) or "full",
            "residual": "yes" if residual else "no",
            "cells": [
                cells.get((whose, epsilon, rank, residual, s)) for s in SPLITS for whose in ("ours", "the paper")
            ],
        }
        for epsilon, rank, residual in places
    ]


def plot(points: pd.DataFrame) -> Plot:
    """Accuracy against rank: a row of panels for ours and for the paper's, a column per split with and without
    residual, a line per epsilon."""
    columns = list(itertools.product(SPLITS, (True, False)))
    levels = sorted(points.epsilon.unique(), reverse=True)
    ranks = sorted(points["rank"].unique(), key=lambda rank: rank or math.inf)
    figure, axes = grid(2, len(columns), height=2.3, margins=LOW, sharey="row")
    for row, whose in zip(axes, ("ours", "the paper"), strict=True):
        for panel, (split, residual) in zip(row, columns, strict=True):
            mine = points[(points.whose == whose) & (points.split == split) & (points.residual == residual)]
            for i, level in enumerate(levels):
                line = mine[mine.epsilon == level].sort_values("rank", key=lambda column: column.map(ranks.index))
                look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i], "linestyle": LINES[i % len(LINES)]}
                name = "no noise" if math.isinf(level) else f"ε {level:g}"
                bars = [line.down, line.up]
                panel.errorbar(
                    [ranks.index(r) for r in line["rank"]], line.accuracy, bars, **look, elinewidth=0.7, label=name
                )
            panel.set_xticks(range(len(ranks)), [str(rank or "full") for rank in ranks])
            panel.set_title(f"{whose}: {split}, {'with' if residual else 'without'} residual", fontsize=8)
            panel.set_xlabel("rank")
        row[0].set_ylabel("accuracy (%)")
    legend(figure)
    return figure, points
