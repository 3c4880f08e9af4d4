"""SecFPP, Table 2: accuracy of SecFPP beside PromptFL, FedOTP, FedPGP and DP-FPL, on single domains and on pairs.

Hou et al. 2025, section 5.2. A column per domain and pair as in the paper, a row per method and budget. Ours are means
over seeds with Student's interval, in styles of drawn symbols; the paper's, a single number each, stand below. Compared
is the order of the five methods without noise, by Kendall's tau-b; its p-value is the share of the 120 ways to relabel
ours that agree with the paper at least as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pandas as pd
from scipy.stats import t as student

from reports.beside_dpfpl import METHODS as BASELINES
from reports.beside_dpfpl import Agreement, agreement
from reports.inputs import Evidence, check
from reports.rows import Score, variants
from reports.templates import Write, csv, render

PRESET = "secfpp-table2"
TASKS = {
    "print": ("--domain=print",),
    "neon": ("--domain=neon",),
    "dots": ("--domain=dots",),
    "print+neon": ("--domain=print+neon",),
    "print+dots": ("--domain=print+dots",),
    "neon+dots": ("--domain=neon+dots",),
}
METHODS = BASELINES | {"SecFPP": "secfpp"}
SPLITS = {"own_test": "the clients' own test sets", "overall": "all test records"}
LEVELS = {0.4: "loose", 0.1: "default", 0.01: "strict"}
CONFIDENCE = 0.95

Row = tuple[str, float]  # a method and its epsilon


@dataclass(frozen=True)
class TableCell:
    """An accuracy in percent, with its interval over seeds where there are several."""

    value: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class OnTests:
    """Ours on one kind of test set, by task."""

    split: str
    place: str  # in words
    ours: Mapping[str, Mapping[Row, TableCell]]
    orders: Mapping[str, Agreement | None]


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> None:
    """Write table2.csv and index.html through `write(name, bytes)`; the page comes last.

    `evidence` holds, by domain or pair, the cells of the methods, one per budget and seed. ValueError: no task, or one
    without any accuracy of Table 2's methods.
    """
    if not evidence:
        raise ValueError("evidence is empty; the table needs at least one task")
    parts = []
    for split, place in SPLITS.items():
        ours = {task: _cells(task, cells, split) for task, cells in evidence.items()}
        parts.append(OnTests(split, place, ours, _orders(ours)))
    write("table2.csv", csv(_long(parts)))
    rows = [row for row in _rows() if any(row in own for part in parts for own in part.ours.values())]
    seeds = sorted({e.seed for cells in evidence.values() for e in cells})
    table = {"rows": [(row, _name(row)) for row in rows], "columns": list(evidence), "parts": parts, "seeds": seeds}
    write("index.html", render("papers/secfpp_table2.html", table | {"paper": paper(), "mean": _paper_means()}))


@functools.cache
def paper() -> dict[str, dict[Row, float]]:
    """The printed accuracies by data set or pair, as the columns stand in the paper."""
    printed = pd.read_csv(Path(__file__).with_name("secfpp_table2.csv"), dtype={"epsilon": str}, keep_default_na=False)
    printed["row"] = [
        (METHODS[m], math.inf if e == "none" else float(e))
        for m, e in zip(printed.method, printed.epsilon, strict=True)
    ]
    columns = printed.groupby("dataset", sort=False)
    return {str(name): dict(zip(part.row, part.value.astype(float), strict=True)) for name, part in columns}


def _rows() -> list[Row]:
    return list(next(iter(paper().values())))


def _paper_means() -> dict[bool, dict[Row, float]]:
    """The paper's mean over its single data sets (False) and over its pairs (True)."""
    return {
        pair: {row: mean(own[row] for name, own in paper().items() if ("+" in name) == pair) for row in _rows()}
        for pair in (False, True)
    }


def _cells(task: str, cells: Sequence[Evidence], split: str) -> dict[Row, TableCell]:
    check(cells)
    found = {(v.method, v.epsilon): _cell(v.scores[split]) for v in variants(cells) if split in v.scores}
    known = {row: cell for row, cell in found.items() if row in _rows()}
    if not known:
        raise ValueError(f"task {task!r} must have accuracies of methods of Table 2")
    return known


def _cell(score: Score) -> TableCell:
    n = len(score.seeds)
    if score.sd is None:
        return TableCell(score.value, score.low, score.high, n)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * score.sd / math.sqrt(n)
    return TableCell(score.value, score.value - reach, score.value + reach, n)


def _orders(ours: Mapping[str, Mapping[Row, TableCell]]) -> dict[str, Agreement | None]:
    """Of every task how far the methods without noise come in the order of the paper's means; None for fewer than
    two."""
    found: dict[str, Agreement | None] = {}
    for task, cells in ours.items():
        clear = {row: cell.value for row, cell in cells.items() if math.isinf(row[1])}
        found[task] = agreement(clear, _paper_means()["+" in task]) if len(clear) > 1 else None
    return found


def _name(row: Row) -> str:
    method, epsilon = row
    title = {key: name for name, key in METHODS.items()}[method]
    if method != "dpfpl":
        return title
    return f"{title}, no noise" if math.isinf(epsilon) else f"{title}, ε {epsilon:g} ({LEVELS[epsilon]})"


def _long(parts: Sequence[OnTests]) -> pd.DataFrame:
    rows = []
    for part in parts:
        for task, cells in part.ours.items():
            for (method, epsilon), c in cells.items():
                noise = "none" if math.isinf(epsilon) else f"{epsilon:g}"
                rows.append((task, method, noise, part.split, c.value, c.low, c.high, c.seeds))
    return pd.DataFrame(rows, columns="task method epsilon split accuracy low high seeds".split())
