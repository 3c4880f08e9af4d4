"""Writes the report of a plan from the evidence that its analyses left on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.audits.facts import AUDITS
from fedaudit.audits.findings import RECORDING
from fedaudit.audits.run_comparison import AuditedRun, Compared
from fedaudit.machinery.manifest import MANIFEST
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.keys import NO_AUDITS, Across
from fedaudit.pipeline.notes import limits
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.provenance import Note
from fedaudit.reports.figures.drawing import Each
from fedaudit.reports.records_page import write_records
from fedaudit.reports.report import Evidence, Records, build
from fedaudit.reports.runs import entries
from fedaudit.reports.without_records import without_records


def write_page(
    evidence: Sequence[Evidence], folder: Folder, each: Each, across: Across = NO_AUDITS, note: Note | None = None,
    *, own_files: bool = False, show_records: bool = False,
) -> None:  # fmt: skip
    """Write the report of a plan's cells to `folder`. `each` maps a function over jobs, in the workers if there are
    any; `across` are the parameters of the audits that compare runs, by name; `note` says how the report was made.
    Single records of `own_files` are written to a page of their own, unless they are to be shown (`show_records`)."""
    results = compare_all([audited_run(e) for e in evidence], across)
    single = Records(own_shown=own_files and show_records)
    if own_files and not show_records:
        single = Records(hidden=True, sha256=write_records(evidence, folder.write, each=each))
        evidence = without_records(evidence)
    build(evidence, folder.write, each=each, across=results, note=note, single=single)


def compare_all(runs: Sequence[AuditedRun], across: Across) -> dict[str, Compared]:
    """Run the audits that compare runs (`across`: parameters by name); returns their results by name."""
    return {name: AUDITS[name].load()(runs, AUDITS[name].own(params)) for name, params in across.items()}


def audited_run(e: Evidence) -> AuditedRun:
    """A run's evidence in the form that audits across runs take."""
    return AuditedRun(e.key, e.method, e.seed, entries(e.setting), e.findings, e.tables)


def read_evidence(cell: Cell) -> Evidence:
    """Read what the analysis of a cell left on disk, for a report."""
    folder = claim(cell.analysis_folder)
    names = [n for n in folder.names() if n.endswith(".parquet") and not n.startswith("scores-")]
    tables = {name.removesuffix(".parquet"): folder.read_table(name) for name in names}
    plan, findings = cell.plan, folder.read_json("findings.json")
    setting = setting_of(cell) | {
        "keys": {"training": cell.training_key, "analysis": cell.analysis_key},
        "manifests": manifests(cell),
        "versions": cell.training_description["versions"] | cell.analysis_description["versions"],
        "fedaudit": __version__,
        "code": cell.analysis_description["code"],
    }
    recorded = [f["sentence"] for f in findings if f["metric"] == RECORDING]  # doubts stand above all numbers, too
    notes = [*recorded, *limits(plan)]
    return Evidence(
        cell.method, cell.seed, plan.attack, plan.task, findings, tables, setting, notes, plan.accepted_doubts
    )


def setting_of(cell: Cell) -> dict[str, Any]:
    """Everything that a cell's findings depend on, except code and versions: nested dicts for JSON."""
    about = cell.analysis_description
    return cell.setting | {name: about[name] for name in ("attack", "audit", "adversary") if name in about}


def manifests(cell: Cell) -> dict[str, str]:
    """SHA-256 of the hash lists of a cell's folders, by part: "training", "analysis" and, if there are any, "shadow
    models"; "not on disk" for a missing one. Whoever keeps a copy of these elsewhere can tell later whether a file was
    changed."""
    by_part = {"training": [cell.training_folder], "analysis": [cell.analysis_folder]}
    if cell.shadow_folders:
        by_part["shadow models"] = cell.shadow_folders
    return {part: _digest([folder / MANIFEST for folder in folders]) for part, folders in by_part.items()}


def _digest(files: Sequence[Path]) -> str:
    """The SHA-256 of those `files` that exist: of the only one, or of the list of several files' SHA-256s; "not on
    disk" if none does."""
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else "not on disk"
