"""Runs a plan, or shows its report if it is on disk. Imports nothing heavy, so that a finished report is shown at
once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.pipeline.finished import sound
from fedaudit.pipeline.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """The result of a plan."""

    report: Path  # its page
    findings: list[dict[str, Any]]
    reused: list[str]  # the parts that were on disk, for messages


@undisturbed()
def run(plan: Plan, progress: Progress) -> Outcome:
    """Train, attack, audit and write the report, as far as that is not on disk; returns the report's page, findings,
    and what was reused. Safe to kill, and to run twice at once.

    InputError: files were damaged or deleted while they were needed; the same call computes them again.
    """
    reused = ["report"]
    if not sound(plan):
        from fedaudit.pipeline.compute import compute

        reused = compute(plan, progress)
    report = Folder(plan.report_folder)
    return Outcome(report.path / "index.html", report.read_json("findings.json"), reused)
