"""SecFPP, Figure 2: what the distance to a centre, and the centre, say of a prompt, against users and its dimension.

Hou et al. 2025, section 5.3: users' prompts are N(0, I), 15 tokens reduced to 8 components, estimated by KSG from 1,000
draws. The figure prints no numbers. The text says that the dimension is what matters and users hardly do, and that the
self-information is more than ten thousand times the distance's. Ours are exact (`audits.statistics.secfpp_distance`)
and, beside them, estimated as the paper does: an estimate from prompts of many dimensions finds next to nothing
whatever is there. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from audits.statistics import mutual_information as mi
from audits.statistics import secfpp_distance as distance
from reports.evidence import Evidence
from reports.figures.drawing import LOW, Plot, grid, legend, look_of, printed, styled
from reports.paper_items import PaperItem
from reports.rows import as_rows
from reports.templates import Write, render, write_drawings


class Items:
    figure2 = PaperItem()


USERS, USUAL_USERS = (5, 10, 20, 40, 60, 80, 100), 20
TOKENS, COMPONENTS, USUAL_COMPONENTS = 15, (1, 2, 4, 6, 8, 10), 8  # d = tokens times components: 15 to 150, usually 120
DRAWS = 1000  # as the paper
PANELS = {"users": ("n", f"users in a cluster (d = {TOKENS * USUAL_COMPONENTS})"),
          "dimension": ("d", f"dimension d of the reduced prompt ({USUAL_USERS} users)")}  # fmt: skip
SAID = 4.0  # log10 of self-information over the distance's, "r" of the text


def figure2(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure2.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns what the
    text says of the distance, and ours."""
    table = ours()
    with styled():
        drawing = printed("figure2", "SecFPP, Figure 2: information against users and dimension", plot(table))
    assert drawing is not None
    write_drawings([drawing], write, folder="")
    parts = {"drawing": drawing, "rows": as_rows(table), "panels": PANELS, "readings": readings(table), "draws": DRAWS}
    write("index.html", render("papers/secfpp_figure2.html", parts))
    return readings(table)[0]


def ours(users: Sequence[int] = USERS, components: Sequence[int] = COMPONENTS, size: int = DRAWS) -> pd.DataFrame:
    """A row per point of a panel and quantity, in nats: exact, and as the paper estimates it."""
    points = [("users", n, TOKENS * USUAL_COMPONENTS) for n in users]
    points += [("dimension", USUAL_USERS, TOKENS * k) for k in components]
    rows = []
    for panel, n, d in points:
        rng = np.random.default_rng((n, d))
        inside, outside = (distance.draws(n, d, size, rng, inside=where) for where in (True, False))
        lengths = (inside.prompts**2).sum(axis=1)
        rows += [
            (panel, n, d, "distance", distance.exact(n, d), mi.ksg(inside.prompts, inside.squared)),
            (panel, n, d, "distance, from the length", distance.exact(n, d), mi.ksg(lengths, inside.squared)),
            (panel, n, d, "distance, as printed", distance.printed(n, d), math.nan),
            (panel, n, d, "centre, inside", distance.centre(n, d), mi.ksg(inside.prompts, inside.centres)),
            (panel, n, d, "centre, outside", 0.0, mi.ksg(outside.prompts, outside.centres)),
            (panel, n, d, "self-information", distance.gaussian_entropy(d), mi.ksg(inside.prompts, inside.prompts)),
        ]
    return pd.DataFrame(rows, columns=["panel", "n", "d", "quantity", "exact", "ksg"])


def plot(table: pd.DataFrame) -> Plot:
    """A panel per axis: lines are exact, points are estimates. Zero and less has no place on a logarithmic axis."""
    names = list(dict.fromkeys(table.quantity))
    figure, axes = grid(1, len(PANELS), height=3.2, margins=LOW)
    for panel, (name, (by, label)) in zip(axes[0], PANELS.items(), strict=True):
        for quantity, own in table[table.panel == name].groupby("quantity", sort=False):
            look, place = look_of(names, str(quantity)), own[by]
            lines = {"exact": ({"marker": ""}, str(quantity)), "ksg": ({"linestyle": ""}, f"{quantity}, estimated")}
            if quantity == "distance, from the length":  # its line is the distance's
                del lines["exact"]
            for column, (change, words) in lines.items():
                if (own[column] > 0).any():
                    panel.plot(place, own[column].where(own[column] > 0), **look | change, label=words)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set(xlabel=label, ylabel="nats")
    legend(figure)
    return figure, table


def readings(table: pd.DataFrame) -> list[str]:
    """What the text says, beside what the numbers do."""
    usual = table[(table.n == USUAL_USERS) & (table.d == TOKENS * USUAL_COMPONENTS)].drop_duplicates("quantity")
    at = usual.set_index("quantity")
    ratio = math.log10(at.exact["self-information"] / at.exact["distance"])
    held = table[table.quantity == "distance"]
    by_users, by_dimension = (held[held.panel == name].exact for name in PANELS)
    itself, said = at.exact["self-information"], at.exact["distance"]
    return [
        f"The text: self-information is more than 10^{SAID:g} times what the distance says. Exactly it is "
        f"10^{ratio:.1f} times ({itself:.0f} and {said:.2f} nats).",
        f"The text: the dimension is the predominant factor, users hardly matter. Exactly the distance says "
        f"{by_users.min():.2f} to {by_users.max():.2f} nats over the users, {by_dimension.min():.2f} to "
        f"{by_dimension.max():.2f} over the dimensions; the printed formula does what the text says.",
        f"An estimate from prompts of {TOKENS * USUAL_COMPONENTS} dimensions says {at.ksg['distance']:.2f} of "
        f"{said:.2f} nats: it is biased until nothing is left. From the prompt's length, which holds all that the "
        f"distance says, it is {at.ksg['distance, from the length']:.2f}.",
    ]
