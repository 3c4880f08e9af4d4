"""FedRand, Table 3: FedRand without each of its parts, captions of the aggregated model and MaxRényi-10 % against it.

The non-members of the printed AUROCs are records of NoCaps. Ours are records with novel objects and, in columns of
their own, held-out records, where a coin decided who is a member.
"""

from __future__ import annotations

from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, means_and_spreads
from reports.printed_table import Column
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
    """Write the table; see `fedrand.write_table`. Park et al. 2025, section 4.3."""
    ours = fedrand.utility(evidence, {(name, ""): (label, "global") for name, label in VARIANTS.values()})
    paper, spreads = means_and_spreads(
        "fedrand_table3",
        lambda row: row["metric"] if row["mia_input"] == "na" else f"AUROC, {row['mia_input']}",
        lambda row: (VARIANTS[row["variant"]][0], ""),
    )
    attacked = {(name, ""): (label, "server") for name, label in VARIANTS.values()}
    for part in ("image", "caption"):
        for split, remark in ((NOVEL_OBJECTS, ""), (HELD_OUT, fedrand.COIN_REMARK)):
            cells = fedrand.aurocs(evidence, attacked, split, f"renyi/2/10/{part}")
            against = () if remark else (f"AUROC, {part}",)
            ours[f"AUROC, {part}" + (", held-out" if remark else "")] = Column(cells, against, remark)
    return fedrand.write_table(3, evidence, ours, paper, write, spreads=spreads, rows_are="Variant")
