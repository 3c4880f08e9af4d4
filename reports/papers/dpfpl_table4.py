"""DP-FPL, Table 4: accuracy of 25 and of 50 clients with a Dirichlet split, four methods at six budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.papers import dpfpl
from reports.templates import Write

PRESET = "dpfpl-table4"
TASKS = {"25 clients": ("--clients=25",), "50 clients": ("--clients=50",)}
SCALE = "dpfpl-paper-cifar100"
REAL = {"25 clients": ("--clients=25",), "50 clients": ("--clients=50",)}
TINY = "--seeds 1 --rounds 1 --train 16 --test 1 --epsilon none --method promptfl,dpfpl"


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Tran et al., ICLR 2025; see `reports.papers.dpfpl`."""
    return printed_table.build(dpfpl.clients(4, evidence), write)
