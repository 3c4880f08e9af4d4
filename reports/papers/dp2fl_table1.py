"""DP²FL, Table 1: accuracy and F1 of clients' own models, beside three baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.papers import dp2fl
from reports.templates import Write

PRESET = "dp2fl-tables"
TASKS = {"few shots": ("--task=fewshots",)}
TINY = "--seeds 1 --rounds 1 --clients 2 --shots 4 --test 1 --local-epochs 1 --method dp2fl,local"


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Chang et al. 2025; see `reports.papers.dp2fl`."""
    return printed_table.build(dp2fl.methods(evidence), write)
