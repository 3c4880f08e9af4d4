"""Run a plan, or show what is on disk already. Imports nothing heavy: a report that is there is shown at once."""

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
    """Where the report is, what it found, and what was reused."""

    report: Path
    findings: list[dict[str, Any]]
    reused: list[str]


@undisturbed()
def run(plan: Plan, progress: Progress) -> Outcome:
    """Everything that a plan asks for. Safe to kill and to run twice at once; what is finished is shown without writing
    anything.

    InputError: somebody damaged or deleted what was complete while it was needed; the same call computes it again.
    """
    reused = ["report"]
    if not sound(plan):
        from fedaudit.pipeline.compute import compute

        reused = compute(plan, progress)
    report = Folder(plan.report_folder)
    return Outcome(report.path / "index.html", report.read_json("findings.json"), reused)


@undisturbed()
def export(plan: Plan, progress: Progress, *, run_to: Path | None, adapters_to: Path | None) -> None:
    """Write the one training of a finished plan as a folder of docs/own-runs.md, or its models as adapters that peft
    loads."""
    if run_to is not None or adapters_to is not None:
        from fedaudit.pipeline import compute

        compute.export(plan, progress, run_to=run_to, adapters_to=adapters_to)
