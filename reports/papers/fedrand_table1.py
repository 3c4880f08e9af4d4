"""FedRand, Table 1: answers and captions of the aggregated model and of clients' models, five methods.

Levels are the two halves of the printed table. The task of questions plays ScienceQA, that of captions MSCOCO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.paper_items import PaperItem
from reports.papers import fedrand
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


def table1(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Park et al. 2025, section 4.2; see `reports.papers.fedrand`."""
    rows = {(name, words): (label, model) for words, model in MODELS.values() for name, label in METHODS.items()}
    found = fedrand.utility(evidence, rows)
    paper: fedrand.Printed = {}
    spreads: fedrand.Printed = {}
    for row in fedrand.printed_rows(1):
        place = row["method"], MODELS[row["role"]][0]
        paper.setdefault(row["metric"], {})[place] = row["mean"]
        spreads.setdefault(row["metric"], {})[place] = row["std"]
    exact = {"accuracy": "share of answers that are the right one word for word, as the paper has it"}
    ours = {name: Column(cells, (name,), exact.get(name, "")) for name, cells in found.items()}
    return printed_table.build(
        Table("fedrand:table1", ours, paper, fedrand.scale(evidence), levels_are="Model", spreads=spreads,
              seeds=printed_table.seeds_of(evidence)),
        write,
    )  # fmt: skip
