"""FedRand, Table 1: answers and captions of the aggregated model and of clients' models, five methods.

The table has two halves (levels), one per model. Our task `questions` stands for ScienceQA, `captions` for MSCOCO.
"""

from __future__ import annotations

from operator import itemgetter

from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, means_and_spreads
from reports.papers.fedrand import METHODS
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
    """Write the table; see `fedrand.write_table`. Park et al. 2025, section 4.2."""
    rows = {(name, words): (label, model) for words, model in MODELS.values() for name, label in METHODS.items()}
    ours = fedrand.utility(evidence, rows)
    paper, spreads = means_and_spreads(
        "fedrand_table1", itemgetter("metric"), lambda row: (row["method"], MODELS[row["role"]][0])
    )
    return fedrand.write_table(1, evidence, ours, paper, write, spreads=spreads, levels_are="Model")
