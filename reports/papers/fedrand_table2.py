"""FedRand, Table 2: captions of novel objects by the aggregated model, five methods.

The paper's novel objects are those of NoCaps; ours are scenes with objects that neither clients nor pre-training had.
"""

from __future__ import annotations

from operator import itemgetter

from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, printed_cells
from reports.papers.fedrand import METHODS
from reports.printed_table import printed
from reports.templates import Write


class Items:
    table2 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


def table2(evidence: EvidenceByTask, write: Write) -> str:
    """Write the table; see `fedrand.write_table`. Park et al. 2025, section 4.2."""
    ours = fedrand.utility(evidence, {(name, ""): (label, "novel") for name, label in METHODS.items()})
    paper = printed_cells(printed("fedrand_table2"), itemgetter("metric"), lambda row: (row["method"], ""))
    return fedrand.write_table(2, evidence, ours, paper, write)
