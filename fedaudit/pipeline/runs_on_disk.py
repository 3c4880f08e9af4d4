"""Audits that compare runs, over all that finished reports under an --out folder show. Nothing is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits.facts import AUDITS
from audits.run_comparison import AuditedRun, points
from fedaudit.machinery import resource_usage
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim, inside, key_of, undisturbed
from fedaudit.pipeline import keys
from fedaudit.pipeline.collected import collected
from fedaudit.pipeline.finished import finish, intact

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance

Across = Mapping[str, "DataclassInstance"]


@dataclass(frozen=True)
class ComparedOnDisk:
    """Where the page is, and what was found in sentences."""

    report: Path
    sentences: list[str]


@undisturbed()
def compare(out: Path, across: Across, progress: Progress) -> ComparedOnDisk:
    """The page of all runs under `out`. InputError: there is nothing to compare, in one sentence."""
    from fedaudit.pipeline.page import compared
    from reports.comparison import build

    runs = read(out, progress.say)
    _check(out, runs, across)
    found = compared(runs, across)
    if all(one.empty for one in found.values()):
        raise InputError(f"--audit {','.join(found)}: {'; '.join(one.empty for one in found.values())}")
    described = keys.page_of([run.key for run in runs], keys.COMPARISON, across=across)
    key = key_of(described | {"labels": [run.method for run in runs]})
    folder = claim(out / "comparisons" / f"{'-'.join(across)}-{key[:8]}")
    with folder.lock(progress.say), progress.stage("report", 1) as advance:
        build(found, folder.write, runs=len(runs), asked={n: keys.fields(p) for n, p in across.items()})
        finish(folder)
        advance()
    return ComparedOnDisk(folder.path / "index.html", [s for one in found.values() for s in one.sentences])


def described(out: Path, across: Across, progress: Progress) -> str:
    """What `compare` would look at."""
    runs = read(out, progress.say)
    _check(out, runs, across)
    return f"{len(runs)} runs of {len(points(runs))} settings on disk under {out}; nothing to train"


def read(out: Path, say: Callable[[str], None]) -> list[AuditedRun]:
    """The runs of all finished reports under `out`, those that were written last at the end; the tables of their
    analyses, as far as these are still there, are read when an audit asks for them. `say` names reports that cannot be
    read. InputError as of `collected`."""
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        found = collected(out)
    for one in left_out:
        say(str(one.message))
    findings: dict[str, list[dict[str, Any]]] = {}
    for f in found.findings:
        findings.setdefault(f["run"], []).append(f)
    folders = {place.name.rpartition("-")[2]: place for place in inside(out / "analyses") if place.is_dir()}
    noted = {place.stem.rpartition("-")[2]: place for place in inside(out / resource_usage.FOLDER)}
    runs = []
    for key, row in found.runs.items():
        spending = times(noted.get(str(row.get("keys.training"))), noted.get(key))
        tables = _Tables(folders.get(key), {"times": spending} if len(spending) else {})
        runs.append(AuditedRun(key, row["method"], row["seed"], row, findings.get(key, []), tables))
    return sorted(runs, key=lambda run: (_written(folders.get(run.key)), run.key))


class _Tables(Mapping[str, "pd.DataFrame"]):
    """The tables of an analysis by name, each read when it is first asked for; of one that is not there, those that are
    `known`."""

    def __init__(self, place: Path | None, known: dict[str, pd.DataFrame]) -> None:
        self._folder = Folder(place) if place and intact(place) else None
        self._known = known

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._known and self._folder and f"{name}.parquet" in self._folder:
            self._known[name] = self._folder.read_table(f"{name}.parquet")
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        there = self._folder.names() if self._folder else []
        return iter({*self._known, *(name.removesuffix(".parquet") for name in there if name.endswith(".parquet"))})

    def __len__(self) -> int:
        return len([*self])


def times(*places: Path | None) -> pd.DataFrame:
    """Seconds of phases and peaks of memory in bytes, a row each, of the files that noted them; of a round that was
    trained again the last time."""
    import pandas as pd

    rows = []
    for place in filter(None, places):
        last = {line.get("round"): line for line in resource_usage.read_log(place)}
        for line in last.values():
            rows += [*line["seconds"].items(), ("peak", line["peak"])]
    return pd.DataFrame(rows, columns=["phase", "value"])


def _written(place: Path | None) -> int:
    """When an analysis was, in nanoseconds: of one setting and seed under several versions the last counts."""
    return place.stat().st_mtime_ns if place else 0


def _check(out: Path, runs: list[AuditedRun], across: Across) -> None:
    """InputError: what an audit needs is in none of the runs."""
    for name in across:
        needs = AUDITS[name].facts.needs
        if "attacks" in needs and not any(f["metric"] == "auroc" for run in runs for f in run.findings):
            raise InputError(f"--audit {name}: no run under {out} was attacked; run one again with --attack")
        if "several" in needs and len(found := points(runs)) < 2:
            raise InputError(
                f"--audit {name}: compares settings, and under {out} there is one, {found[0].method}; sweep a "
                "parameter, or train another method"
            )
