"""FedRand, Table 3: FedRand without each of its parts, captions of the aggregated model and MaxRényi-10 % against it.

The printed AUROCs are against NoCaps; ours stand beside them against novel objects and, where a coin decided who is a
member, against held-out records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from reports import printed_table
from reports.evidence import Evidence
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.printed_table import Column, Table
from reports.templates import Write


class Items:
    table3 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


VARIANTS = {  # as printed: what rows are called, and our label
    "FedRand": ("FedRand", "fedrand"),
    "rho_0.3": ("ρ 0.3", "fedrand:rho=0.3"),
    "rho_0.7": ("ρ 0.7", "fedrand:rho=0.7"),
    "without_past_parameters": ("without past parameters", "fedrand:past=false"),
    "without_normalization": ("without normalization", "fedrand:normalise=false"),
}


def table3(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Park et al. 2025, section 4.3; see `reports.papers.fedrand`."""
    found = fedrand.utility(evidence, {(name, ""): (label, "global") for name, label in VARIANTS.values()})
    paper: fedrand.Printed = {}
    spreads: fedrand.Printed = {}
    for row in fedrand.printed_rows(3):
        column = row["metric"] if row["mia_input"] == "na" else f"AUROC, {row['mia_input']}"
        place = VARIANTS[row["variant"]][0], ""
        paper.setdefault(column, {})[place] = row["mean"]
        spreads.setdefault(column, {})[place] = row["std"]
    ours = {name: Column(cells, (name,)) for name, cells in found.items()}
    for where in ("image", "caption"):
        for split, words in ((NOVEL_OBJECTS, ""), (HELD_OUT, fedrand.COIN_REMARK)):
            known = {
                (name, ""): fedrand.auroc(evidence, label, "server", split, f"renyi/2/10/{where}")
                for name, label in VARIANTS.values()
            }
            cells = {row: cell for row, cell in known.items() if cell is not None}
            against = () if words else (f"AUROC, {where}",)
            ours[f"AUROC, {where}" + (", held-out" if words else "")] = Column(cells, against, words)
    return printed_table.build(
        Table("fedrand:table3", ours, paper, fedrand.scale(evidence), spreads=spreads, rows_are="Variant",
              seeds=printed_table.seeds_of(evidence)),
        write,
    )  # fmt: skip
