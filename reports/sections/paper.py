"""Beside the paper: our accuracies beside those that DP-FPL prints, and whether methods come in the same order."""

from __future__ import annotations

from reports.beside_dpfpl import beside
from reports.section import Page, Section

ORDER = 50


def section(page: Page) -> Section | None:
    """Where two of the paper's methods stand at one of its epsilons."""
    found = beside(page.runs)
    return Section([("paper", "Beside the paper")], {"paper": found}) if found else None
