"""Compare our accuracies with those printed in DP-FPL's Tables 2 and 3 (with a Dirichlet partition: Table 4), and the
order of methods with the paper's.

Orders are compared by Kendall's tau-b, among the methods at one epsilon and over all cells. The p-value is exact: the
share of all relabellings of our methods (one relabelling for all epsilons) that agree with the paper at least as well.
With 4 methods there are 24 relabellings, so p is at least 0.042.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.reports.formats import join_words, tau
from fedaudit.reports.rows import MethodRow, closest_to_paper
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST

METHODS = {"PromptFL": "promptfl", "FedOTP": "fedotp", "FedPGP": "fedpgp", "DP-FPL": "dpfpl"}
EPSILONS = (math.inf, 0.4, 0.2, 0.1, 0.05, 0.01)
SPLITS: dict[str, int] = {LOCAL: 2, NEIGHBOUR: 3}  # number of the paper's table
# with a Dirichlet partition; the paper does not say on which of the two test sets its Table 4 is measured
TEST_SETS: dict[str, int] = {OWN_TEST: 4, OVERALL: 4}
MEAN = "mean"  # over the paper's columns: data sets, or numbers of clients
LEVEL = 0.05
CHUNK = 4096  # relabellings that are compared at once
DROWNED = "Where the noise is much longer than the signal, the order of our methods is mostly chance."
PLACES = {OWN_TEST: "the clients' own test sets", OVERALL: "the whole test set"}

Cells = Mapping[tuple[str, Any], float]  # number by (method, epsilon), or by another row and level


@dataclass(frozen=True)
class Agreement:
    """Agreement of two orders."""

    tau: float | None  # Kendall's tau-b; None if all numbers of one side are equal
    p: float | None  # exact; None without tau, or if a method lacks a level
    n: int  # cells
    methods: int
    seeds: tuple[float | None, ...] = ()  # tau of each of our seeds alone


@dataclass(frozen=True)
class PaperComparison:
    """Template variables of the section `paper`."""

    where: str  # the paper's tables, in words
    by: str  # in what its columns differ: "data set" or "client count"
    rows: list[dict[str, Any]]  # one per epsilon and method: noise, name, and `ours` and `paper` by split
    columns: list[str]  # the paper's, without the mean
    orders: list[
        dict[str, Any]
    ]  # one per split; its rows are agreements at every epsilon and over all cells, by column
    sentences: list[str]  # whether the paper's order appears
    scale: str  # differences between the paper's runs and ours


def table(number: int) -> pd.DataFrame:
    """DP-FPL's Table `number` (2 to 11, else ValueError) as printed, but with epsilon as a number (inf: no noise) and
    our names of methods and splits."""
    path = Path(__file__).parent / "papers" / f"dpfpl_table{number}.csv"
    if not path.exists():
        raise ValueError(f"number must be that of a transcribed table (2 to 11), not {number}")
    rows = pd.read_csv(path, dtype={"epsilon": str, "rank": str, "residual": str}, keep_default_na=False)
    if "epsilon" in rows:
        rows["epsilon"] = rows.epsilon.replace("none", "inf").astype(float)
        rows["method"] = rows.method.map(METHODS)
        rows["split"] = rows.split.replace("neighbor", NEIGHBOUR)
    return rows


def printed(split: str) -> dict[str, dict[tuple[str, float], float]]:
    """The paper's accuracies in percent on a split of test classes or a kind of test set, {column: {(method, epsilon):
    accuracy}}. Columns are data sets, or client counts for test sets; the first one, `MEAN`, is their mean."""
    rows = table((SPLITS | TEST_SETS)[split])
    columns = rows.dataset if split in SPLITS else rows.clients.map("{} clients".format)
    by_column = {
        str(name): {(r["method"], r["epsilon"]): float(r["mean"]) for r in part.to_dict("records")}
        for name, part in rows.groupby(columns, sort=False)
    }
    average = rows.groupby(["method", "epsilon"])["mean"].mean()
    return {MEAN: {key: float(value) for key, value in average.items()}, **by_column}


def compare_with_paper(runs: Sequence[MethodRow]) -> PaperComparison | None:
    """Our accuracies beside the paper's, row by row, and the agreement of the methods' orders; None unless two of the
    paper's methods were run at one of its epsilons, and all on one of its splits."""
    ours = [v for v in closest_to_paper(runs) if v.method in METHODS.values() and v.epsilon in EPSILONS]
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
    orders = [{"split": split, "rows": _order_rows(order, split, levels, paper[split])} for split in splits]
    return PaperComparison(
        where="Table 4, mean over 25 and 50 clients" if dirichlet else "Tables 2 and 3, mean over its four data sets",
        by="client count" if dirichlet else "data set",
        rows=rows,
        columns=[name for name in paper[splits[0]] if name != MEAN],
        orders=orders,
        sentences=_sentences(orders, order),
        scale=scale(order, dirichlet=dirichlet),
    )


def _order_rows(
    ours: Sequence[MethodRow], split: str, levels: Sequence[float], paper: Mapping[str, Cells]
) -> list[dict[str, Any]]:
    """A row per epsilon of `levels` and, if there are several, one over all cells: its `name`, and `by` column of the
    `paper` the agreement of our order of methods with the paper's."""
    groups = [([level], "no noise" if math.isinf(level) else f"ε {level:g}") for level in levels]
    if len(levels) > 1:
        groups.append((list(levels), "all cells"))
    rows = []
    for some, name in groups:
        at_levels = [v for v in ours if v.epsilon in some]
        cells = {(v.method, v.epsilon): v.scores[split].value for v in at_levels}
        seeds = sorted(set.intersection(*(set(v.scores[split].seeds) for v in at_levels)))
        by_seed = [{(v.method, v.epsilon): v.scores[split].seeds[s] for v in at_levels} for s in seeds]
        single = by_seed if len(seeds) > 1 else []
        rows.append({"name": name, "by": {data: agreement(cells, theirs, single) for data, theirs in paper.items()}})
    return rows


