"""Write a paper's table as page, CSV and LaTeX: our numbers beside the printed ones, and the agreement of their order.

Both sides are cells by column and row. A row is a name, such as a method, at a level, such as a privacy budget. Printed
numbers stay strings. A column of ours is compared with the paper's column of the same quantity or with the mean of
several; where it is another quantity, the page says which.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
from scipy.stats import t as student

from fedaudit.reports import paper_items
from fedaudit.reports.beside_dpfpl import Agreement, agreement, chunks, taus
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.formats import number, tau
from fedaudit.reports.rows import Score
from fedaudit.reports.templates import Write, csv, render

PAPERS = Path(__file__).with_name("papers")
CONFIDENCE = 0.95
LEVEL = 0.05
FEW = 3  # agreements that a sentence names one by one, at most
EVERY = "every level"

Row = tuple[str, str]  # name and level ("" in tables without levels)


@dataclass(frozen=True)
class OurNumber:
    """A number of ours, the mean over `seeds` seeds, with its interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1


@dataclass(frozen=True)
class Column:
    """A column of ours."""

    cells: Mapping[Row, OurNumber]
    against: Sequence[str] = ()  # the paper's columns to compare with (the mean of several); none: not compared
    quantity: str = ""  # our quantity in words, where it is not the paper's


@dataclass(frozen=True)
class Table:
    """A table of a paper, ours and printed."""

    name: str  # such as dpfpl:table2
    ours: Mapping[str, Column]  # by the column's heading
    paper: Mapping[str, Mapping[Row, str]]  # printed strings by column and row
    scale: str  # sentences on the differences between the paper's runs and ours
    unit: str = "%"
    digits: int = 1  # decimals of our numbers
    rows_are: str = "Method"  # heading of the rows' names
    levels_are: str = "Noise"  # heading of the levels
    sentences: Sequence[str] = ()  # further results in words
    seeds: Sequence[int] = ()
    spreads: Mapping[str, Mapping[Row, str]] = field(default_factory=dict)  # printed spreads of the cells of `paper`
    apart: Sequence[str] = ()  # names of rows left out of orders, such as differences of others

    @property
    def title(self) -> str:
        """The item and what it shows, such as "DP-FPL, Table 2: ..."."""
        return paper_items.find(self.name).summary.rstrip(".")

    @property
    def file(self) -> str:
        """The names of its files without ending, such as table2."""
        return self.name.partition(":")[2]

    @functools.cached_property
    def rows(self) -> list[Row]:
        """All rows as (name, level), level by level: the paper's in its order, then those that only we have."""
        sides = [*self.paper.values(), *(column.cells for column in self.ours.values())]
        distinct = list(dict.fromkeys(row for side in sides for row in side))
        levels = list(dict.fromkeys(level for _, level in distinct))
        return sorted(distinct, key=lambda row: levels.index(row[1]))

    def printed_value(self, column: Column, row: Row) -> float | None:
        """The paper's number that the cell of our `column` in `row` is compared with; None if it has none."""
        sides = [self.paper[name] for name in column.against]
        return mean(float(side[row]) for side in sides) if sides and all(row in side for side in sides) else None

    @functools.cached_property
    def agreements(self) -> dict[str, dict[str, Agreement]]:
        """Agreement of the order of our rows with the paper's, {our column: {level: agreement}}. The first level,
        `EVERY`, is all levels together; each single one follows if several have two rows that both sides have. Columns
        that cannot be compared are left out."""
        agreements = {}
        for name, column in self.ours.items():
            rows = [row for row in column.cells if row[0] not in self.apart]
            theirs = {row: value for row in rows if (value := self.printed_value(column, row)) is not None}
            levels = dict.fromkeys(level for _, level in theirs)
            ours = {row: column.cells[row].value for row in theirs}
            compared = {level: some for level in levels if len(some := _cells_at(ours, level)) > 1}
            if compared:
                together = {row: value for some in compared.values() for row, value in some.items()}
                by_level = {level: agreement(some, theirs) for level, some in compared.items()}
                agreements[name] = {EVERY: within_levels(together, theirs)} | (by_level if len(by_level) > 1 else {})
        return agreements


def build(table: Table, write: Write) -> str:
    """Write tableN.csv, tableN.tex and index.html through `write(name, bytes)`, the page last. Returns how far our
    order agrees with the paper's, in words. ValueError if no column of ours has a cell."""
    if not any(column.cells for column in table.ours.values()):
        raise ValueError(f"{table.name} must have numbers of ours: none of the runs has any of what it shows")
    write(f"{table.file}.csv", csv(long(table)))
    write(f"{table.file}.tex", latex(table))
    agreed = agreed_in_words({name: by_level[EVERY] for name, by_level in table.agreements.items()})
    write("index.html", render("papers/table.html", {"t": table, "agreed": agreed}))
    return agreed


def builder(table: Callable[..., Table], *which: object) -> Callable[[Mapping[str, Sequence[Evidence]], Write], str]:
    """The function (evidence, write) of a paper's item that builds `table(*which, evidence)`."""
    return lambda evidence, write: build(table(*which, evidence), write)


