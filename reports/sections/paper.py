"""Beside the paper: our accuracies beside those that DP-FPL prints, and whether methods come in the same order."""

from __future__ import annotations

from fedaudit.reports.beside_dpfpl import compare_with_paper
from fedaudit.reports.section import Page, Section

ORDER = 50


def section(page: Page) -> Section | None:
    """Our accuracies beside the paper's; None unless two of its methods were run at one of its epsilons."""
    comparison = compare_with_paper(page.runs)
    return Section([("paper", "Beside the paper")], {"paper": comparison}) if comparison else None
