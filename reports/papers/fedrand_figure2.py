"""FedRand, Figure 2: CIDEr against the AUROC of MaxRényi, of the aggregated model and of reconstructed clients.

Park et al. 2025. The figure prints no numbers; its points are taken from the paper's Tables 1 (CIDEr on MSCOCO) and 4
(MaxRényi-10 % on captions, MSCOCO against NoCaps). Ours stand beside them twice: on the paper's own split, against
records with novel objects, where distributions differ and not membership alone, and against held-out records of the
same clients, where a coin decided. Lower and further to the right is better. FedPer's and FedPara's clients cannot be
reconstructed from what they send: the paper has no points of them, and ours are of what the server does rebuild.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from audits.statistics.over_seeds import OfTraining
from fedaudit.terms.held_models import FINAL
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.threat_models import RELEASED_MODEL, SERVER
from reports.evidence import Evidence, check
from reports.figures.drawing import GREY, LOW, Plot, grid, legend, look_of, printed, styled
from reports.formats import signed
from reports.paper_items import PaperItem
from reports.papers.fedrand import CLIENT_WAYS, METHODS, TITLES, over_trainings, scale
from reports.templates import Write, render, write_drawings


class Items:
    figure2 = PaperItem(
        preset="fedrand-figures",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
        tiny="--seeds 1 --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 "
        "--method fedavg,fedrand",
    )


SPLITS = {"paper": "the paper", NOVEL_OBJECTS: "ours, against novel objects", HELD_OUT: "ours, against held-out"}
K = "renyi/2/10/caption"
COLUMNS = "split method role cider auroc low high seeds".split()


def figure2(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure2.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns what ours
    say where a coin decided who is a member.

    `evidence` holds, by task, the cells of the methods. ValueError: no task, or one without a point.
    """
    if not evidence:
        raise ValueError("evidence is empty; the figure needs at least one task")
    for task, cells in evidence.items():
        check(cells)
        points = pd.concat([paper(), ours(cells)], ignore_index=True)
        if set(points.split) == {"paper"}:
            raise ValueError(f"task {task!r} must have AUROCs of {K} and CIDEr of methods of the figure")
    with styled():
        drawing = printed("figure2", "FedRand, Figure 2: CIDEr against AUROC, the paper's and ours", plot(points))
    assert drawing is not None  # the paper's points are always there
    write_drawings([drawing], write, folder="")
    rows = {split: points[points.split == split].to_dict("records") for split in SPLITS}
    seeds = sorted({e.seed for own in evidence.values() for e in own})
    write("index.html", render("papers/fedrand_figure2.html", {
        "drawing": drawing, "rows": rows, "splits": SPLITS, "seeds": seeds, "readings": readings(points),
        "scale": scale(evidence),
    }))  # fmt: skip
    return "; ".join(readings(points, [HELD_OUT])) or "FedRand and FedAvg were not both measured"


@functools.cache
def paper() -> pd.DataFrame:
    """The printed points, which have no interval."""
    folder = Path(__file__).parent
    one, four = (pd.read_csv(folder / f"fedrand_table{i}.csv") for i in (1, 4))
    cider = one[(one.metric == "CIDEr") & (one.dataset == "MSCOCO")].set_index(["method", "role"])["mean"]
    rows = []
    for row in four[(four.mia_input == "caption") & (four.max_renyi_k_percent == 10)].to_dict("records"):
        place = row["method"], row["role"]
        rows.append(("paper", *place, float(cider[place]), row["mean"], None, None, 0))
    return pd.DataFrame(rows, columns=COLUMNS)


def ours(cells: Sequence[Evidence]) -> pd.DataFrame:
    """The points of ours in percent, means over seeds with an interval over seeds and records."""
    rows = []
    for label in (label for label in TITLES if any(e.method == label for e in cells)):
        seeds = [e for e in cells if e.method == label]
        for role, model in (("server", "global"), ("client", "clients")):
            useful = [value for e in seeds if (value := _cider(e, model)) is not None]
            for split in (NOVEL_OBJECTS, HELD_OUT):
                found = [one for e in seeds if (one := _auroc(e, role, split)) is not None]
                if found and useful:
                    cell = over_trainings(found)
                    cider = sum(useful) / len(useful)
                    rows.append((split, TITLES[label], role, cider, cell.value, cell.low, cell.high, cell.seeds))
    return pd.DataFrame(rows, columns=COLUMNS)


def _cider(e: Evidence, model: str) -> float | None:
    """In the paper's unit, percent, after the last round in which it was asked for."""
    table = e.tables.get("utility", pd.DataFrame())
    if "cider" not in table:
        return None
    known = table[(table.model == model) & (table["round"] >= 0)].dropna(subset="cider").sort_values("round")
    return None if known.empty else float(known.cider.iloc[-1])


def _auroc(e: Evidence, role: str, split: str) -> OfTraining | None:
    places = [(RELEASED_MODEL, FINAL)] if role == "server" else [(SERVER, way) for way in CLIENT_WAYS]
    for f in (f for f in e.findings if f["metric"] == "auroc" and f["signal"] == K and f["headline"]):
        if (f["threat_model"], f["way"]) in places and f["nonmembers"] == split and f["value"] is not None:
            return OfTraining(f["value"], f["low"], f["high"], f["confidence"])
    return None


def readings(points: pd.DataFrame, splits: Sequence[str] = tuple(SPLITS)) -> list[str]:
    """What the paper says of its figure, and whether it is so here: FedRand leaks less than FedAvg at much the same
    CIDEr. Ours have intervals; where these overlap nothing is said to be less."""
    found = []
    for split in splits:
        own = points[points.split == split].set_index(["method", "role"])
        for role in ("server", "client"):
            if {("FedAvg", role), ("FedRand", role)} <= set(own.index):
                a, b = (own.loc[method, role] for method in ("FedAvg", "FedRand"))
                sure = pd.isna(b.high) or b.high < a.low
                lower = "less" if b.auroc < a.auroc and sure else "not surely less" if b.auroc < a.auroc else "no less"
                found.append(
                    f"{SPLITS[split]}, {role}: FedRand leaks {lower} than FedAvg (AUROC {_with_interval(b)} and "
                    f"{_with_interval(a)} %) at {signed(b.cider - a.cider)} points of CIDEr"
                )
    return found


def _with_interval(point: Any) -> str:
    """The paper's points have none, and stand as they are printed."""
    return f"{point.auroc:.2f}" if pd.isna(point.low) else f"{point.auroc:.1f} [{point.low:.1f}, {point.high:.1f}]"


def plot(points: pd.DataFrame) -> Plot:
    """A panel per split: markers by method, hollow for reconstructed clients."""
    figure, axes = grid(1, len(SPLITS), height=3.0, margins=LOW)
    for panel, (split, name) in zip(axes[0], SPLITS.items(), strict=True):
        for row in points[points.split == split].to_dict("records"):
            look: dict[str, Any] = look_of(list(METHODS), row["method"], hollow=row["role"] == "client")
            bars = None if pd.isna(row["low"]) else [[row["auroc"] - row["low"]], [row["high"] - row["auroc"]]]
            label = row["method"] + (", reconstructed client" if row["role"] == "client" else "")
            look |= {"linestyle": "", "elinewidth": 0.7, "label": label}
            panel.errorbar([row["cider"]], [row["auroc"]], bars, **look)
        panel.axhline(50, color=GREY, linewidth=1.1)
        panel.set(title=name, xlabel="CIDEr (%)", ylabel="AUROC of MaxRényi-10 % (%)")
    legend(figure)
    return figure, points
