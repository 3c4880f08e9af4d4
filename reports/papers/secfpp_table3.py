"""SecFPP, Table 3: how a round's bytes and seconds grow with users and dimension, beside the printed orders.

Hou et al. 2025, section 5.4. Growth between two sizes is given as the exponent of a power of n or d, for the smallest
and largest sizes of `secfpp_figure3`: as measured there, and by the printed orders. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from fedaudit.reports import printed_table
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers import secfpp_figure3 as costs
from fedaudit.reports.papers.common import EvidenceByTask
from fedaudit.reports.printed_table import Column, OurNumber, Row, Table
from fedaudit.reports.templates import Write


class Items:
    table3 = PaperItem()


ROWS: dict[str, Row] = {  # by column of `secfpp_figure3.ours`
    "bytes": ("communication of a user", ""),
    "user": ("computation of a user", ""),
    "server": ("computation of the server", ""),
}
PRINTED = {"bytes": "O(nd/ℓ + kn)", "user": "O((d/ℓ) n log²n + (ndk + nd)/ℓ)", "server": "O(k n² log²n)"}
ORDERS: dict[str, Callable[[float, float, float, float], float]] = {  # `PRINTED` as functions of n, d, ℓ and k
    "bytes": lambda n, d, ell, k: n * d / ell + k * n,
    "user": lambda n, d, ell, k: d / ell * n * math.log(n) ** 2 + (n * d * k + n * d) / ell,
    "server": lambda n, d, ell, k: k * n**2 * math.log(n) ** 2,
}
LETTERS = {"users": "n", "d": "d"}
ABOUT = (
    "Bytes that a user sends and seconds of the processor on this machine, one thread, of a round on secret shares "
    f"with {costs.CENTRES} centres. The paper prints orders of growth and no numbers; an exponent is that of a power "
    "between two sizes."
)
NOTES = (
    "The exponent of a printed order is that of its formula at the same sizes and the same ℓ, with all constants 1: it "
    "says what growth to expect, not that one is right.",
    "ℓ grows with n as t = 3n/10 lets it. Small sizes are mostly the overhead of a call.",
    "The paper counts no masks; without them the server decodes whole polynomials. They are one number for each of n "
    "users and k centres, sent to n users: our bytes have a term in n² that the printed order has not.",
)


def table3(evidence: EvidenceByTask, write: Write) -> str:
    """Write table3.csv, table3.tex and index.html through `write(name, bytes)`, the page last. Returns in words with
    which powers of n (users) and d (entries) our costs grow. `evidence` is not used."""
    measured = costs.ours()
    printed_table.build(table(measured), write)
    return "; ".join(
        f"{name} grows as n^{_short(exponent(measured, cost, 'users'))}, d^{_short(exponent(measured, cost, 'd'))}"
        for cost, (name, _) in ROWS.items()
    )


def table(measured: pd.DataFrame) -> Table:
    """The table of exponents of growth in n (users) and in d (entries), a row per cost: of the `measured` costs, and of
    the printed orders at the same sizes."""
    ours: dict[str, Column] = {}
    for by, letter in LETTERS.items():
        panel = costs.panel(measured, by)
        sizes = f"from {letter} = {panel[by].iloc[0]:.0f} to {panel[by].iloc[-1]:.0f}"
        orders = panel.assign(**{
            cost: [order(row.users, row.d, row.ell, costs.CENTRES) for row in panel.itertuples()]
            for cost, order in ORDERS.items()
        })  # fmt: skip
        for name, rows in (("measured", panel), ("of the printed order", orders)):
            cells = {row: OurNumber(exponent(rows, cost, by)) for cost, row in ROWS.items()}
            ours[f"in {letter}, {name}"] = Column(cells, quantity=sizes)
    paper = {"order of growth": {ROWS[cost]: text for cost, text in PRINTED.items()}}
    return Table("secfpp:table3", ours, paper, ABOUT, unit="", digits=2, rows_are="Of", sentences=NOTES)


def exponent(sizes: pd.DataFrame, cost: str, by: str) -> float:
    """The exponent p with which the column `cost` grows as by^p, between the smallest and largest `by` ("users" or "d")
    of its panel."""
    panel = costs.panel(sizes, by)
    first, last = panel.iloc[0], panel.iloc[-1]
    return math.log(last[cost] / first[cost]) / math.log(last[by] / first[by])


def _short(value: float) -> str:
    return f"{value:z.1f}".replace("-", "−")
