"""Runs the audits that compare runs on all finished reports under an --out folder. Nothing is trained."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.audits.facts import AUDITS
from fedaudit.audits.run_comparison import AuditedRun, points
from fedaudit.machinery import resource_usage
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim, inside, key_of, undisturbed
from fedaudit.pipeline import keys, provenance
from fedaudit.pipeline.collected import collect
from fedaudit.pipeline.finished import finish, intact
from fedaudit.pipeline.keys import Across

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ComparedOnDisk:
    """The result of `compare`."""

    report: Path  # its page
    sentences: list[str]  # the audits' results in short


@undisturbed()
def compare(out: Path, across: Across, progress: Progress, *, words: Sequence[str]) -> ComparedOnDisk:
    """Run the audits `across` (parameters by name) on all runs under `out`, and write their page; returns its path and
    the audits' sentences. `words` are the command's, for the page. InputError: there is nothing to compare."""
    from fedaudit.pipeline.page import compare_all
    from fedaudit.reports.comparison import build
    from fedaudit.reports.made import noting

    started = time.monotonic()
    runs = read(out, progress.say)
    _check(out, runs, across)
    results = compare_all(runs, across)
    if all(one.empty for one in results.values()):
        raise InputError(f"--audit {','.join(results)}: {'; '.join(one.empty for one in results.values())}")
    description = keys.page_of([run.key for run in runs], keys.COMPARISON, across=across)
    key = key_of(description | {"labels": [run.method for run in runs]})
    folder = claim(out / "comparisons" / f"{'-'.join(across)}-{key[:8]}")
    with folder.lock(progress.say), progress.stage("writing the report", 1) as advance:
        write = noting(folder.write, provenance.made(words, started))
        build(results, write, runs=len(runs), asked={n: keys.fields(p) for n, p in across.items()})
        finish(folder)
        advance()
    return ComparedOnDisk(folder.path / "index.html", [s for one in results.values() for s in one.sentences])


def describe(out: Path, across: Across, progress: Progress) -> str:
    """One sentence for `--dry-run`: how many runs `compare` would look at."""
    runs = read(out, progress.say)
    _check(out, runs, across)
    return f"{len(runs)} runs of {len(points(runs))} settings on disk under {out}; nothing to train"


def read(out: Path, say: Callable[[str], None]) -> list[AuditedRun]:
    """The runs of all finished reports under `out`, sorted by when their analyses were written. Tables are read when
    first used; those of a deleted analysis are missing. `say` names reports that cannot be read. InputError: there is
    no such folder, or no report in it can be read."""
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        collection = collect(out)
    for one in left_out:
        say(str(one.message))
    findings: dict[str, list[dict[str, Any]]] = {}
    for f in collection.findings:
        findings.setdefault(f["run"], []).append(f)
    folders = {folder.name.rpartition("-")[2]: folder for folder in inside(out / "analyses") if folder.is_dir()}
    usage = {file.stem.rpartition("-")[2]: file for file in inside(out / resource_usage.FOLDER)}
    runs = []
    for key, row in collection.runs.items():
        seconds = times(usage.get(str(row.get("keys.training"))), usage.get(key))
        tables = _Tables(folders.get(key), {"times": seconds} if len(seconds) else {})
        runs.append(AuditedRun(key, row["method"], row["seed"], row, findings.get(key, []), tables))
    return sorted(runs, key=lambda run: (_written(folders.get(run.key)), run.key))


class _Tables(Mapping[str, "pd.DataFrame"]):
    """The tables of an analysis by name, each read from its folder when first used, and those in `tables`."""

    def __init__(self, folder: Path | None, tables: dict[str, pd.DataFrame]) -> None:
        self._folder = Folder(folder) if folder and intact(folder) else None
        self._tables = tables

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._tables and self._folder and f"{name}.parquet" in self._folder:
            self._tables[name] = self._folder.read_table(f"{name}.parquet")
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        files = self._folder.names() if self._folder else []
        return iter({*self._tables, *(name.removesuffix(".parquet") for name in files if name.endswith(".parquet"))})

    def __len__(self) -> int:
        return len([*self])


def times(*files: Path | None) -> pd.DataFrame:
    """Seconds and memory from files of resource usage (None is left out), as a table with the columns phase and value:
    for each round, or analysis, a row per phase in seconds, and one with the phase "peak" in bytes. Of a round that was
    trained more than once, the last time counts."""
    import pandas as pd

    rows = []
    for file in filter(None, files):
        last = {line.get("round"): line for line in resource_usage.read_log(file)}
        for line in last.values():
            rows += [*line["seconds"].items(), ("peak", line["peak"])]
    return pd.DataFrame(rows, columns=["phase", "value"])


def _written(folder: Path | None) -> int:
    """When an analysis was written, in ns; 0 if it was deleted. Audits take the last run of a setting and seed."""
    return folder.stat().st_mtime_ns if folder else 0


def _check(out: Path, runs: list[AuditedRun], across: Across) -> None:
    """Raise InputError if an audit needs attacks, or several settings, and the runs have none."""
    for name in across:
        needs = AUDITS[name].facts.needs
        if "attacks" in needs and not any(f["metric"] == "auroc" for run in runs for f in run.findings):
            raise InputError(f"--audit {name}: no run under {out} was attacked; run one again with --attack")
        if "several" in needs and len(settings := points(runs)) < 2:
            raise InputError(
                f"--audit {name}: compares settings, and under {out} there is one, {settings[0].method}; sweep a "
                "parameter, or train another method"
            )
