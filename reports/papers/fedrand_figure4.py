"""FedRand, Figure 4: Rényi entropy of every word of a member's and of a non-member's caption.

Park et al. 2025, appendix. The figure prints no numbers: a word is the darker the surer the model is of it. The paper
shows two pairs, one where FedRand's model is sure of the member alone (a defence that failed) and one where it is of
neither. Ours are the pairs that the reports of FedRand's and of FedAvg's run keep, each beside the public base model,
of which the paper shows nothing: what a model was sure of before it learnt the record is no leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from reports.evidence import Evidence, check, concat_table
from reports.figures.drawing import printed, styled
from reports.figures.tokens import tokens_plot
from reports.paper_items import PaperItem
from reports.papers.fedrand import scale
from reports.rows import as_rows
from reports.templates import Write, render, write_drawings


class Items:
    figure4 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


SHOWN = {"fedrand": "FedRand", "fedavg": "FedAvg"}


def figure4(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure4.svg, .pdf and .csv through `write(name, bytes)`, the page last; returns how much surer
    FedRand's model has become of the member's words than of the non-member's. ValueError: no task, or one without
    words."""
    if not evidence:
        raise ValueError("evidence is empty; the figure needs at least one task")
    cells = [e for own in evidence.values() for e in own]
    for own in evidence.values():
        check(own)
    first = [next((e for e in cells if e.method == label), None) for label in SHOWN]
    words = concat_table([e for e in first if e is not None], "tokens")
    words["method"] = words.method.map(SHOWN)
    if words.empty:
        raise ValueError(f"task {next(iter(evidence))!r} must have the words of a record of FedRand or FedAvg")
    with styled():
        plot = tokens_plot(words, list(SHOWN.values()))
        drawing = printed("figure4", "FedRand, Figure 4: Rényi entropy of every word", plot)
    assert drawing is not None
    write_drawings([drawing], write, folder="")
    means = entropies(words)
    said = reading(means)
    write("index.html", render("papers/fedrand_figure4.html", {
        "drawing": drawing, "rows": as_rows(means), "seed": cells[0].seed, "scale": scale(evidence),
    }))  # fmt: skip
    return said


def entropies(words: pd.DataFrame) -> pd.DataFrame:
    """The mean entropy of a caption's words, after training and before, in nats, by method and record."""
    captions = words[words["slice"] == "caption"]
    found = (
        captions.groupby(["method", "panel", "record"], sort=False)[["entropy", "base_entropy"]].mean().reset_index()
    )
    return found.assign(fell=found.base_entropy - found.entropy)


def reading(means: pd.DataFrame) -> str:
    """By how much the entropy of each caption fell in training. Two records: no test of anything."""
    return "; ".join(
        f"{method}: entropy of the words of the "
        + ", of the ".join(f"{row.panel} {row.base_entropy:.2f} to {row.entropy:.2f} nats" for row in own.itertuples())
        for method, own in means.groupby("method", sort=False)
    )
