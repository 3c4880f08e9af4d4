"""FedRand, Figure 2: CIDEr against the AUROC of MaxRényi, of the aggregated model and of reconstructed clients.

Park et al. 2025. The figure prints no numbers; its points are taken from the paper's Tables 1 (CIDEr on MSCOCO) and 4
(MaxRényi-10 % on captions, MSCOCO against NoCaps). Ours stand beside them twice. The paper's own split has records with
novel objects as non-members, so that distributions differ too, not membership alone. The other split has held-out
records of the same clients, where a coin decided who is a member. Lower and further to the right is better. Clients of
FedPer and FedPara cannot be reconstructed from their uploads: the paper has no points for them, and ours show the parts
that the server does rebuild.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedaudit.audits.statistics.over_seeds import OfTraining
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures.drawing import GREY, LOW, Plot, grid, legend, look_of
from fedaudit.reports.formats import signed
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, only_task, write_figure
from fedaudit.reports.papers.fedrand import ATTACKED, METHODS, TITLES, last_utility, over_trainings, scale
from fedaudit.reports.printed_table import printed, seeds_of
from fedaudit.reports.templates import Write, render
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS


class Items:
    figure2 = PaperItem(
        preset="fedrand-figures",
        attacked=True,
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
        tiny="--seeds 1 --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 "
        "--local-epochs 1 --method fedavg,fedrand",
    )


SPLITS = {"paper": "the paper", NOVEL_OBJECTS: "ours, against novel objects", HELD_OUT: "ours, against held-out"}
SIGNAL = "renyi/2/10/caption"  # MaxRényi-10 % of order 2, on captions
COLUMNS = "split method role cider auroc low high seeds".split()


def figure2(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure2.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns the
    sentences of `readings` about held-out records.

    `evidence` holds, by the name of the one task, the runs of the methods. ValueError: there are no or several tasks,
    or there is no point.
    """
    task, runs = only_task(evidence)
    points = pd.concat([paper(), ours(runs)], ignore_index=True)
    if set(points.split) == {"paper"}:
        raise ValueError(f"task {task!r} must have AUROCs of {SIGNAL} and CIDEr of methods of the figure")
    alt = "FedRand, Figure 2: CIDEr against AUROC, the paper's and ours"
    drawing = write_figure("figure2", alt, write, plot, points)
    rows = {split: points[points.split == split].to_dict("records") for split in SPLITS}
    write("index.html", render("papers/fedrand_figure2.html", {
        "drawing": drawing, "rows": rows, "splits": SPLITS, "seeds": seeds_of(evidence), "readings": readings(points),
        "scale": scale(evidence),
    }))  # fmt: skip
    return "; ".join(readings(points, [HELD_OUT])) or "FedRand and FedAvg were not both measured"


@functools.cache
def paper() -> pd.DataFrame:
    """The printed points in percent, a row per method and role ("server", "client") with its cider and auroc. They have
    no interval, and 0 seeds; the column split is "paper"."""
    one, four = (printed(f"fedrand_table{number}") for number in (1, 4))
    cider = one[(one.metric == "CIDEr") & (one.dataset == "MSCOCO")].set_index(["method", "role"])["mean"]
    rows = []
    for row in four[(four.mia_input == "caption") & (four.max_renyi_k_percent == "10")].to_dict("records"):
        key = row["method"], row["role"]
        rows.append(("paper", *key, float(cider[key]), float(row["mean"]), None, None, 0))
    return pd.DataFrame(rows, columns=COLUMNS)


def ours(runs: Sequence[Evidence]) -> pd.DataFrame:
    """Our points in percent, a row per split (kind of non-members), method and role ("server": the aggregated model,
    "client": clients' own): cider and auroc, means over seeds, with the AUROC's low and high over seeds and records.
    Points that lack AUROC or CIDEr are left out."""
    rows = []
    for label, title in TITLES.items():
        seeds = [e for e in runs if e.method == label]
        for role, model in (("server", "global"), ("client", "clients")):
            ciders = [value for e in seeds if (value := last_utility(e, model, "cider")) is not None]
            for split in (NOVEL_OBJECTS, HELD_OUT):
                aurocs = [one for e in seeds if (one := _auroc(e, role, split)) is not None]
                if aurocs and ciders:
                    cell = over_trainings(aurocs)
                    cider = sum(ciders) / len(ciders)
                    rows.append((split, title, role, cider, cell.value, cell.low, cell.high, cell.seeds))
    return pd.DataFrame(rows, columns=COLUMNS)


def _auroc(e: Evidence, role: str, split: str) -> OfTraining | None:
    """A run's headline AUROC (0 to 1) of `SIGNAL` with its interval, on the models of a role ("server" or "client")
    against the non-members `split`; None if it was not measured."""
    for f in (f for f in e.findings if f["metric"] == "auroc" and f["signal"] == SIGNAL and f["headline"]):
        attacked = f["threat_model"], f["way"]
        if attacked in ATTACKED[role] and f["nonmembers"] == split and f["value"] is not None:
            return OfTraining(f["value"], f["low"], f["high"], f["confidence"])
    return None


def readings(points: pd.DataFrame, splits: Sequence[str] = tuple(SPLITS)) -> list[str]:
    """Sentences on what the paper says of its figure, that FedRand leaks less than FedAvg at much the same CIDEr: one
    per split (kind of non-members) and role that has both methods. With overlapping intervals one says "not surely
    less"."""
    sentences = []
    for split in splits:
        in_split = points[points.split == split].set_index(["method", "role"])
        for role in ("server", "client"):
            if {("FedAvg", role), ("FedRand", role)} <= set(in_split.index):
                a, b = (in_split.loc[method, role] for method in ("FedAvg", "FedRand"))
                sure = pd.isna(b.high) or b.high < a.low
                lower = "less" if b.auroc < a.auroc and sure else "not surely less" if b.auroc < a.auroc else "no less"
                sentences.append(
                    f"{SPLITS[split]}, {role}: FedRand leaks {lower} than FedAvg (AUROC {_with_interval(b)} and "
                    f"{_with_interval(a)} %) at {signed(b.cider - a.cider)} points of CIDEr"
                )
    return sentences


def _with_interval(point: Any) -> str:
    """A point's AUROC with its interval; without one, as for the paper's points, with the two printed decimals."""
    return f"{point.auroc:.2f}" if pd.isna(point.low) else f"{point.auroc:.1f} [{point.low:.1f}, {point.high:.1f}]"


def plot(points: pd.DataFrame) -> Plot:
    """Draw a panel per split, AUROC against CIDEr with a marker per method, hollow for reconstructed clients, and
    return the figure with its data."""
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
