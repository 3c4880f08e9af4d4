"""A paper's table: ours beside what is printed, how far rows come in the same order, and where the paper contradicts
itself.

Both sides are cells by row and column. Rows are what is compared, such as methods, some at several levels, such as
budgets. What is printed stays a string as it is printed. A column of ours is held against the paper's column of the
same quantity, or against the mean of several; where it is another quantity, the page says which.
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

from reports import paper_items
from reports.beside_dpfpl import Agreement, agreement, chunks, taus
from reports.evidence import Evidence
from reports.formats import number, tau
from reports.rows import Score
from reports.templates import Write, csv, render

PAPERS = Path(__file__).with_name("papers")
CONFIDENCE = 0.95
LEVEL = 0.05
FEW = 3  # agreements that a sentence names one by one

EVERY = "every level"

Row = tuple[str, str]  # a name, and a level ("" where there are none)


@dataclass(frozen=True)
class OurNumber:
    """A number of ours, with its interval where there is one, and how many seeds it is the mean of."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1


@dataclass(frozen=True)
class Column:
    """A column of ours: its cells, the paper's columns that it is held against (of several their mean; none: nothing is
    compared), and, where it is another quantity than theirs, which."""

    cells: Mapping[Row, OurNumber]
    against: Sequence[str] = ()
    quantity: str = ""


@dataclass(frozen=True)
class Table:
    """`name` is that of the item, as dpfpl:table2. `paper` holds the printed strings by column and row. `scale` says
    what differs between the paper's runs and ours; `sentences` are findings that the table makes."""

    name: str
    ours: Mapping[str, Column]
    paper: Mapping[str, Mapping[Row, str]]
    scale: str
    unit: str = "%"
    digits: int = 1
    rows_are: str = "Method"
    levels_are: str = "Noise"
    sentences: Sequence[str] = ()
    seeds: Sequence[int] = ()
    spreads: Mapping[str, Mapping[Row, str]] = field(default_factory=dict)  # as printed, in the places of `paper`
    apart: Sequence[str] = ()  # rows that no order has, such as differences of others

    @property
    def title(self) -> str:
        """What item it is and what it shows."""
        return paper_items.find(self.name).summary.rstrip(".")

    @property
    def file(self) -> str:
        """What its files are called."""
        return self.name.partition(":")[2]

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The paper's in its order, then those that are ours alone."""
        sides = [*self.paper.values(), *(column.cells for column in self.ours.values())]
        found = list(dict.fromkeys(row for side in sides for row in side))
        levels = list(dict.fromkeys(level for _, level in found))
        return sorted(found, key=lambda row: levels.index(row[1]))

    def held_against(self, column: Column, row: Row) -> float | None:
        """The paper's number for a cell of ours."""
        sides = [self.paper[name] for name in column.against]
        return mean(float(side[row]) for side in sides) if sides and all(row in side for side in sides) else None

    @functools.cached_property
    def agreements(self) -> dict[str, dict[str, Agreement]]:
        """Of every column of ours that is compared, over the rows that both sides have: within every level that has two
        at least, and over all of these levels (EVERY)."""
        found = {}
        for name, column in self.ours.items():
            rows = [row for row in column.cells if row[0] not in self.apart]
            theirs = {row: value for row in rows if (value := self.held_against(column, row)) is not None}
            levels = dict.fromkeys(level for _, level in theirs)
            ours = {row: column.cells[row].value for row in theirs}
            compared = {level: some for level in levels if len(some := _at(ours, level)) > 1}
            if compared:
                together = {row: value for some in compared.values() for row, value in some.items()}
                own = {level: agreement(some, theirs) for level, some in compared.items()}
                found[name] = {EVERY: within_levels(together, theirs)} | (own if len(own) > 1 else {})
        return found


def build(table: Table, write: Write) -> str:
    """Write tableN.csv, tableN.tex and index.html through `write(name, bytes)`, the page last; returns in a sentence
    how far ours come in the paper's order. ValueError: ours has no cell."""
    if not any(column.cells for column in table.ours.values()):
        raise ValueError(f"{table.name} must have numbers of ours: none of the runs has any of what it shows")
    write(f"{table.file}.csv", csv(long(table)))
    write(f"{table.file}.tex", latex(table))
    agreed = agreed_in_words({name: own[EVERY] for name, own in table.agreements.items()})
    write("index.html", render("papers/table.html", {"t": table, "agreed": agreed}))
    return agreed


def builder(table: Callable[..., Table], *which: object) -> Callable[[Mapping[str, Sequence[Evidence]], Write], str]:
    """The function (evidence, write) of a paper's item that builds `table(*which, evidence)`."""
    return lambda evidence, write: build(table(*which, evidence), write)


