"""DP-FPL: Tables 2 to 4 and 6 to 11, and Figures 2 and 4 to 6, our accuracies by task beside the printed ones.

Tran et al., ICLR 2025. Tables 2 to 4 compare four methods at six privacy budgets. Tables 6 to 11 have one budget each
and compare ranks of DP-FPL, with and without residual; the figures draw the same (`ablation`). A task that is not one
of the paper's data sets, such as drawn symbols, is compared with the mean over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from fedaudit.reports.beside_dpfpl import EPSILONS, METHODS, PLACES, scale
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers import ablation
from fedaudit.reports.papers.common import (
    EvidenceByTask,
    PrintedCells,
    drowned_note,
    means_and_spreads,
    variants_by_task,
)
from fedaudit.reports.printed_table import Column, OurNumber, Row, Table, builder, over_seeds, printed, seeds_of
from fedaudit.reports.rows import MethodRow, closest_to_paper
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST

DATASETS = {2: "Caltech101", 4: "OxfordPets", 5: "OxfordFlowers", 6: "Food101"}  # by the number of the figure


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
    TINY = "--seeds 1 --rounds 1 --clients 2 --train 4 --test 1"

    @staticmethod
    def at_one(epsilon: str, shows: str, item: Any = ABLATION, tiny: str = TINY) -> PaperItem:
        """A table of DP-FPL's ranks, with and without residual, at one budget; tests take two ranks."""
        every, few = (
            ",".join(
                f"dpfpl{residual}:rank={rank}:epsilon={epsilon}"
                for residual in ("", ":residual=false")
                for rank in ranks
            )
            for ranks in ((1, 2, 4, 8, 0), (1, 8))
        )
        made: PaperItem = item(shows, method=every, tiny=f"{tiny} --method {few}")
        return made

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
    table6 = at_one("none", "rank and residual without noise")
    table7 = at_one("0.4", "rank and residual at ε 0.4")
    table8 = at_one("0.2", "rank and residual at ε 0.2")
    table9 = at_one("0.1", "rank and residual at ε 0.1")
    table10 = at_one("0.05", "rank and residual at ε 0.05")
    table11 = at_one("0.01", "rank and residual at ε 0.01")
    figure2 = ABLATION(
        f"{FIGURE} Caltech101",
        real={"Caltech101": REAL["Caltech101"]},
        tiny=f"{TINY} --rank 1,8 --epsilon none,0.1",
    )
    figure4 = ABLATION(f"{FIGURE} OxfordPets", real={"OxfordPets": REAL["OxfordPets"]})
    figure5 = ABLATION(f"{FIGURE} OxfordFlowers", real={"OxfordFlowers": REAL["OxfordFlowers"]})
    figure6 = ABLATION(f"{FIGURE} Food101", real={"Food101": REAL["Food101"]})


NAMES = {label: name for name, label in METHODS.items()}
SHORT = {OWN_TEST: "own tests", OVERALL: "all records"}  # short names of `PLACES`, for headings
SPLITS = {"local": LOCAL, "neighbor": NEIGHBOUR}  # our splits by their printed names


def methods(number: int, split: str, evidence: EvidenceByTask) -> Table:
    """Table 2 (split local) or 3 (split neighbour): accuracies in percent, a column per task, a row per method and
    budget (epsilon)."""
    paper, spreads = means_and_spreads(f"dpfpl_table{number}", itemgetter("dataset"), _method_and_level)
    ours = {task: Column(_cells(rows, split), (task,) if task in paper else tuple(paper))
            for task, rows in variants_by_task(evidence).items()}  # fmt: skip
    return _table(number, evidence, ours, paper, spreads=spreads)


