"""The nights of a matrix on disk: a record per night, and one append-only table of findings over all of them.

`nightly/NAME/` under --out holds `nights/0001.json`, `0002.json`, ... (what ran, how it ended, by which code) and
`history.jsonl`, a line per finding and night that `pandas.read_json(path, lines=True)` loads. A night's record is
complete before its lines are appended, and names their number and SHA-256: a history that was cut off, changed or
deleted is seen, and made again from the records and from the reports of the runs that they name. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits.findings import SCHEMA
from fedaudit import __version__
from fedaudit.machinery.closure import source_file
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Damaged, Folder, Missing, claim, key_of, write_atomic
from fedaudit.pipeline.finished import intact

if TYPE_CHECKING:
    import pandas as pd

    from reports.nightly import CellOfNight

FOLDER, HISTORY = "nightly", "history.jsonl"
RECORD = "nights/{:04}.json"
VERSIONS = ("numpy", "peft", "scikit-learn", "torch", "transformers")  # that stand in every line; records have all
KEPT = (  # of a finding; what does not apply is left out
    "run", "method", "task", "seed", "attack", "threat_model", "way", "population", "nonmembers", "signal", "headline",
    "metric", "value", "low", "high", "confidence", "base_value", "base_low", "base_high", "blind_value", "blind_low",
    "blind_high", "verdict", "family", "z", "p", "p_adjusted", "family_n", "claimed", "provable",
)  # fmt: skip
# families as lines of schema 2 call them: a history is appended to and never written anew
FAMILIES = {"headline": "primary", "others": "secondary"}
REPEATED = ("seed", "data_seed", "run", "method", "schema")  # entries of a run that are not its setting

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Nights:
    """The folder of a matrix: its nights and their history. Every change happens under its lock."""

    out: Path
    name: str

    @property
    def path(self) -> Path:
        return self.out / FOLDER / (re.sub(r"[^\w.+-]+", "-", self.name).strip("-.") or "matrix")

    @property
    def folder(self) -> Folder:
        return claim(self.path)

    @property
    def history(self) -> Path:
        return self.path / HISTORY

    def records(self, say: Say) -> dict[int, Row]:
        """The record of every night; one that is damaged is named and counts as missing."""
        found = {}
        for name in self.folder.names():
            if name.startswith("nights/") and self.folder.usable(name, say):
                found[int(name[7:-5])] = self.folder.read_json(name)
        return found

    def add(self, cells: Sequence[CellOfNight], started: datetime.datetime, say: Say) -> tuple[int, list[Row]]:
        """A night more: its record, then its lines. Returns its number, and the lines of all nights."""
        with self.folder.lock(say):
            before = self.lines(say)
            night = max([0, *self.records(say), *(row["night"] for row in before)]) + 1
            ran = about_code() | {"started": started.isoformat(timespec="seconds")}
            told = [cell.record for cell in cells]
            record = {"schema": SCHEMA, "night": night, **ran, "cells": told}
            new = self._rows(record, say)
            self.folder.write_json(RECORD.format(night), record | _counted(new))
            self._append(_bytes(new))
        return night, before + new

    def lines(self, say: Say) -> list[Row]:
        """The lines of all nights, after mending what was cut off, changed or deleted; under the lock."""
        records = self.records(say)
        by_night, whole = self._read()
        wrong = [n for n, record in records.items() if _counted(by_night.get(n, ())) != _digest_of(record)]
        if wrong or not whole:
            what = f"lacks night {', '.join(map(str, wrong[:5]))}, or it was changed" if wrong else "is cut off"
            say(f"{self.history} {what if self.history.exists() else 'is missing'}; made again from the runs")
            for night in wrong:
                by_night[night] = self._rows(records[night], say)
                self.folder.write_json(RECORD.format(night), records[night] | _counted(by_night[night]))
            write_atomic(self.history, _bytes(row for night in sorted(by_night) for row in by_night[night]))
        return [row for night in sorted(by_night) for row in by_night[night]]

    def _read(self) -> tuple[dict[int, list[Row]], bool]:
        """The lines by night as they stand, and whether all of them can be read."""
        text = self.history.read_bytes() if self.history.exists() else b""
        found: dict[int, list[Row]] = {}
        whole = text.endswith(b"\n") or not text
        for line in text.splitlines():
            try:
                row = json.loads(line)
                found.setdefault(int(row["night"]), []).append(row)
            except (ValueError, TypeError, KeyError):
                whole = False
        return found, whole

    def _append(self, data: bytes) -> None:
        """At the end of the history, on disk before this returns."""
        try:
            with open(self.history, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.history}: {error.strerror or error}; choose another --out") from error

    def _rows(self, record: Mapping[str, Any], say: Say) -> list[Row]:
        """The lines of a night, from the reports of its cells; a report that is no longer there is named."""
        ran = {name: record[name] for name in ("schema", "night", "started", "commit", "fedaudit")}
        ran["versions"] = ", ".join(f"{name} {record['versions'][name]}" for name in VERSIONS)
        rows = []
        for cell in record["cells"]:
            if not cell["report"]:
                continue
            place = self.out / cell["report"]
            try:
                if not intact(place):
                    raise Missing(place)
                rows += [
                    {**ran, "cell": cell["cell"], "report": cell["report"], **row} for row in lines_of(Folder(place))
                ]
            except (Damaged, Missing):
                say(f"{place} is gone or damaged: night {record['night']} has no findings of {cell['name']}")
        return rows


def lines_of(report: Folder) -> list[Row]:
    """Rows of headline scores, accuracies and measured epsilons of a report, with what they are of, as a history keeps
    them."""
    runs = {row["run"]: row for row in report.read_json("runs.json")}
    about = {run: _about(row) for run, row in runs.items()}
    return [
        {**{name: f[name] for name in KEPT if f.get(name) is not None}, **about[f["run"]]}
        for f in report.read_json("findings.json")
        if f.get("headline") or f["metric"].startswith(("accuracy", "measured"))
    ]


def _about(run: Row) -> Row:
    """What was trained, on which data, by which setting: keys that are equal where these are."""
    task = {name: value for name, value in run.items() if name.startswith(("task.", "schedule.clients"))}
    made = ("keys.", "versions.", "manifests.", "fedaudit", "code", *REPEATED)
    setting = {name: value for name, value in run.items() if not name.startswith(made)}
    return {
        "training": run.get("keys.training"),
        "data": _key(task | {"seed": run.get("data_seed", run["seed"])}),
        "setting": _key(setting),
    }


def _key(value: Mapping[str, Any]) -> str:
    return key_of({name: str(entry) for name, entry in value.items()})


def _bytes(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows)


def _counted(rows: Sequence[Row]) -> dict[str, Any]:
    return {"rows": len(rows), "sha256": hashlib.sha256(_bytes(rows)).hexdigest()}


def _digest_of(record: Row) -> dict[str, Any]:
    return {name: record.get(name) for name in ("rows", "sha256")}


def about_code() -> dict[str, Any]:
    """Which code runs: its version, its commit where it lies in a git checkout ("+" where files differ from it), and
    the versions of the libraries that numbers depend on."""
    from fedaudit.pipeline.keys import ANALYSIS_LIBRARIES, NUMERIC_LIBRARIES, versions

    return {
        "fedaudit": __version__,
        "commit": _commit(),
        "versions": versions(sorted({*NUMERIC_LIBRARIES, *ANALYSIS_LIBRARIES})),
    }


def _commit() -> str:
    """Of the checkout whose top this package lies in, with "+" where its files have changed; "" where it is none."""
    package = source_file("fedaudit")
    assert package is not None
    root = package.parent.parent

    def git(*words: str) -> str:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30, check=False
            )
            return done.stdout.strip() if done.returncode == 0 else ""
        return ""

    if Path(git("rev-parse", "--show-toplevel") or "/").resolve() != root.resolve():
        return ""
    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and git("status", "--porcelain", "--untracked-files=no") else commit


@dataclass(frozen=True)
class Written:
    """Where the pages of a night are, and what they say in short."""

    page: Path
    summary: Path
    changes: list[str]
    shown: list[str]  # leaks, for the first time


def write_pages(
    nights: Nights, night: int, cells: Sequence[CellOfNight], rows: Sequence[Row], progress: Progress
) -> Written:
    """Hold a night against the earlier ones, and write its page, tables, JUnit XML and Markdown."""
    from audits.statistics.nights import judged
    from reports import nightly

    history = frame(rows)
    told = judged(history)
    files = nightly.render_files(nights.name, night, cells, told, history, nights.records(progress.say))
    with nights.folder.lock(progress.say):
        for name, data in files.items():
            nights.folder.write(name, data)
    return Written(nights.path / "index.html", nights.path / "summary.md", *nightly.events(told, night))


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The history as a table that has all columns, whatever its rows have."""
    import pandas as pd

    known = ("night", "started", "commit", "cell", "report", "data", "setting", "training", *KEPT)
    found = pd.DataFrame(rows)
    found = found.reindex(columns=[*known, *(name for name in found.columns if name not in known)])
    return found.assign(family=found.family.replace(FAMILIES))
