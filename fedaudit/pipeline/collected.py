"""Findings and runs of all finished reports under an --out folder, each run once. Imports nothing heavy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audits.findings import SCHEMA
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.pipeline.finished import COMPLETE, intact


@dataclass(frozen=True)
class Collected:
    """Findings, and a row for each run that they are of."""

    findings: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, report: Folder) -> None:
        """Take over the runs of a report that are not here yet; of several labels of one run the first."""
        new = {row["run"]: row for row in report.read_json("runs.json") if row["run"] not in self.runs}
        labels = {(run, row["method"]) for run, row in new.items()}
        self.findings.extend(f for f in report.read_json("findings.json") if (f["run"], f["method"]) in labels)
        self.runs.update(new)


@undisturbed()
def collected(out: Path) -> Collected:
    """What the reports under `out` say. A report that cannot be read is named in a warning and left out.

    InputError: there is no such folder, or no report in it that can be read.
    """
    if not out.is_dir():
        raise InputError(f"{out}: no such folder; name the one that was --out of an audit")
    found, left_out = Collected(), []
    for place in sorted(path for path in (out / "reports").glob("*") if path.is_dir()):
        if why := _unreadable(Folder(place)):
            left_out.append(f"{place} {why}")
        else:
            found.add(Folder(place))
    if not found.runs:
        why = left_out[0] if left_out else "name the folder that was --out of an audit"
        raise InputError(f"{out}: no finished report of this version lies here; {why}")
    for sentence in left_out:
        warnings.warn(f"left out: {sentence}", stacklevel=4)  # of whoever called the library
    return found


def _unreadable(report: Folder) -> str:
    """Why a report cannot be read, with the remedy; empty if it can."""
    if COMPLETE not in report and not report.damaged:
        return "is not finished: its command, run again, goes on with it"
    if not intact(report.path):
        return "was damaged since it was written: its command, run again, mends it"
    found = {row["schema"] for row in report.read_json("runs.json")} if "runs.json" in report else {None}
    if found != {SCHEMA}:
        named = ", ".join("none" if schema is None else str(schema) for schema in found)
        return f"has findings of schema {named}, not {SCHEMA}: its command, run again, makes a new report"
    return ""
