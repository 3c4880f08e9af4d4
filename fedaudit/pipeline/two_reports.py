"""Two reports beside each other, from their folders alone: `--compare A B` and `fedaudit.audit(...).compare(other)`.

Findings and runs, records.csv, accuracy.csv and utility.csv are read; nothing is trained, attacked or audited.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.audits.run_comparison import AuditedRun, Compared
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim, key_of, undisturbed
from fedaudit.pipeline import keys, provenance
from fedaudit.pipeline.collected import unreadable
from fedaudit.pipeline.finished import finish

if TYPE_CHECKING:
    import pandas as pd

    from fedaudit.reports.section import Page

PRIVATE = "private"  # folder of a report's tables that are not sent on
FOLDER = "comparisons"  # under --out
TABLES = ("records", "accuracy", "utility")
CONFIDENCE = 0.95
NAMES = ("A", "B")
NOTHING_RUN = "Nothing was trained or attacked for this page: it reads two reports."


@dataclass(frozen=True, eq=False)
class ReportOnDisk:
    """A finished report: its folder, findings, and rows of runs.json."""

    path: Path
    findings: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]

    @property
    def task(self) -> str:
        return str(self.rows[0]["task"])

    @functools.cached_property
    def page(self) -> Page:
        """The report's page, without its tables."""
        from fedaudit.reports.notebook import page_of

        return page_of([dict(f) for f in self.findings], self.rows)

    @functools.cached_property
    def settings(self) -> dict[str, list[AuditedRun]]:
        """The trainings of each setting, by its name in the report."""
        by_label: dict[str, list[AuditedRun]] = {}
        for row in self.rows:
            key, label, seed = row["run"], row["method"], row["seed"]
            of_run = [f for f in self.findings if f["run"] == key and f["method"] == label]
            read = functools.partial(_table, self.path, label, seed)
            by_label.setdefault(label, []).append(AuditedRun(key, label, seed, row, of_run, _Tables(self.path, read)))
        return by_label


class _Tables(Mapping[str, "pd.DataFrame"]):
    """The tables of a run by name, each read from the report's CSV files when first used."""

    def __init__(self, path: Path, read: Callable[[str], pd.DataFrame]) -> None:
        self._names = [name for name in TABLES if _file(path, name).is_file()]
        self._read = functools.cache(read)

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _table(path: Path, label: str, seed: int, name: str) -> pd.DataFrame:
    """The rows of one training in a report's table `name`."""
    table = _csv(_file(path, name))
    of_run = table[(table.method == label) & (table.seed == seed)]
    return of_run.drop(columns=[column for column in ("method", "seed", "number") if column in of_run])


def _file(path: Path, name: str) -> Path:
    """A report's table, of somebody's own records the one with ids and scores."""
    private = path / PRIVATE / f"{name}.csv"
    return private if private.is_file() else path / f"{name}.csv"


@functools.lru_cache(maxsize=2 * len(TABLES))
def _csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    text = dict.fromkeys(("method", "client", "record", "label", "kind", "threat_model", "way"), str)
    return pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])


def read(folder: Path, name: str) -> ReportOnDisk:
    """The report in a folder; `name` stands in messages. InputError: there is none, or it cannot be read."""
    path = folder.parent if folder.name == "index.html" else folder
    report = Folder(path)
    if not path.is_dir() or "findings.json" not in report or "runs.json" not in report:
        why = "no such folder" if not path.is_dir() else "is no report of an audit"
        raise InputError(f"{name} {folder}: {why}; name one as fedaudit-runs/reports/NAME")
    if why := unreadable(report):
        raise InputError(f"{name} {folder} {why}")
    return ReportOnDisk(path, report.read_json("findings.json"), report.read_json("runs.json"))


def differences(a: ReportOnDisk, b: ReportOnDisk) -> Compared:
    """The differences between settings of two reports: between those of one name or, if no name is in both, between
    all. InputError: the reports are of different tasks, are one and the same, or have nothing in common."""
    from fedaudit.audits.differences import compared

    if a.path.resolve() == b.path.resolve():
        raise InputError(f"--compare {a.path} {b.path}: this is one report; name two")
    if a.task != b.task:
        raise InputError(
            f"--compare {a.path} {b.path}: the first is of the task {a.task}, the second of {b.task}; name reports of "
            "one task"
        )
    same = [label for label in a.settings if label in b.settings]
    pairs = [(label, label) for label in same] or [(x, y) for x in a.settings for y in b.settings]
    result = compared(
        [
            (a.task, (f"A: {x}", a.settings[x]), (f"B: {y}", b.settings[y]))
            for x, y in pairs
        ],
        CONFIDENCE,
    )  # fmt: skip
    if result.empty:
        raise InputError(f"--compare {a.path} {b.path}: {result.empty}")
    return result


@undisturbed()
def write(folders: Sequence[Path], out: Path, words: Sequence[str], progress: Progress) -> tuple[Path, list[str]]:
    """Write the page of two reports' `folders` under `out`; returns its path and the sentences on differences. `words`
    are the command's. InputError as `read` and `differences`."""
    from fedaudit.reports.made import noting
    from fedaudit.reports.two_reports import Side, build

    started = time.monotonic()
    first, second = (read(folder, "--compare") for folder in folders)
    result = differences(first, second)
    sides = [
        Side(name, r.path.name, r.settings, r.page, _note(r.path))
        for name, r in zip(NAMES, (first, second), strict=True)
    ]
    description = keys.page_of([run.key for side in sides for run in side.runs], keys.TWO_REPORTS)
    folder = claim(out / FOLDER / f"two-{key_of(description | {'reports': [side.report for side in sides]})[:8]}")
    with folder.lock(progress.say):
        write_noted = noting(folder.write, provenance.made(words, started), NOTHING_RUN)
        build(sides, result, write_noted)
        finish(folder)
    return folder.path / "index.html", list(result.sentences)


def _note(report: Path) -> provenance.Note:
    """The note on how a report was made, if it still lies where it was written; else {}."""
    return provenance.read(report.parent.parent, report.name)
