"""The page of a plan: the evidence that its analyses left on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from audits.facts import AUDITS
from audits.run_comparison import AuditedRun, Compared
from fedaudit import __version__
from fedaudit.machinery.store import MANIFEST, Folder, claim
from fedaudit.pipeline.notes import limits
from fedaudit.pipeline.plan import Cell
from reports.figures.drawing import Each
from reports.report import Evidence, build
from reports.runs import entries

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_page(
    evidence: Sequence[Evidence],
    folder: Folder,
    each: Each,
    across: Mapping[str, DataclassInstance] = MappingProxyType({}),
) -> None:
    """The report of a plan's cells; `across` are the parameters of the audits that compare them, by name."""
    build(evidence, folder.write, each=each, across=compared([audited(e) for e in evidence], across))


def compared(runs: Sequence[AuditedRun], across: Mapping[str, DataclassInstance]) -> dict[str, Compared]:
    """What every audit that compares runs says of them."""
    return {name: AUDITS[name].load()(runs, AUDITS[name].own(params)) for name, params in across.items()}


def audited(e: Evidence) -> AuditedRun:
    """The evidence of a run as audits take it that compare runs."""
    return AuditedRun(e.key, e.method, e.seed, entries(e.setting), e.findings, e.tables)


def read_evidence(cell: Cell) -> Evidence:
    """What the analysis of a cell left on disk, as reports take it."""
    folder = claim(cell.analysis_folder)
    names = [n for n in folder.names() if n.endswith(".parquet") and not n.startswith("scores-")]
    tables = {name.removesuffix(".parquet"): folder.read_table(name) for name in names}
    stored = folder.read_json("findings.json")
    setting = setting_of(cell) | {
        "keys": {"training": cell.training_key, "analysis": cell.analysis_key},
        "manifests": manifests(cell),
        "versions": cell.training_description["versions"] | cell.analysis_description["versions"],
        "fedaudit": __version__,
        "code": cell.analysis_description["code"],
    }
    return Evidence(
        cell.method, cell.seed, cell.plan.attack, cell.plan.task, stored, tables, setting, limits(cell.plan)
    )


def setting_of(cell: Cell) -> dict[str, Any]:
    """Everything that a cell's findings depend on but code and versions."""
    said = cell.analysis_description
    return cell.setting | {name: said[name] for name in ("attack", "audit", "adversary") if name in said}


def manifests(cell: Cell) -> dict[str, str]:
    """SHA-256 of the lists of hashes of what a cell left on disk: whoever keeps these elsewhere can tell whether a file
    was changed since."""
    folders = {"training": [cell.training_folder], "analysis": [cell.analysis_folder]}
    if parts := cell.shadow_folders:
        folders["shadow models"] = parts
    return {name: _digest([place / MANIFEST for place in places]) for name, places in folders.items()}


def _digest(files: Sequence[Path]) -> str:
    """Of one file its SHA-256, of several that of their SHA-256s; "not on disk" if there is none."""
    found = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    if len(found) == 1:
        return found[0]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else "not on disk"
