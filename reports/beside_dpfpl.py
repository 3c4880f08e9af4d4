"""Our accuracies beside those that DP-FPL's Tables 2 and 3 print (of a Dirichlet split: Table 4), and whether methods
come in the same order.

The order is compared by Kendall's tau-b, among the methods at one epsilon and over all cells. Its p-value is exact: the
share of all ways to relabel our methods, the same way at every epsilon, that agree with the paper at least as well.
With 4 methods there are 24 of them, so that p is at least 0.042.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from reports.formats import listed, tau
from reports.rows import MethodRow, as_printed

METHODS = {"PromptFL": "promptfl", "FedOTP": "fedotp", "FedPGP": "fedpgp", "DP-FPL": "dpfpl"}
EPSILONS = (math.inf, 0.4, 0.2, 0.1, 0.05, 0.01)
SPLITS: dict[str, int] = {LOCAL: 2, NEIGHBOUR: 3}  # the paper's table of each
# of a Dirichlet split; the paper does not say which of the two its Table 4 is of
TEST_SETS: dict[str, int] = {OWN_TEST: 4, OVERALL: 4}
MEAN = "mean"  # over what the paper's columns differ in
LEVEL = 0.05
CHUNK = 4096
DROWNED = "Where the noise is much longer than the signal, the order of our methods is mostly chance."
PLACES = {OWN_TEST: "the clients' own test sets", OVERALL: "the whole test set"}

Cells = Mapping[tuple[str, Any], float]  # accuracy by method and epsilon, or by what else rows and levels are


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b of `n` cells of `methods` methods; None where one side does not differ at all. `seeds` are those
    of each seed alone."""

    tau: float | None
    p: float | None
    n: int
    methods: int
    seeds: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Beside:
    """What the section shows."""

    where: str  # the paper's tables, in words
    by: str  # what its columns differ in
    rows: list[dict[str, Any]]  # an epsilon and method each: ours and the paper's, by split
    columns: list[str]
    orders: list[dict[str, Any]]  # by split: agreements at every epsilon and over all cells, by data set
    sentences: list[str]
    scale: str


def table(number: int) -> pd.DataFrame:
    """One of DP-FPL's Tables 2 to 11 as printed, epsilon as a number; ValueError for another."""
    path = Path(__file__).parent / "papers" / f"dpfpl_table{number}.csv"
    if not path.exists():
        raise ValueError(f"number must be that of a transcribed table (2 to 11), not {number}")
    found = pd.read_csv(path, dtype={"epsilon": str, "rank": str, "residual": str}, keep_default_na=False)
    if "epsilon" in found:
        found["epsilon"] = found.epsilon.replace("none", "inf").astype(float)
        found["method"] = found.method.map(METHODS)
        found["split"] = found.split.replace("neighbor", NEIGHBOUR)
    return found


def printed(split: str) -> dict[str, dict[tuple[str, float], float]]:
    """The paper's accuracies by data set, or by number of clients, and their mean, by method and epsilon."""
    rows = table((SPLITS | TEST_SETS)[split])
    columns = rows.dataset if split in SPLITS else rows.clients.map("{} clients".format)
    found = {
        str(name): {(r["method"], r["epsilon"]): float(r["mean"]) for r in part.to_dict("records")}
        for name, part in rows.groupby(columns, sort=False)
    }
    average = rows.groupby(["method", "epsilon"])["mean"].mean()
    return {MEAN: {key: float(value) for key, value in average.items()}, **found}


def beside(found: Sequence[MethodRow]) -> Beside | None:
    """None unless two of the paper's methods stand at one of its epsilons."""
    ours = [v for v in as_printed(found) if v.method in METHODS.values() and v.epsilon in EPSILONS]
    levels = [e for e in EPSILONS if sum(v.epsilon == e for v in ours) > 1]
    dirichlet = all(v.evidence[0].setting.get("task", {}).get("partition") == "dirichlet" for v in ours)
    tables = TEST_SETS if dirichlet else SPLITS
    splits = [split for split in tables if ours and all(split in v.scores for v in ours)]
    if not levels or not splits:
        return None
    ours = [v for v in ours if v.epsilon in levels]
    paper = {split: printed(split) for split in splits}
    order = sorted(ours, key=lambda v: (EPSILONS.index(v.epsilon), list(METHODS.values()).index(v.method)))
    rows = [
        {
            "noise": v.noise,
            "name": v.name,
            "new": i == 0 or order[i - 1].epsilon != v.epsilon,
            "ours": {split: v.scores[split] for split in splits},
            "paper": {
                split: {name: cells[v.method, v.epsilon] for name, cells in paper[split].items()} for split in splits
            },
        }
        for i, v in enumerate(order)
    ]
    orders = [{"split": split, "rows": _orders(order, split, levels, paper[split])} for split in splits]
    return Beside(
        where="Table 4, mean over 25 and 50 clients" if dirichlet else "Tables 2 and 3, mean over its four data sets",
        by="client count" if dirichlet else "data set",
        rows=rows,
        columns=[name for name in paper[splits[0]] if name != MEAN],
        orders=orders,
        sentences=_sentences(orders, order),
        scale=scale(order, dirichlet=dirichlet),
    )


def _orders(
    ours: Sequence[MethodRow], split: str, levels: Sequence[float], paper: Mapping[str, Cells]
) -> list[dict[str, Any]]:
    """Agreement at every epsilon and over all cells, with every column of the paper and with their mean."""
    groups = [([level], "no noise" if math.isinf(level) else f"ε {level:g}") for level in levels]
    if len(levels) > 1:
        groups.append((list(levels), "all cells"))
    rows = []
    for some, name in groups:
        mine = [v for v in ours if v.epsilon in some]
        cells = {(v.method, v.epsilon): v.scores[split].value for v in mine}
        seeds = sorted(set.intersection(*(set(v.scores[split].seeds) for v in mine)))
        single = (
            [{(v.method, v.epsilon): v.scores[split].seeds[s] for v in mine} for s in seeds] if len(seeds) > 1 else []
        )
        rows.append({"name": name, "by": {data: agreement(cells, theirs, single) for data, theirs in paper.items()}})
    return rows


