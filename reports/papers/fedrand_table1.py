"""FedRand, Table 1: answers and captions of the aggregated model and of clients' models, five methods.

The table has two halves (levels), one per model. Our task `questions` stands for ScienceQA, `captions` for MSCOCO.
"""

from __future__ import annotations

from reports import printed_table
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, printed_means_and_spreads
from reports.papers.fedrand import METHODS
from reports.printed_table import Column, Table
from reports.templates import Write


class Items:
    table1 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",), "questions": ("--task=vqa",)},
        scale="paper",
        real={"captions": ("--task=coco",), "questions": ("--task=scienceqa",)},
        tiny="--seeds 1 --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 "
        "--method fedavg,fedrand",
    )


MODELS = {"server": ("aggregated model", "global"), "client": ("clients' models", "clients")}


def table1(evidence: EvidenceByTask, write: Write) -> str:
    """Write the table's files through `write`, the page last; returns how far the order of our methods agrees with the
    paper's. Park et al. 2025, section 4.2; see `reports.papers.fedrand`."""
    rows = {(name, words): (label, model) for words, model in MODELS.values() for name, label in METHODS.items()}
    paper, spreads = printed_means_and_spreads(
        "fedrand_table1", lambda row: row["metric"], lambda row: (row["method"], MODELS[row["role"]][0])
    )
    exact = {"accuracy": "share of answers that are the right one word for word, as the paper has it"}
    ours = {name: Column(cells, (name,), exact.get(name, ""))
            for name, cells in fedrand.utility(evidence, rows).items()}  # fmt: skip
    return printed_table.build(
        Table("fedrand:table1", ours, paper, fedrand.scale(evidence), levels_are="Model", spreads=spreads,
              seeds=printed_table.seeds_of(evidence)),
        write,
    )  # fmt: skip
