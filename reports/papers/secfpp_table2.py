"""SecFPP, Table 2: accuracy of five methods on single domains and on pairs."""

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


def build(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Hou et al. 2025; see `reports.papers.secfpp`."""
    return printed_table.build(secfpp.methods(evidence), write)
