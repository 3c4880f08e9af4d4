"""Findings and runs of all finished reports under an --out folder, each run once. Imports nothing heavy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaudit.audits.findings import SCHEMA
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.pipeline.finished import COMPLETE, intact


@dataclass(frozen=True)
class Collected:
    """Findings of several reports, and the runs that they are about."""

    findings: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows of runs.json by run

    def add(self, report: Folder) -> None:
        """Add the runs of a report, with their findings, that are not here yet. A run that the report shows under
        several labels has one row in its runs.json, under the first."""
        new = {row["run"]: row for row in report.read_json("runs.json") if row["run"] not in self.runs}
        labels = {(run, row["method"]) for run, row in new.items()}
        self.findings.extend(f for f in report.read_json("findings.json") if (f["run"], f["method"]) in labels)
        self.runs.update(new)


@undisturbed()
def collect(out: Path) -> Collected:
    """The findings and runs of all finished reports under `out`. A report that cannot be read is left out, with a
    warning.

    InputError: there is no such folder, or no report in it can be read.
    """
    if not out.is_dir():
        raise InputError(f"{out}: no such folder; name the one that was --out of an audit")
    collection, left_out = Collected(), []
    for folder in sorted(path for path in (out / "reports").glob("*") if path.is_dir()):
        if why := unreadable(Folder(folder)):
            left_out.append(f"{folder} {why}")
        else:
            collection.add(Folder(folder))
    if not collection.runs:
        why = left_out[0] if left_out else "name the folder that was --out of an audit"
        raise InputError(f"{out}: no finished report of this version lies here; {why}")
    for sentence in left_out:
        warnings.warn(f"left out: {sentence}", stacklevel=4)  # shows the library's caller
    return collection


def unreadable(report: Folder) -> str:
    """Why a report cannot be read, as the end of a sentence about its folder, and what to do; "" if it can."""
    if COMPLETE not in report and not report.damaged:
        return "is not finished: its command, run again, goes on with it"
    if not intact(report.path):
        return "was damaged since it was written: its command, run again, mends it"
    schemas = {row["schema"] for row in report.read_json("runs.json")} if "runs.json" in report else {None}
    if schemas != {SCHEMA}:
        named = ", ".join("none" if schema is None else str(schema) for schema in schemas)
        return f"has findings of schema {named}, not {SCHEMA}: its command, run again, makes a new report"
    return ""
