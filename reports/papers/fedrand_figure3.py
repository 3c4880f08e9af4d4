"""FedRand, Figure 3: what methods send in a round, as a share of what FedAvg sends, down and up.

Park et al. 2025, section 4. The figure prints no numbers. The text says that FedRand saves about 25 % and that FedPer
needs 25 %; it does not say with how many shared layers. Ours count the bytes of all tensors that clients sent and
received in all rounds. These are exact: seeds change them only through FedRand's random choice of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import pandas as pd

from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures.drawing import LOW, Plot, grid, legend, look_of
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, only_task, write_figure
from fedaudit.reports.papers.fedrand import METHODS, TITLES, scale
from fedaudit.reports.printed_table import seeds_of
from fedaudit.reports.rows import as_rows
from fedaudit.reports.templates import Write, render


class Items:
    figure3 = PaperItem(
        preset="fedrand-figures",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


PRINTED = {"FedAvg": 1.0, "FedRand": 0.75}  # shares that the paper's text gives
COLUMNS = "method down up both paper seeds".split()


def figure3(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure3.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns a
    sentence with FedRand's share here and in the paper's text. ValueError: there are no or several tasks, or no method
    has the table "cost"."""
    task, runs = only_task(evidence)
    if (shares := ours(runs)).empty:
        raise ValueError(f"task {task!r} must have counted bytes of methods of the figure")
    drawing = write_figure("figure3", "FedRand, Figure 3: bytes of a round as a share of FedAvg's", write, plot, shares)
    parts = {"drawing": drawing, "rows": as_rows(shares), "seeds": seeds_of(evidence), "scale": scale(evidence)}
    write("index.html", render("papers/fedrand_figure3.html", parts))
    return "; ".join(
        f"{row.method} sends {100 * row.both:.1f} % of FedAvg's bytes, the paper says {100 * row.paper:.0f} %"
        for row in shares.itertuples()
        if row.method != "FedAvg" and pd.notna(row.paper)
    )


def ours(runs: Sequence[Evidence]) -> pd.DataFrame:
    """A row per method with its bytes `down`, `up` and `both`, each divided by FedAvg's bytes in both directions; means
    over seeds. `paper` is the share in the paper's text (None: none), `seeds` their number. Methods without counted
    bytes are left out."""
    rows = []
    for label, name in TITLES.items():
        tables = [e.tables["cost"] for e in runs if e.method == label and len(e.tables.get("cost", ()))]
        if tables:
            down, up = (mean(t[c].sum() / t.fedavg_bytes.sum() for t in tables) for c in ("bytes_down", "bytes_up"))
            rows.append((name, down, up, down + up, PRINTED.get(name), len(tables)))
    return pd.DataFrame(rows, columns=COLUMNS)


def plot(shares: pd.DataFrame) -> Plot:
    """Draw a bar per method, the share up stacked on the share down, and a dash at the share in the paper's text;
    return the figure with its data."""
    figure, axes = grid(1, 1, height=2.6, margins=LOW)
    panel, positions = axes[0][0], range(len(shares))
    colours = [look_of(list(METHODS), name)["color"] for name in shares.method]
    panel.bar(positions, 100 * shares.down, 0.6, color=colours, alpha=0.45, label="down")
    look = {"color": colours, "hatch": "///", "edgecolor": "white"}
    panel.bar(positions, 100 * shares.up, 0.6, bottom=100 * shares.down, **look, label="up")
    paper = 100 * shares.paper.astype(float)
    panel.plot(positions, paper, "_", color="black", markersize=34, markeredgewidth=1.6, label="the paper's text")
    panel.set_xticks(positions, shares.method)
    panel.set_ylabel("% of FedAvg's bytes")
    legend(figure)
    return figure, shares
