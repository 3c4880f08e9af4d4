"""FedRand, Table 3: FedRand without each of its parts, captions of the aggregated model and MaxRényi-10 % against it.

The non-members of the printed AUROCs are records of NoCaps. Ours are records with novel objects and, in columns of
their own, held-out records, where a coin decided who is a member.
"""

from __future__ import annotations

from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from reports import printed_table
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, printed_means_and_spreads
from reports.printed_table import Column, Table
from reports.templates import Write


class Items:
    table3 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


VARIANTS = {  # by name in fedrand_table3.csv: the row's name and our method's label
    "FedRand": ("FedRand", "fedrand"),
    "rho_0.3": ("ρ 0.3", "fedrand:rho=0.3"),
    "rho_0.7": ("ρ 0.7", "fedrand:rho=0.7"),
    "without_past_parameters": ("without past parameters", "fedrand:past=false"),
    "without_normalization": ("without normalization", "fedrand:normalise=false"),
}


def table3(evidence: EvidenceByTask, write: Write) -> str:
    """Write the table's files through `write`, the page last; returns how far the order of our variants agrees with the
    paper's. Park et al. 2025, section 4.3; see `reports.papers.fedrand`."""
    measured = fedrand.utility(evidence, {(name, ""): (label, "global") for name, label in VARIANTS.values()})
    paper, spreads = printed_means_and_spreads(
        "fedrand_table3",
        lambda row: row["metric"] if row["mia_input"] == "na" else f"AUROC, {row['mia_input']}",
        lambda row: (VARIANTS[row["variant"]][0], ""),
    )
    ours = {name: Column(cells, (name,)) for name, cells in measured.items()}
    for part in ("image", "caption"):
        for split, remark in ((NOVEL_OBJECTS, ""), (HELD_OUT, fedrand.COIN_REMARK)):
            aurocs = {
                (name, ""): fedrand.auroc(evidence, label, "server", split, f"renyi/2/10/{part}")
                for name, label in VARIANTS.values()
            }
            cells = {row: cell for row, cell in aurocs.items() if cell is not None}
            against = () if remark else (f"AUROC, {part}",)
            ours[f"AUROC, {part}" + (", held-out" if remark else "")] = Column(cells, against, remark)
    return printed_table.build(
        Table("fedrand:table3", ours, paper, fedrand.scale(evidence), spreads=spreads, rows_are="Variant",
              seeds=printed_table.seeds_of(evidence)),
        write,
    )  # fmt: skip
