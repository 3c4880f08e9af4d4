"""SecFPP, Table 3: how a round's bytes and seconds grow with users and dimension, beside the printed orders.

Hou et al. 2025, section 5.4. Exponents of a power of n and of d between the ends of what `secfpp_figure3` measures, and
of the printed orders at the same sizes. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from reports import printed_table
from reports.evidence import Evidence
from reports.paper_items import PaperItem
from reports.papers import secfpp_figure3 as costs
from reports.printed_table import Column, OurNumber, Row, Table
from reports.templates import Write


class Items:
    table3 = PaperItem()


OF: dict[str, Row] = {
    "bytes": ("communication of a user", ""),
    "user": ("computation of a user", ""),
    "server": ("computation of the server", ""),
}
PRINTED = {"bytes": "O(nd/ℓ + kn)", "user": "O((d/ℓ) n log²n + (ndk + nd)/ℓ)", "server": "O(k n² log²n)"}
ORDERS: dict[str, Callable[[float, float, float, float], float]] = {  # the same, of n, d, ℓ and k
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


def table3(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write table3.csv, table3.tex and index.html, the page last; returns how our costs grow."""
    measured = costs.ours()
    printed_table.build(table(measured), write)
    return "; ".join(
        f"{name} grows as n^{_short(exponent(measured, of, 'users'))}, d^{_short(exponent(measured, of, 'd'))}"
        for of, (name, _) in OF.items()
    )


def table(measured: pd.DataFrame) -> Table:
    """Ours and, of the same sizes, what the printed orders say."""
    ours: dict[str, Column] = {}
    for by, letter in LETTERS.items():
        own = costs.panel(measured, by)
        sizes = f"from {letter} = {own[by].iloc[0]:.0f} to {own[by].iloc[-1]:.0f}"
        orders = own.assign(**{
            of: [order(row.users, row.d, row.ell, costs.CENTRES) for row in own.itertuples()]
            for of, order in ORDERS.items()
        })  # fmt: skip
        for name, rows in (("measured", own), ("of the printed order", orders)):
            cells = {OF[of]: OurNumber(exponent(rows, of, by)) for of in OF}
            ours[f"in {letter}, {name}"] = Column(cells, quantity=sizes)
    paper = {"order of growth": {OF[of]: text for of, text in PRINTED.items()}}
    return Table("secfpp:table3", ours, paper, ABOUT, unit="", digits=2, rows_are="Of", sentences=NOTES)


def exponent(sizes: pd.DataFrame, quantity: str, by: str) -> float:
    """That of a power of `by` between the ends of its panel."""
    own = costs.panel(sizes, by)
    first, last = own.iloc[0], own.iloc[-1]
    return math.log(last[quantity] / first[quantity]) / math.log(last[by] / first[by])


def _short(value: float) -> str:
    return f"{value:z.1f}".replace("-", "−")
