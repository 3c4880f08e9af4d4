"""DP-FPL: Tables 2 to 4 and 6 to 11, and Figures 2 and 4 to 6, our accuracies by task beside the printed ones.

Tran et al., ICLR 2025. Tables 2 to 4 compare four methods at six budgets, Tables 6 to 11 ranks of DP-FPL with and
without residual, a budget each; the figures draw these ranks (`ablation`). Our numbers are compared with the mean over
the paper's data sets: drawn symbols are none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from reports.beside_dpfpl import DROWNED, EPSILONS, METHODS, PLACES, scale
from reports.evidence import Evidence, check
from reports.paper_items import PaperItem
from reports.papers import ablation
from reports.printed_table import Column, OurNumber, Row, Table, builder, over_seeds, printed, seeds_of
from reports.rows import MethodRow, closest_to_paper, variants

DATASETS = {2: "Caltech101", 4: "OxfordPets", 5: "OxfordFlowers", 6: "Food101"}  # by the figure that shows it


class Items:
    REAL = {  # noqa: RUF012, read once
        "Caltech101": ("--dataset=caltech101",),
        "OxfordPets": ("--dataset=oxford_pets",),
        "OxfordFlowers": ("--dataset=oxford_flowers",),
        "Food101": ("--dataset=food101",),
    }
    COMPARISON = partial(
        PaperItem, preset="dpfpl-tables", tasks={"symbols": ("--task=glyphs",), "digits": ("--task=digits",)},
        scale="dpfpl-paper", real=REAL,
    )  # fmt: skip
    ABLATION = partial(
        PaperItem, preset="dpfpl-ablation", tasks={"symbols": ("--task=glyphs",)}, scale="dpfpl-paper", real=REAL
    )
    SIZES = {f"{n} clients": (f"--clients={n}",) for n in (25, 50)}  # noqa: RUF012
    FIGURE = "rank, noise and residual, beside what the paper prints of"

    table2 = COMPARISON(
        "accuracy on clients' own classes, four methods at six budgets",
        tiny="--seeds 1 --rounds 1 --clients 2 --shots 4 --epsilon none,0.1",
    )
    table3 = COMPARISON("accuracy on the neighbours' classes, four methods at six budgets")
    table4 = PaperItem(
        "accuracy of 25 and of 50 clients with a Dirichlet split, four methods at six budgets", preset="dpfpl-table4",
        tasks=SIZES, scale="dpfpl-paper-cifar100", real=SIZES,
        tiny="--seeds 1 --rounds 1 --train 16 --test 1 --epsilon none --method promptfl,dpfpl",
    )  # fmt: skip
    table6 = ABLATION(
        "rank and residual without noise", tiny="--seeds 1 --rounds 1 --clients 2 --train 4 --test 1 --rank 1,8"
    )
    table7 = ABLATION("rank and residual at ε 0.4")
    table8 = ABLATION("rank and residual at ε 0.2")
    table9 = ABLATION("rank and residual at ε 0.1")
    table10 = ABLATION("rank and residual at ε 0.05")
    table11 = ABLATION("rank and residual at ε 0.01")
    figure2 = ABLATION(f"{FIGURE} Caltech101", real={"Caltech101": REAL["Caltech101"]})
    figure4 = ABLATION(f"{FIGURE} OxfordPets", real={"OxfordPets": REAL["OxfordPets"]})
    figure5 = ABLATION(f"{FIGURE} OxfordFlowers", real={"OxfordFlowers": REAL["OxfordFlowers"]})
    figure6 = ABLATION(f"{FIGURE} Food101", real={"Food101": REAL["Food101"]})


NAMES = {label: name for name, label in METHODS.items()}
SHORT = {OWN_TEST: "own tests", OVERALL: "all records"}  # of PLACES
SPLITS = {"local": LOCAL, "neighbor": NEIGHBOUR}  # as printed, and as ours are called


def methods(number: int, split: str, evidence: Mapping[str, Sequence[Evidence]]) -> Table:
    """Table 2 (split local) or 3 (split neighbour): a column per task, a row per method and budget."""
    paper, spreads = _printed(number, lambda row: (row.method, level(row.epsilon)), lambda row: row.dataset)
    ours = {}
    for task, found in _variants(evidence).items():
        rows = [v for v in closest_to_paper(found) if v.method in NAMES and v.epsilon in EPSILONS and split in v.scores]
        cells = {(NAMES[v.method], _level(v)): over_seeds(v.scores[split]) for v in rows}
        ours[task] = Column(cells, (task,) if task in paper else tuple(paper))
    return _table(number, ours, paper, spreads, evidence)


def clients(number: int, evidence: Mapping[str, Sequence[Evidence]]) -> Table:
    """Table 4: a column per number of clients and kind of test set; the paper does not say which kind is its own."""
    paper, spreads = _printed(
        number, lambda row: (row.method, level(row.epsilon)), lambda row: f"{row.clients} clients"
    )
    ours = {}
    for task, found in _variants(evidence).items():
        rows = [v for v in closest_to_paper(found) if v.method in NAMES and v.epsilon in EPSILONS]
        for split, place in PLACES.items():
            cells = {(NAMES[v.method], _level(v)): over_seeds(v.scores[split]) for v in rows if split in v.scores}
            said = f"accuracy on {place}; the paper does not say which of the two its own is"
            ours[f"{task}, {SHORT[split]}"] = Column(cells, (task,) if task in paper else tuple(paper), said)
    return _table(number, ours, paper, spreads, evidence)


def ranks(number: int, evidence: Mapping[str, Sequence[Evidence]]) -> Table:
    """Tables 6 to 11: a column per task and split, a row per rank with and without residual, ours full rank too."""
    paper, spreads = _printed(
        number,
        lambda row: (setting(row.rank, residual=row.residual == "yes"), ""),
        lambda row: f"{row.dataset}, {SPLITS[row.split]}",
    )
    epsilon = next(iter(set(printed(f"dpfpl_table{number}").epsilon)))
    ours = {}
    for task, found in _variants(evidence).items():
        rows = [v for v in found if v.method == "dpfpl" and v.epsilon == _number(epsilon)]
        for split in SPLITS.values():
            cells: dict[Row, OurNumber] = {}
            for v in sorted(rows, key=lambda v: (not v.parameters["residual"], v.parameters["rank"] or math.inf)):
                if split in v.scores:
                    name = setting(v.parameters["rank"], residual=v.parameters["residual"])
                    cells[name, ""] = over_seeds(v.scores[split])
            own = f"{task}, {split}"
            ours[own] = Column(cells, (own,) if own in paper else tuple(n for n in paper if n.endswith(f", {split}")))
    return _table(number, ours, paper, spreads, evidence, rows_are="DP-FPL with")


def level(epsilon: str) -> str:
    """A printed budget as rows call it."""
    return "no noise" if epsilon == "none" else f"ε {float(epsilon):g}"


def setting(rank: str | int, *, residual: bool) -> str:
    """A rank with or without residual as rows call it; rank 0 is the full one."""
    return f"{f'rank {rank}' if int(rank) else 'full rank'}, {'residual' if residual else 'no residual'}"


def _level(v: MethodRow) -> str:
    return level("none" if math.isinf(v.epsilon) else str(v.epsilon))


def _number(epsilon: str) -> float:
    return math.inf if epsilon == "none" else float(epsilon)


def _variants(evidence: Mapping[str, Sequence[Evidence]]) -> dict[str, list[MethodRow]]:
    for cells in evidence.values():
        check(cells)
    return {task: variants(cells) for task, cells in evidence.items()}


Printed = dict[str, dict[Row, str]]


def _printed(number: int, row: Callable[[Any], Row], column: Callable[[Any], str]) -> tuple[Printed, Printed]:
    """The printed means, and their spreads, by column and row."""
    means: Printed = {}
    spreads: Printed = {}
    for one in printed(f"dpfpl_table{number}").itertuples():
        means.setdefault(column(one), {})[row(one)] = str(one.mean)
        spreads.setdefault(column(one), {})[row(one)] = str(one.std)
    return means, spreads


def _table(
    number: int,
    ours: Mapping[str, Column],
    paper: Printed,
    spreads: Printed,
    evidence: Mapping[str, Sequence[Evidence]],
    *,
    rows_are: str = "Method",
) -> Table:
    found = [v for rows in _variants(evidence).values() for v in rows]
    notes = [DROWNED] if any((v.ratio or 0) > 10 for v in found) else []
    about = scale(found, dirichlet=number == 4) if found else ""
    return Table(
        f"dpfpl:table{number}", ours, paper, about, sentences=notes, seeds=seeds_of(evidence), spreads=spreads,
        rows_are=rows_are,
    )  # fmt: skip


table2, table3, table4 = builder(methods, 2, LOCAL), builder(methods, 3, NEIGHBOUR), builder(clients, 4)
table6, table7, table8, table9, table10, table11 = (builder(ranks, number) for number in range(6, 12))
figure2, figure4, figure5, figure6 = (partial(ablation.build, name, number) for number, name in DATASETS.items())