def agreement(ours: Cells, paper: Cells, seeds: Sequence[Cells] = ()) -> Agreement:
    """Agreement of the order of `ours`, {(method, epsilon): number}, with the same cells of `paper`, which must all be
    there, and of each of our `seeds` alone. Its p is None unless every method has every epsilon and tau is a number.

    Relabelling permutes methods, not cells, because the accuracies of one method depend on each other.
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
    """The orders in lists of at most `CHUNK`, so that they fit into memory."""
    while some := list(itertools.islice(orders, CHUNK)):
        yield some


def _tau(ours: Cells, paper: Cells) -> float | None:
    """Kendall's tau-b between the two sides' numbers over the cells of `ours`; None if all numbers of one side are
    equal."""
    x, y = (np.array([cells[key] for key in ours]) for cells in (ours, paper))
    (tau,) = taus(x[None], y)
    return None if math.isnan(tau) else float(tau)


def taus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of every row of x, shape (rows, cells), with y, shape (cells,): concordant less discordant pairs,
    over the geometric mean of both sides' untied pairs; NaN if all numbers of one side are equal."""
    first, second = np.triu_indices(len(y), 1)
    a, b = np.sign(x[:, first] - x[:, second]), np.sign(y[first] - y[second])
    with np.errstate(invalid="ignore"):
        tau_by_row: np.ndarray = a @ b / np.sqrt(np.abs(a).sum(axis=1) * np.abs(b).sum())
    return tau_by_row


def _sentences(orders: Sequence[Mapping[str, Any]], ours: Sequence[MethodRow]) -> list[str]:
    """Sentences on whether the paper's order of methods appears without noise and over all cells, and on what weakens
    this."""
    sentences = []
    for part in orders:
        for row in (r for r in part["rows"] if r["name"] in ("no noise", "all cells") or len(part["rows"]) == 1):
            where = "over all cells" if row["name"] == "all cells" else f"with {row['name']}"
            on = PLACES.get(part["split"], f"{part['split']} classes")
            sentences.append(f"On {on}, {where}, the paper's order {_verdict_in_words(row['by'][MEAN])}.")
    methods = len({v.method for v in ours})
    least = 1 / math.factorial(methods)
    if least > LEVEL:
        few = f"{methods} methods have too few orders to show anything: even full agreement has p {least:.2f}."
        sentences.append(few)
    if any((v.ratio or 0) > 10 for v in ours):
        sentences.append(DROWNED)
    return sentences


def trained_share(task: Mapping[str, Any]) -> str:
    """The share of clients' records that is trained on, in words, from a task's parameters; "" without `holdout`."""
    if "holdout" not in task:
        return ""
    if not task["holdout"]:
        return "all records trained on"
    return f"about {100 * (1 - task['holdout']) * (1 - task['reference_share']):.3g} % of the records trained on"


def _verdict_in_words(a: Agreement) -> str:
    """The end of a sentence on whether the paper's order appears: "appears", "cannot be told from chance", ..., with
    tau and p."""
    if a.tau is None or a.p is None:
        return "cannot be compared: accuracies are all the same, or methods are missing"
    word = "does not appear" if a.tau <= 0 else "appears" if a.p <= LEVEL else "cannot be told from chance"
    share = f"{100 * a.p:.0f} % of all relabellings of the {a.methods} methods agree at least as well"
    return f"{word} (τ {tau(a.tau)} over {a.n} cells; {share})"


def scale(runs: Sequence[MethodRow], *, dirichlet: bool) -> str:
    """Describe the scale of the paper's runs (`dirichlet`: of Table 4) and of ours, in two sentences and a warning."""
    trained = trained_share(runs[0].evidence[0].setting.get("task", {}))
    theirs = (
        ["CLIP ResNet50", "CIFAR-100", "25 or 50 clients", "200 rounds"]
        if dirichlet
        else ["CLIP ViT-B/16", "four data sets of photographs", "10 clients", "100 rounds"]
    )
    theirs += ["batches of 32"]
    theirs += ["all records trained on"] if trained else []
    return (
        f"The paper: {join_words(theirs)}. Here: {describe_runs(runs)}. The accuracies themselves are not "
        "comparable, at most their order is."
    )


def describe_runs(runs: Sequence[MethodRow]) -> str:
    """Our runs' model, tasks, clients, rounds, batches and share of trained records, as a list in words."""
    settings = [v.evidence[0].setting for v in runs]
    schedule, training = settings[0].get("schedule", {}), settings[0].get("training", {})
    clients = dict.fromkeys(str(s["schedule"]["clients"]) for s in settings if "clients" in s.get("schedule", {}))
    tasks = list(dict.fromkeys(v.evidence[0].task for v in runs))
    ours = [str(settings[0].get("backbone", {}).get("name", "another model"))]
    ours += [f"the task{'s' if len(tasks) > 1 else ''} {join_words(tasks)}"]
    ours += [f"{' or '.join(clients)} clients"] if clients else []
    ours += [f"{schedule['rounds']} rounds"] if "rounds" in schedule else []
    ours += [f"batches of {training['batch']}"] if "batch" in training else []
    ours += [trained] if (trained := trained_share(settings[0].get("task", {}))) else []
    return join_words(ours)
