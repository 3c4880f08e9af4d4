"""The nights of a matrix on disk: a record per night, and one history of the findings of all nights.

`nightly/NAME/` under --out holds `nights/0001.json`, `0002.json`, ... (runs, their exits, versions of the code) and
`history.jsonl`: a line per finding and night, which `pandas.read_json(path, lines=True)` loads; lines are only ever
appended. A night's record is written before its lines, with their number and SHA-256. So a history that was cut off,
changed or deleted is noticed, and rebuilt from the records and the reports that they name. Imports nothing heavy.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit import __version__
from fedaudit.audits.findings import SCHEMA
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.checkout import commit
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Damaged, Folder, Missing, claim, key_of
from fedaudit.pipeline.finished import intact

if TYPE_CHECKING:
    import pandas as pd

    from fedaudit.reports.nightly import CellOfNight

FOLDER, HISTORY = "nightly", "history.jsonl"
RECORD = "nights/{:04}.json"
VERSIONS = ("numpy", "peft", "scikit-learn", "torch", "transformers")  # libraries of every line; records have all
KEPT = (  # columns of a finding that a line has, as far as they apply
    "run", "method", "task", "seed", "attack", "threat_model", "way", "population", "nonmembers", "signal", "headline",
    "metric", "value", "low", "high", "confidence", "base_value", "base_low", "base_high", "blind_value", "blind_low",
    "blind_high", "verdict", "family", "z", "t", "p", "part", "p_adjusted", "family_n", "claimed", "provable",
)  # fmt: skip
FAMILIES = {"headline": "primary", "others": "secondary"}  # new names, for old lines of schema 2 in a history
REPEATED = ("seed", "data_seed", "run", "method", "schema")  # entries of a run that are not its setting

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Nights:
    """The nights of one matrix under `out`, and their history. The folder is changed under its lock only."""

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
        """The records of all nights by number. A damaged one is named by `say` and left out."""
        names = (name for name in self.folder.names() if name.startswith("nights/") and self.folder.usable(name, say))
        return {int(name[7:-5]): self.folder.read_json(name) for name in names}

    def add(self, cells: Sequence[CellOfNight], started: datetime.datetime, say: Say) -> tuple[int, list[Row]]:
        """Add a night: write its record, then append its findings to the history. Returns the night's number, and the
        lines of all nights."""
        with self.folder.lock(say):
            before = self.lines(say)
            night = max([0, *self.records(say), *(row["night"] for row in before)]) + 1
            about = about_code() | {"started": started.isoformat(timespec="seconds")}
            record = {"schema": SCHEMA, "night": night, **about, "cells": [cell.record for cell in cells]}
            new = self._rows(record, say)
            self.folder.write_json(RECORD.format(night), record | _checksum(new))
            self._append(_bytes(new))
        return night, before + new

    def lines(self, say: Say) -> list[Row]:
        """The lines of the history, one per finding and night; it is repaired first if it was cut off, changed or
        deleted. The caller holds the lock."""
        records = self.records(say)
        by_night, readable = self._read()
        wrong = [n for n, record in records.items() if not _checksum(by_night.get(n, ())).items() <= record.items()]
        if wrong or not readable:
            what = f"lacks night {', '.join(map(str, wrong[:5]))}, or it was changed" if wrong else "is cut off"
            say(f"{self.history} {what if self.history.exists() else 'is missing'}; made again from the runs")
            for night in wrong:
                by_night[night] = self._rows(records[night], say)
                self.folder.write_json(RECORD.format(night), records[night] | _checksum(by_night[night]))
            write_atomic(self.history, _bytes(row for night in sorted(by_night) for row in by_night[night]))
        return [row for night in sorted(by_night) for row in by_night[night]]

    def _read(self) -> tuple[dict[int, list[Row]], bool]:
        """The readable lines of the history by night, and whether all lines are readable."""
        text = self.history.read_bytes() if self.history.exists() else b""
        by_night: dict[int, list[Row]] = {}
        readable = text.endswith(b"\n") or not text
        for line in text.splitlines():
            try:
                row = json.loads(line)
                by_night.setdefault(int(row["night"]), []).append(row)
            except (ValueError, TypeError, KeyError):
                readable = False
        return by_night, readable

    def _append(self, data: bytes) -> None:
        """Append to the history; the bytes are on disk (fsync) when this returns. InputError: they cannot be
        written."""
        try:
            with open(self.history, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.history}: {error.strerror or error}; choose another --out") from error

    def _rows(self, record: Mapping[str, Any], say: Say) -> list[Row]:
        """The lines of a night, read from its cells' reports. A report that is gone or damaged is named by `say` and
        has no lines."""
        of_night = {name: record[name] for name in ("schema", "night", "started", "commit", "fedaudit")}
        of_night["versions"] = ", ".join(f"{name} {record['versions'][name]}" for name in VERSIONS)
        rows = []
        for cell in record["cells"]:
            if not cell["report"]:
                continue
            report = self.out / cell["report"]
            try:
                if not intact(report):
                    raise Missing(report)
                of_cell = {**of_night, "cell": cell["cell"], "report": cell["report"]}
                rows += [of_cell | row for row in lines_of(Folder(report))]
            except (Damaged, Missing):
                say(f"{report} is gone or damaged: night {record['night']} has no findings of {cell['name']}")
        return rows


def lines_of(report: Folder) -> list[Row]:
    """A report's findings as lines of a history: only headline scores, accuracies and measured epsilons. A line has
    those fields of its finding in `KEPT` that are not None, and training, data and setting of its run (`_about`)."""
    about = {row["run"]: _about(row) for row in report.read_json("runs.json")}
    return [
        {**{name: f[name] for name in KEPT if f.get(name) is not None}, **about[f["run"]]}
        for f in report.read_json("findings.json")
        if f.get("headline") or f["metric"].startswith(("accuracy", "measured"))
    ]


def _about(run: Row) -> Row:
    """Hashes that tell which runs are alike, {"training", "data", "setting"}: each is equal for runs with equal
    training, data or setting."""
    task = {name: value for name, value in run.items() if name.startswith(("task.", "schedule.clients"))}
    other = ("keys.", "versions.", "manifests.", "fedaudit", "code", *REPEATED)
    setting = {name: value for name, value in run.items() if not name.startswith(other)}
    return {
        "training": run.get("keys.training"),
        "data": _key(task | {"seed": run.get("data_seed", run["seed"])}),
        "setting": _key(setting),
    }


def _key(value: Mapping[str, Any]) -> str:
    return key_of({name: str(entry) for name, entry in value.items()})


def _bytes(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows)


def _checksum(rows: Sequence[Row]) -> dict[str, Any]:
    return {"rows": len(rows), "sha256": hashlib.sha256(_bytes(rows)).hexdigest()}


def about_code() -> dict[str, Any]:
    """Versions of the running code: `fedaudit`, `commit` (as `checkout.commit`), and `versions` of the libraries that
    numbers depend on."""
    from fedaudit.pipeline.keys import ANALYSIS_LIBRARIES, NUMERIC_LIBRARIES, versions

    return {
        "fedaudit": __version__,
        "commit": commit(),
        "versions": versions(sorted({*NUMERIC_LIBRARIES, *ANALYSIS_LIBRARIES})),
    }


def write_pages(
    nights: Nights, night: int, cells: Sequence[CellOfNight], rows: Sequence[Row], progress: Progress
) -> tuple[str, list[str]]:
    """Compare a night with the earlier ones, and write its page, tables, JUnit XML and Markdown. `rows` are the lines
    of all nights. Returns the night in short, and sentences on its changes and on leaks shown for the first time."""
    from fedaudit.audits.statistics.nights import judged
    from fedaudit.reports import nightly

    history = frame(rows)
    judgements = judged(history)
    files = nightly.render_files(nights.name, night, cells, judgements, history, nights.records(progress.say))
    with nights.folder.lock(progress.say):
        for name, data in files.items():
            nights.folder.write(name, data)
    changes, first_shown = nightly.events(judgements, night)
    return nightly.sentence(cells, night, judgements, history), changes + first_shown


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The history as a table, a row per line. It has all columns of today's lines, also those that no row has; what a
    line lacks is missing (NaN or None). Old names of `family` are replaced."""
    import pandas as pd

    columns = ("night", "started", "commit", "cell", "report", "data", "setting", "training", *KEPT)
    history = pd.DataFrame(rows)
    history = history.reindex(columns=[*columns, *(name for name in history.columns if name not in columns)])
    return history.assign(family=history.family.replace(FAMILIES))
