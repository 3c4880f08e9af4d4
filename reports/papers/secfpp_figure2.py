"""SecFPP, Figure 2: what the distance to a centre, and the centre, say of a prompt, against users and its dimension.

Hou et al. 2025, section 5.3. Users' prompts are drawn from N(0, I), 15 tokens reduced to 8 components, and mutual
information is estimated by KSG from 1,000 draws. The figure prints no numbers. The text says that the dimension matters
and the number of users hardly does, and that a prompt's self-information is more than ten thousand times the
information of the distance. We compute exact values (`audits.statistics.secfpp_distance`) and the paper's estimates.
From prompts of many dimensions KSG finds close to 0 nats, whatever the true value. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics import secfpp_distance as distance
from fedaudit.reports.figures.drawing import LOW, Plot, grid, legend, look_of
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, write_figure
from fedaudit.reports.rows import as_rows
from fedaudit.reports.templates import Write, render


class Items:
    figure2 = PaperItem()


USERS, USUAL_USERS = (5, 10, 20, 40, 60, 80, 100), 20
TOKENS, COMPONENTS, USUAL_COMPONENTS = 15, (1, 2, 4, 6, 8, 10), 8  # d = tokens times components: 15 to 150, usually 120
DRAWS = 1000  # as the paper
PANELS = {"users": ("n", f"users in a cluster (d = {TOKENS * USUAL_COMPONENTS})"),
          "dimension": ("d", f"dimension d of the reduced prompt ({USUAL_USERS} users)")}  # fmt: skip
PRINTED_RATIO = 4.0  # log10 of the self-information over the distance's, in the paper's text


def figure2(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure2.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns the first
    of the `readings`: what the distance to a centre says beside the whole prompt. `evidence` is not used."""
    table = ours()
    drawing = write_figure("figure2", "SecFPP, Figure 2: information against users and dimension", write, plot, table)
    parts = {"drawing": drawing, "rows": as_rows(table), "panels": PANELS, "readings": readings(table), "draws": DRAWS}
    write("index.html", render("papers/secfpp_figure2.html", parts))
    return readings(table)[0]


def ours(users: Sequence[int] = USERS, components: Sequence[int] = COMPONENTS, size: int = DRAWS) -> pd.DataFrame:
    """Information in nats about a prompt, a row per point of a panel (its n users, d dimensions) and quantity: `exact`,
    and `ksg`, estimated from `size` draws as in the paper; NaN where there is no estimate."""
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
    """Draw nats on a logarithmic axis, a panel for users and one for the dimension, exact values as lines, estimates as
    points; return the figure with its data. Values of 0 or less are left out."""
    names = list(dict.fromkeys(table.quantity))
    figure, axes = grid(1, len(PANELS), height=3.2, margins=LOW)
    for panel, (name, (by, label)) in zip(axes[0], PANELS.items(), strict=True):
        for quantity, rows in table[table.panel == name].groupby("quantity", sort=False):
            look = look_of(names, str(quantity))
            lines = {"exact": ({"marker": ""}, str(quantity)), "ksg": ({"linestyle": ""}, f"{quantity}, estimated")}
            if quantity == "distance, from the length":  # its line is the distance's
                del lines["exact"]
            for column, (change, words) in lines.items():
                if (rows[column] > 0).any():
                    panel.plot(rows[by], rows[column].where(rows[column] > 0), **look | change, label=words)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set(xlabel=label, ylabel="nats")
    legend(figure)
    return figure, table


def readings(table: pd.DataFrame) -> list[str]:
    """Three texts, a sentence or two each, that compare claims of the paper's text with our numbers: what the distance
    says beside the prompt itself, users and dimension, and the estimator's bias."""
    usual = table[(table.n == USUAL_USERS) & (table.d == TOKENS * USUAL_COMPONENTS)].drop_duplicates("quantity")
    at = usual.set_index("quantity")
    ratio = math.log10(at.exact["self-information"] / at.exact["distance"])
    distances = table[table.quantity == "distance"]
    by_users, by_dimension = (distances[distances.panel == name].exact for name in PANELS)
    of_prompt, of_distance = at.exact["self-information"], at.exact["distance"]
    return [
        f"The text: self-information is more than 10^{PRINTED_RATIO:g} times what the distance says. Exactly it is "
        f"10^{ratio:.1f} times ({of_prompt:.0f} and {of_distance:.2f} nats).",
        f"The text: the dimension is the predominant factor, users hardly matter. Exactly the distance says "
        f"{by_users.min():.2f} to {by_users.max():.2f} nats over the users, {by_dimension.min():.2f} to "
        f"{by_dimension.max():.2f} over the dimensions; the printed formula does what the text says.",
        f"An estimate from prompts of {TOKENS * USUAL_COMPONENTS} dimensions says {at.ksg['distance']:.2f} of "
        f"{of_distance:.2f} nats: it is biased until nothing is left. From the prompt's length, which holds all that "
        f"the distance says, it is {at.ksg['distance, from the length']:.2f}.",
    ]
