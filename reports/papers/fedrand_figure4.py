"""FedRand, Figure 4: Rényi entropy of every word of a member's and of a non-member's caption.

Park et al. 2025, appendix. The figure prints no numbers: the surer the model is of a word, the darker it is. The paper
shows two pairs. In one, FedRand's model is sure of the member alone (the defence failed); in the other it is sure of
neither. We show the pairs in the reports of one FedRand run and one FedAvg run, and beside each the public base model,
which the paper does not show: words that a model was sure of before training are no leak.
"""

from __future__ import annotations

import pandas as pd

from fedaudit.reports.evidence import concat_table
from fedaudit.reports.figures.tokens import tokens_plot
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, only_task, write_figure
from fedaudit.reports.papers.fedrand import scale
from fedaudit.reports.rows import as_rows
from fedaudit.reports.templates import Write, render


class Items:
    figure4 = PaperItem(
        preset="fedrand-tables",
        method="fedavg,fedrand",
        attacked=True,
        tiny="--seeds 1 --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 "
        "--local-epochs 1",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


METHODS = {"fedrand": "FedRand", "fedavg": "FedAvg"}


def figure4(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure4.svg, .pdf and .csv through `write(name, bytes)`; the page comes last. Returns in words
    each shown caption's mean entropy before and after training. The captions are those of the first run of each method.
    ValueError: there are no or several tasks, or neither of these runs has a table "tokens"."""
    task, runs = only_task(evidence)
    first = [next((e for e in runs if e.method == label), None) for label in METHODS]
    words = concat_table([e for e in first if e is not None], "tokens")
    words["method"] = words.method.map(METHODS)
    if words.empty:
        raise ValueError(f"task {task!r} must have the words of a record of FedRand or FedAvg")
    alt = "FedRand, Figure 4: Rényi entropy of every word"
    drawing = write_figure("figure4", alt, write, tokens_plot, words, list(METHODS.values()))
    means = entropies(words)
    write("index.html", render("papers/fedrand_figure4.html", {
        "drawing": drawing, "rows": as_rows(means), "seed": runs[0].seed, "scale": scale(evidence),
    }))  # fmt: skip
    return reading(means)


def entropies(words: pd.DataFrame) -> pd.DataFrame:
    """Mean entropy of the words of each caption in nats: after training (`entropy`), of the public base model
    (`base_entropy`) and how much it fell (`fell`); a row per method, panel ("member" or "non-member") and record."""
    captions = words[words["slice"] == "caption"]
    by_record = captions.groupby(["method", "panel", "record"], sort=False)
    means = by_record[["entropy", "base_entropy"]].mean().reset_index()
    return means.assign(fell=means.base_entropy - means.entropy)


def reading(means: pd.DataFrame) -> str:
    """Each caption's mean entropy before and after training, in words. A pair per method is too few for a test."""
    return "; ".join(
        f"{method}: entropy of the words of the "
        + ", of the ".join(f"{row.panel} {row.base_entropy:.2f} to {row.entropy:.2f} nats" for row in rows.itertuples())
        for method, rows in means.groupby("method", sort=False)
    )