def agreement(ours: Cells, paper: Cells, seeds: Sequence[Cells] = ()) -> Agreement:
    """How far the cells of `ours` come in the order of the same cells of `paper`; `seeds` are ours of single seeds.

    Relabelling keeps every method's cells together: what is permuted are methods, not cells, because a method's
    accuracies go together. Where some methods lack an epsilon, p is None.
    """
    methods = list(dict.fromkeys(method for method, _ in ours))
    levels = list(dict.fromkeys(level for _, level in ours))
    p = None
    tau = _tau(ours, paper)
    if tau is not None and len(ours) == len(methods) * len(levels):
        x, y = (np.array([[cells[m, e] for e in levels] for m in methods]) for cells in (ours, paper))
        relabelled = itertools.permutations(range(len(methods)))
        agree = [taus(x[list(some)].reshape(len(some), -1), y.ravel()) >= tau - 1e-9 for some in chunks(relabelled)]
        p = float(np.concatenate(agree).mean())
    return Agreement(tau, p, len(ours), len(methods), tuple(_tau(cells, paper) for cells in seeds))


def chunks(orders: Iterator[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """So many at once as fit into memory."""
    while some := list(itertools.islice(orders, CHUNK)):
        yield some


def _tau(ours: Cells, paper: Cells) -> float | None:
    """None where one side does not differ at all."""
    x, y = (np.array([cells[key] for key in ours]) for cells in (ours, paper))
    (tau,) = taus(x[None], y)
    return None if math.isnan(tau) else float(tau)


def taus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of every row of x with y: pairs in the same order less those in the reverse, over the geometric
    mean of the untied pairs of both sides; NaN where one side does not differ at all."""
    first, second = np.triu_indices(len(y), 1)
    a, b = np.sign(x[:, first] - x[:, second]), np.sign(y[first] - y[second])
    with np.errstate(invalid="ignore"):
        found: np.ndarray = a @ b / np.sqrt(np.abs(a).sum(axis=1) * np.abs(b).sum())
    return found


def _sentences(orders: Sequence[Mapping[str, Any]], ours: Sequence[MethodRow]) -> list[str]:
    """Whether the paper's order of methods appears, in plain words."""
    found = []
    for part in orders:
        for row in (r for r in part["rows"] if r["name"] in ("no noise", "all cells") or len(part["rows"]) == 1):
            where = "over all cells" if row["name"] == "all cells" else f"with {row['name']}"
            on = PLACES.get(part["split"], f"{part['split']} classes")
            found.append(f"On {on}, {where}, the paper's order {_verdict(row['by'][MEAN])}.")
    methods = len({v.method for v in ours})
    least = 1 / math.factorial(methods)
    if least > LEVEL:
        found.append(f"{methods} methods have too few orders to show anything: even full agreement has p {least:.2f}.")
    if any((v.ratio or 0) > 10 for v in ours):
        found.append(DROWNED)
    return found


def trained_share(task: Mapping[str, Any]) -> str:
    """How much of what clients hold is trained on, by a task's parameters; empty where these do not say."""
    if "holdout" not in task:
        return ""
    if not task["holdout"]:
        return "all records trained on"
    return f"about {100 * (1 - task['holdout']) * (1 - task['reference_share']):.3g} % of the records trained on"


def _verdict(a: Agreement) -> str:
    if a.tau is None or a.p is None:
        return "cannot be compared: accuracies are all the same, or methods are missing"
    word = "does not appear" if a.tau <= 0 else "appears" if a.p <= LEVEL else "cannot be told from chance"
    share = f"{100 * a.p:.0f} % of all relabellings of the {a.methods} methods agree at least as well"
    return f"{word} (τ {tau(a.tau)} over {a.n} cells; {share})"


def scale(found: Sequence[MethodRow], *, dirichlet: bool) -> str:
    """What differs between the paper's runs and these."""
    trained = trained_share(found[0].evidence[0].setting.get("task", {}))
    theirs = (
        ["CLIP ResNet50", "CIFAR-100", "25 or 50 clients", "200 rounds"]
        if dirichlet
        else ["CLIP ViT-B/16", "four data sets of photographs", "10 clients", "100 rounds"]
    )
    theirs += ["batches of 32"]
    theirs += ["all records trained on"] if trained else []
    return (
        f"The paper: {listed(theirs)}. Here: {here(found)}. The accuracies themselves are not comparable, at most "
        f"their order is."
    )


def here(found: Sequence[MethodRow]) -> str:
    """What these runs are of, in words."""
    settings = [v.evidence[0].setting for v in found]
    schedule, training = settings[0].get("schedule", {}), settings[0].get("training", {})
    clients = _distinct(str(s["schedule"]["clients"]) for s in settings if "clients" in s.get("schedule", {}))
    tasks = _distinct(v.evidence[0].task for v in found)
    ours = [str(settings[0].get("backbone", {}).get("name", "another model"))]
    ours += [f"the task{'s' if len(tasks) > 1 else ''} {listed(tasks)}"]
    ours += [f"{' or '.join(clients)} clients"] if clients else []
    ours += [f"{schedule['rounds']} rounds"] if "rounds" in schedule else []
    ours += [f"batches of {training['batch']}"] if "batch" in training else []
    ours += [trained] if (trained := trained_share(settings[0].get("task", {}))) else []
    return listed(ours)


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