def clients(number: int, evidence: EvidenceByTask) -> Table:
    """Table 4: accuracies in percent, a row per method and budget (epsilon), a column per number of clients and kind of
    test set, as the paper does not say which kind it used."""
    paper, spreads = means_and_spreads(
        f"dpfpl_table{number}", lambda row: f"{row['clients']} clients", _method_and_level
    )
    ours = {}
    for task, rows in variants_by_task(evidence).items():
        for split, place in PLACES.items():
            quantity = f"accuracy on {place}; the paper does not say which of the two its own is"
            against = (task,) if task in paper else tuple(paper)
            ours[f"{task}, {SHORT[split]}"] = Column(_cells(rows, split), against, quantity)
    return _table(number, evidence, ours, paper, spreads=spreads)


def _cells(rows: list[MethodRow], split: str) -> dict[Row, OurNumber]:
    """Accuracies on a split, {(method, budget): number}, of those methods and budgets (epsilons) that the paper has. Of
    several settings of a method the one closest to the paper's is taken."""
    return {
        (NAMES[v.method], _level(v)): over_seeds(v.scores[split])
        for v in closest_to_paper(rows)
        if v.method in NAMES and v.epsilon in EPSILONS and split in v.scores
    }


def ranks(number: int, evidence: EvidenceByTask) -> Table:
    """Tables 6 to 11: accuracies of DP-FPL at one budget, a column per task and split, a row per rank with and without
    residual. Ours have the full rank too."""
    paper, spreads = means_and_spreads(
        f"dpfpl_table{number}",
        lambda row: f"{row['dataset']}, {SPLITS[row['split']]}",
        lambda row: (setting(row["rank"], residual=row["residual"] == "yes"), ""),
    )
    epsilon = next(iter(set(printed(f"dpfpl_table{number}").epsilon)))
    ours = {}
    for task, methods in variants_by_task(evidence).items():
        rows = [v for v in methods if v.method == "dpfpl" and v.epsilon == _number(epsilon)]
        rows.sort(key=lambda v: (not v.parameters["residual"], v.parameters["rank"] or math.inf))
        for split in SPLITS.values():
            cells = {(setting(v.parameters["rank"], residual=v.parameters["residual"]), ""): over_seeds(v.scores[split])
                     for v in rows if split in v.scores}  # fmt: skip
            name = f"{task}, {split}"
            against = (name,) if name in paper else tuple(column for column in paper if column.endswith(f", {split}"))
            ours[name] = Column(cells, against)
    return _table(number, evidence, ours, paper, spreads=spreads, rows_are="DP-FPL with")


def level(epsilon: str) -> str:
    """The row's name for a printed budget: "no noise" for "none", else such as "ε 0.4"."""
    return "no noise" if epsilon == "none" else f"ε {float(epsilon):g}"


def setting(rank: str | int, *, residual: bool) -> str:
    """The row's name for a rank with or without residual, such as "rank 8, residual"; rank 0 is the full rank."""
    return f"{f'rank {rank}' if int(rank) else 'full rank'}, {'residual' if residual else 'no residual'}"


def _method_and_level(row: Mapping[str, str]) -> Row:
    return row["method"], level(row["epsilon"])


def _level(v: MethodRow) -> str:
    return level("none" if math.isinf(v.epsilon) else str(v.epsilon))


def _number(epsilon: str) -> float:
    return math.inf if epsilon == "none" else float(epsilon)


def _table(
    number: int, evidence: EvidenceByTask, ours: Mapping[str, Column], paper: PrintedCells, **more: Any
) -> Table:
    """The paper's Table `number`: our columns, the `paper`'s as printed; `more` are further fields of `Table`."""
    methods = [v for rows in variants_by_task(evidence).values() for v in rows]
    about = scale(methods, dirichlet=number == 4) if methods else ""
    more |= {"sentences": drowned_note(methods), "seeds": seeds_of(evidence)}
    return Table(f"dpfpl:table{number}", ours, paper, about, **more)


table2, table3, table4 = builder(methods, 2, LOCAL), builder(methods, 3, NEIGHBOUR), builder(clients, 4)
table6, table7, table8, table9, table10, table11 = (builder(ranks, number) for number in range(6, 12))
figure2, figure4, figure5, figure6 = (partial(ablation.build, name, number) for number, name in DATASETS.items())