def within_levels(ours: Mapping[Row, float], paper: Mapping[Row, float]) -> Agreement:
    """Agreement of the orders of rows at the same level: tau is the mean of Kendall's tau-b over levels where it is
    defined (None: nowhere), p is exact as in `agreement`, by relabelling the rows alike at all levels; None if a row
    lacks a level."""
    rows, levels = (list(dict.fromkeys(row[i] for row in ours)) for i in (0, 1))
    if len(ours) < len(rows) * len(levels):
        defined = [a.tau for level in levels if (a := agreement(_cells_at(ours, level), paper)).tau is not None]
        return Agreement(mean(defined) if defined else None, None, len(ours), len(rows))
    x, y = (np.array([[side[row, level] for row in rows] for level in levels]) for side in (ours, paper))
    orders = itertools.permutations(range(len(rows)))
    taus = np.concatenate([_mean_taus(x, y, list(some)) for some in chunks(orders)])
    if np.isnan(taus[0]):
        return Agreement(None, None, len(ours), len(rows))
    return Agreement(float(taus[0]), float((taus >= taus[0] - 1e-9).mean()), len(ours), len(rows))


def _mean_taus(x: np.ndarray, y: np.ndarray, orders: Sequence[Sequence[int]]) -> np.ndarray:
    """For every order of the rows, the mean over levels of tau-b of x[order] with y, shape (orders,). x and y have
    shape (levels, rows). Levels without tau in the first order are left out; NaN if all are."""
    by_level = np.stack([taus(ours[np.array(orders)], theirs) for ours, theirs in zip(x, y, strict=True)])
    defined = ~np.isnan(by_level[:, 0])
    means: np.ndarray = by_level[defined].mean(axis=0) if defined.any() else by_level[0]
    return means


def _cells_at(side: Mapping[Row, float], level: str) -> dict[Row, float]:
    """The cells at a level."""
    return {row: value for row, value in side.items() if row[1] == level}


def over_seeds(score: Score) -> OurNumber:
    """A score as a number with Student's interval over seeds, or the score's own interval for a single seed."""
    n = len(score.seeds)
    if score.sd is None:
        return OurNumber(score.value, score.low, score.high, n)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * score.sd / math.sqrt(n)
    return OurNumber(score.value, score.value - reach, score.value + reach, n)


def seeds_of(evidence: Mapping[str, Sequence[Evidence]]) -> list[int]:
    """The distinct seeds of all evidence, sorted."""
    return sorted({e.seed for cells in evidence.values() for e in cells})


@functools.cache
def printed(name: str) -> pd.DataFrame:
    """The file reports/papers/NAME.csv as it is printed: every cell a string."""
    return pd.read_csv(PAPERS / f"{name}.csv", dtype=str, keep_default_na=False)


def agreed_in_words(agreements: Mapping[str, Agreement]) -> str:
    """The agreements, {column: agreement}, in words: each tau if there are at most `FEW`, else their range; "no order
    to compare" without any."""
    defined = {name: a for name, a in agreements.items() if a.tau is not None}
    if not defined:
        return "no order to compare"
    if len(defined) <= FEW:
        p_values = {name: "" if a.p is None else f", p {a.p:.2g}" for name, a in defined.items()}
        return "τ " + ", ".join(f"{tau(a.tau or 0.0)} ({name}{p_values[name]})" for name, a in defined.items())
    taus = sorted(a.tau or 0.0 for a in defined.values())
    significant = sum(a.p is not None and a.p <= LEVEL for a in defined.values())
    return f"τ {tau(taus[0])} to {tau(taus[-1])} over {len(taus)} columns, {significant} of them with p ≤ {LEVEL}"


def long(table: Table) -> pd.DataFrame:
    """Both sides as a long table, a row per number, with the columns whose, column, row, level, value, low, high,
    seeds, spread; the paper's numbers and spreads as printed."""
    ours = [
        ("ours", name, *row, number(c.value, 4), c.low, c.high, c.seeds, "")
        for name, column in table.ours.items()
        for row, c in column.cells.items()
    ]
    theirs = [
        ("the paper", name, *row, value, None, None, None, table.spreads.get(name, {}).get(row, ""))
        for name, cells in table.paper.items()
        for row, value in cells.items()
    ]
    return pd.DataFrame(ours + theirs, columns="whose column row level value low high seeds spread".split())


def latex(table: Table) -> bytes:
    """Our side and the paper's as two LaTeX tabulars, which need booktabs."""
    parts = [f"% {table.title}; needs \\usepackage{{booktabs}}"]
    ours = {name: [_our_cell(table, column, row) for row in table.rows] for name, column in table.ours.items()}
    theirs = {name: [_printed_cell(table, name, row) for row in table.rows] for name in table.paper}
    for side, cells in (("ours", ours), ("the paper", theirs)):
        heads = {table.levels_are: [level for _, level in table.rows]} if any(level for _, level in table.rows) else {}
        frame = pd.DataFrame({**heads, table.rows_are: [row for row, _ in table.rows], **cells})
        filled = frame[frame[list(cells)].ne("").any(axis=1)]
        body = filled.to_latex(index=False, escape=True, column_format="l" * (len(heads) + 1) + "r" * len(cells))
        parts.append(f"% {', '.join(filter(None, (side, table.unit)))}\n{body.strip()}")
    text = "\n\n".join(parts) + "\n"
    for letter, command in TEX.items():
        text = text.replace(letter, command)
    return text.encode()


TEX = {
    "ε": r"$\varepsilon$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "ℓ": r"$\ell$",
    "−": "$-$",
    "²": r"\textsuperscript{2}",
    "±": r"$\pm$",
}


def _printed_cell(table: Table, name: str, row: Row) -> str:
    spread = table.spreads.get(name, {}).get(row)
    return table.paper[name].get(row, "") + (f" ± {spread}" if spread else "")


def _our_cell(table: Table, column: Column, row: Row) -> str:
    c = column.cells.get(row)
    if c is None:
        return ""
    interval = "" if c.low is None else f" [{number(c.low, table.digits)}, {number(c.high, table.digits)}]"
    return f"{number(c.value, table.digits)}{interval}"
