"""SecFPP, Table 1: from hard prompts to SecFPP, over single domains and over pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import printed_table
from reports.evidence import Evidence
from reports.papers import secfpp
from reports.templates import Write

PRESET = "secfpp-table2"
TASKS = {
    "print": ("--domain=print",),
    "neon": ("--domain=neon",),
    "dots": ("--domain=dots",),
    "print+neon": ("--domain=print+neon",),
    "print+dots": ("--domain=print+dots",),
    "neon+dots": ("--domain=neon+dots",),
}
TINY = "--seeds 1 --rounds 1 --clients 4 --train 8 --test 1 --method dpfpl,secfpp"


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Hou et al. 2025; see `reports.papers.secfpp`."""
    return printed_table.build(secfpp.evolution(evidence), write)
