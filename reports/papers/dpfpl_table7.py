"""DP-FPL, Table 7: rank and residual at ε 0.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.papers import dpfpl
from reports.templates import Write

PRESET = "dpfpl-ablation"
TASKS = {"symbols": ("--task=glyphs",)}
SCALE = "dpfpl-paper"
REAL = {
    "Caltech101": ("--dataset=caltech101",),
    "OxfordPets": ("--dataset=oxford_pets",),
    "OxfordFlowers": ("--dataset=oxford_flowers",),
    "Food101": ("--dataset=food101",),
}


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Tran et al., ICLR 2025; see `reports.papers.dpfpl`."""
    return printed_table.build(dpfpl.ranks(7, evidence), write)