def within_levels(ours: Mapping[Row, float], paper: Mapping[Row, float]) -> Agreement:
    """How far rows come in the paper's order at the same level: the mean over levels of Kendall's tau-b, of those where
    both sides differ. p is exact as in `agreement`: rows are relabelled, the same way at every level."""
    rows, levels = (list(dict.fromkeys(row[i] for row in ours)) for i in (0, 1))
    if len(ours) < len(rows) * len(levels):
        known = [a.tau for level in levels if (a := agreement(_at(ours, level), paper)).tau is not None]
        return Agreement(mean(known) if known else None, None, len(ours), len(rows))
    x, y = (np.array([[side[row, level] for row in rows] for level in levels]) for side in (ours, paper))
    orders = itertools.permutations(range(len(rows)))
    taus = np.concatenate([_mean_taus(x, y, list(some)) for some in chunks(orders)])
    if np.isnan(taus[0]):
        return Agreement(None, None, len(ours), len(rows))
    return Agreement(float(taus[0]), float((taus >= taus[0] - 1e-9).mean()), len(ours), len(rows))


def _mean_taus(x: np.ndarray, y: np.ndarray, orders: Sequence[Sequence[int]]) -> np.ndarray:
    """Of every order of the rows the mean of the levels' taus; the first order is that of the rows as they are."""
    by_level = np.stack([taus(own[np.array(orders)], theirs) for own, theirs in zip(x, y, strict=True)])
    known = ~np.isnan(by_level[:, 0])
    found: np.ndarray = by_level[known].mean(axis=0) if known.any() else by_level[0]
    return found


def _at(side: Mapping[Row, float], level: str) -> dict[Row, float]:
    return {row: value for row, value in side.items() if row[1] == level}


def over_seeds(score: Score) -> OurNumber:
    """The mean over seeds with Student's interval over them; of a single seed its own interval."""
    n = len(score.seeds)
    if score.sd is None:
        return OurNumber(score.value, score.low, score.high, n)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * score.sd / math.sqrt(n)
    return OurNumber(score.value, score.value - reach, score.value + reach, n)


def seeds_of(evidence: Mapping[str, Sequence[Evidence]]) -> list[int]:
    """The seeds of all cells."""
    return sorted({e.seed for cells in evidence.values() for e in cells})


@functools.cache
def printed(name: str) -> pd.DataFrame:
    """A table of reports/papers/ as it is printed: every cell a string."""
    return pd.read_csv(PAPERS / f"{name}.csv", dtype=str, keep_default_na=False)


def agreed_in_words(agreements: Mapping[str, Agreement]) -> str:
    """In a sentence how far columns of ours come in the paper's order: each of few, of many how far they range."""
    known = {name: a for name, a in agreements.items() if a.tau is not None}
    if not known:
        return "no order to compare"
    if len(known) <= FEW:
        return "τ " + ", ".join(f"{tau(a.tau or 0.0)} ({name}{_p(a)})" for name, a in known.items())
    taus = sorted(a.tau or 0.0 for a in known.values())
    sure = sum(a.p is not None and a.p <= LEVEL for a in known.values())
    return f"τ {tau(taus[0])} to {tau(taus[-1])} over {len(taus)} columns, {sure} of them with p ≤ {LEVEL}"


def _p(a: Agreement) -> str:
    return "" if a.p is None else f", p {a.p:.2g}"


def long(table: Table) -> pd.DataFrame:
    """Both sides under each other, a row per number; the paper's as they are printed, with their printed spread."""
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
    """Ours and the paper's as two tabulars (booktabs)."""
    parts = [f"% {table.title}; needs \\usepackage{{booktabs}}"]
    ours = {name: [_ours(table, column, row) for row in table.rows] for name, column in table.ours.items()}
    theirs = {name: [_theirs(table, name, row) for row in table.rows] for name in table.paper}
    for whose, cells in (("ours", ours), ("the paper", theirs)):
        heads = {table.levels_are: [level for _, level in table.rows]} if any(level for _, level in table.rows) else {}
        frame = pd.DataFrame({**heads, table.rows_are: [row for row, _ in table.rows], **cells})
        shown = frame[frame[list(cells)].ne("").any(axis=1)]
        body = shown.to_latex(index=False, escape=True, column_format="l" * (len(heads) + 1) + "r" * len(cells))
        parts.append(f"% {', '.join(filter(None, (whose, table.unit)))}\n{body.strip()}")
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


def _theirs(table: Table, name: str, row: Row) -> str:
    spread = table.spreads.get(name, {}).get(row)
    return table.paper[name].get(row, "") + (f" ± {spread}" if spread else "")


def _ours(table: Table, column: Column, row: Row) -> str:
    c = column.cells.get(row)
    if c is None:
        return ""
    interval = "" if c.low is None else f" [{number(c.low, table.digits)}, {number(c.high, table.digits)}]"
    return f"{number(c.value, table.digits)}{interval}"
