"""DP-FPL, Table 2: accuracy on clients' own classes, four methods at six budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaudit.terms.splits import LOCAL
from reports import printed_table
from reports.evidence import Evidence
from reports.papers import dpfpl
from reports.templates import Write

PRESET = "dpfpl-tables"
TASKS = {"symbols": ("--task=glyphs",), "digits": ("--task=digits",)}
SCALE = "dpfpl-paper"
REAL = {
    "Caltech101": ("--dataset=caltech101",),
    "OxfordPets": ("--dataset=oxford_pets",),
    "OxfordFlowers": ("--dataset=oxford_flowers",),
    "Food101": ("--dataset=food101",),
}
TINY = "--seeds 1 --rounds 1 --clients 2 --shots 4 --epsilon none,0.1"


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Tran et al., ICLR 2025; see `reports.papers.dpfpl`."""
    return printed_table.build(dpfpl.methods(2, LOCAL, evidence), write)
