"""FedRand, Figure 3: what methods send in a round, as a share of what FedAvg sends, down and up.

Park et al. 2025, section 4. The figure prints no numbers; the text says that FedRand saves about 25 %, and that FedPer
needs 25 %, not with how many shared layers.
Ours are bytes of the tensors really sent by all clients of all rounds, so that they are exact: seeds change them only
by the coins that FedRand throws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import pandas as pd

from reports.evidence import Evidence, check
from reports.figures.drawing import LOW, Plot, grid, legend, look_of, printed, styled
from reports.paper_items import PaperItem
from reports.papers.fedrand import METHODS, TITLES, scale
from reports.rows import as_rows
from reports.templates import Write, render, write_drawings


class Items:
    figure3 = PaperItem(
        preset="fedrand-figures",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


PRINTED = {"FedAvg": 1.0, "FedRand": 0.75}
COLUMNS = "method down up both paper seeds".split()


def figure3(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure3.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns what the
    text says of FedRand, and ours. ValueError: no task, or one of whose methods nothing was counted."""
    if not evidence:
        raise ValueError("evidence is empty; the figure needs at least one task")
    for task, cells in evidence.items():
        check(cells)
        if (shares := ours(cells)).empty:
            raise ValueError(f"task {task!r} must have counted bytes of methods of the figure")
    with styled():
        drawing = printed("figure3", "FedRand, Figure 3: bytes of a round as a share of FedAvg's", plot(shares))
    assert drawing is not None
    write_drawings([drawing], write, folder="")
    seeds = sorted({e.seed for own in evidence.values() for e in own})
    parts = {"drawing": drawing, "rows": as_rows(shares), "seeds": seeds, "scale": scale(evidence)}
    write("index.html", render("papers/fedrand_figure3.html", parts))
    return "; ".join(
        f"{row.method} sends {100 * row.both:.1f} % of FedAvg's bytes, the paper says {100 * row.paper:.0f} %"
        for row in shares.itertuples()
        if row.method != "FedAvg" and pd.notna(row.paper)
    )


def ours(cells: Sequence[Evidence]) -> pd.DataFrame:
    """Shares of FedAvg's bytes, mean over seeds: down and up of its bytes both ways."""
    rows = []
    for label, name in TITLES.items():
        tables = [e.tables["cost"] for e in cells if e.method == label and len(e.tables.get("cost", ()))]
        if tables:
            down, up = (mean(t[way].sum() / t.fedavg_bytes.sum() for t in tables) for way in ("bytes_down", "bytes_up"))
            rows.append((name, down, up, down + up, PRINTED.get(name), len(tables)))
    return pd.DataFrame(rows, columns=COLUMNS)


def plot(shares: pd.DataFrame) -> Plot:
    """A bar per method, up on down; a dash where the paper says a number."""
    figure, axes = grid(1, 1, height=2.6, margins=LOW)
    panel, at = axes[0][0], range(len(shares))
    colours = [look_of(list(METHODS), name)["color"] for name in shares.method]
    panel.bar(at, 100 * shares.down, 0.6, color=colours, alpha=0.45, label="down")
    panel.bar(
        at, 100 * shares.up, 0.6, bottom=100 * shares.down, color=colours, hatch="///", edgecolor="white", label="up"
    )
    paper = 100 * shares.paper.astype(float)
    panel.plot(at, paper, "_", color="black", markersize=34, markeredgewidth=1.6, label="the paper's text")
    panel.set_xticks(at, shares.method)
    panel.set_ylabel("% of FedAvg's bytes")
    legend(figure)
    return figure, shares
