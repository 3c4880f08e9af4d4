"""DP²FL, Table 2: the global model on clients' test sets, beside their own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.papers import dp2fl
from reports.templates import Write

PRESET = "dp2fl-tables"
TASKS = {"few shots": ("--task=fewshots",)}


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Chang et al. 2025; see `reports.papers.dp2fl`."""
    return printed_table.build(dp2fl.models(evidence), write)
