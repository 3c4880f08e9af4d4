"""DP-FPL, Figure 4: rank, noise and residual, beside what the paper prints of OxfordPets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.evidence import Evidence
from reports.papers import ablation
from reports.templates import Write

PRESET = "dpfpl-ablation"
TASKS = {"symbols": ("--task=glyphs",)}
SCALE = "dpfpl-paper"
REAL = {"OxfordPets": ("--dataset=oxford_pets",)}


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Tran et al., ICLR 2025; see `reports.papers.ablation`."""
    return ablation.build("OxfordPets", 4, evidence, write)
