"""DP-FPL, Table 11: rank and residual at ε 0.01."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.inputs import Evidence
from reports.papers import dpfpl
from reports.templates import Write

PRESET = "dpfpl-ablation"
TASKS = {"symbols": ("--task=glyphs",)}


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Tran et al., ICLR 2025; see `reports.papers.dpfpl`."""
    return printed_table.build(dpfpl.ranks(11, evidence), write)
