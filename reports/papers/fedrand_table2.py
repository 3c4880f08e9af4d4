"""FedRand, Table 2: captions of novel objects by the aggregated model, five methods.

The paper's novel objects are those of NoCaps; ours are scenes with objects that neither clients nor pre-training had.
"""

from __future__ import annotations

from reports import printed_table
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, printed_cells
from reports.papers.fedrand import METHODS
from reports.printed_table import Column, Table, printed
from reports.templates import Write


class Items:
    table2 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


def table2(evidence: EvidenceByTask, write: Write) -> str:
    """Write the table's files through `write`, the page last; returns how far the order of our methods agrees with the
    paper's. Park et al. 2025, section 4.2; see `reports.papers.fedrand`."""
    measured = fedrand.utility(evidence, {(name, ""): (label, "novel") for name, label in METHODS.items()})
    paper = printed_cells(printed("fedrand_table2"), lambda row: row["metric"], lambda row: (row["method"], ""))
    ours = {name: Column(cells, (name,)) for name, cells in measured.items()}
    seeds = printed_table.seeds_of(evidence)
    return printed_table.build(Table("fedrand:table2", ours, paper, fedrand.scale(evidence), seeds=seeds), write)
