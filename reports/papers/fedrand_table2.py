"""FedRand, Table 2: captions of novel objects by the aggregated model, five methods.

The paper's novel objects are those of NoCaps; ours are scenes with objects that no client and no pre-training had.
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
    table2 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


def table2(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Park et al. 2025, section 4.2; see `reports.papers.fedrand`."""
    found = fedrand.utility(evidence, {(name, ""): (label, "novel") for name, label in METHODS.items()})
    paper: fedrand.Printed = {}
    for row in fedrand.printed_rows(2):
        paper.setdefault(row["metric"], {})[row["method"], ""] = row["value"]
    ours = {name: Column(cells, (name,)) for name, cells in found.items()}
    seeds = printed_table.seeds_of(evidence)
    return printed_table.build(Table("fedrand:table2", ours, paper, fedrand.scale(evidence), seeds=seeds), write)
