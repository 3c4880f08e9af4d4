"""Writes `index.html` under --out: every audit with its date, settings, verdicts and page, and those that are not
finished with the command that goes on.

It reads the notes of `fedaudit.pipeline.provenance`; a report is read once, for what its note does not say yet. Where
nothing changed since the page was written, nothing is read or imported beyond that. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.locks import folder_lock
from fedaudit.machinery.store import Damaged, Folder, Missing, claim, inside, key_of
from fedaudit.pipeline import provenance
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.terms.verdicts import DOUBTED, VERDICTS

PAGE = "index.html"
OTHERS = ("nightly/*/index.html", "papers/*.html", "papers/*/index.html", "comparisons/*/index.html")

Row = dict[str, Any]
Say = Callable[[str], None]


def write(out: Path, say: Say) -> None:
    """Write the index of `out` if it is not up to date. A disk that refuses is named by `say` and ends nothing."""
    try:
        if _is_current(out, *_on_disk(out)):
            return
        with folder_lock(claim(out / provenance.FOLDER).path):
            rows = _without_replaced([_row(out, folder) for folder in _reports(out)])
            on_disk = _on_disk(out)  # reading a report adds to its note
            from fedaudit.reports.audit_index import render_page

            write_atomic(out / PAGE, render_page(rows, on_disk[1], _state(*on_disk)))
    except (InputError, OSError) as error:
        say(f"{out / PAGE} was not written: {error}")


def _reports(out: Path) -> list[Path]:
    """The folders of all reports, finished or not, sorted by name."""
    return sorted(folder for folder in inside(out / "reports") if folder.is_dir())


def _on_disk(out: Path) -> tuple[dict[str, Any], list[str]]:
    """The note on each report with whether the report is finished, and the paths of all other pages."""
    notes = {f.name: [(f / COMPLETE).is_file(), provenance.read(out, f.name)] for f in _reports(out)}
    return notes, sorted(path.relative_to(out).as_posix() for pattern in OTHERS for path in out.glob(pattern))


def _state(notes: Mapping[str, Any], others: list[str]) -> str:
    """A hash of all that the page shows, which it names."""
    return key_of({"notes": notes, "others": others, "fedaudit": __version__})


def _is_current(out: Path, notes: Mapping[str, Any], others: list[str]) -> bool:
    try:
        return _state(notes, others).encode() in (out / PAGE).read_bytes()
    except OSError:
        return False


def _row(out: Path, folder: Path) -> Row:
    """A report's row: its note with `name`, `done`, how many of its runs are audited where it is not done, and its
    `summary`, which is added to the note of a finished report that lacks it."""
    note, done = provenance.read(out, folder.name), (folder / COMPLETE).is_file()
    if done and "summary" not in note:
        with contextlib.suppress(Damaged, Missing, KeyError):
            note["summary"] = summary(Folder(folder))
            note["written"] = _written(folder / COMPLETE)
            provenance.write(out, folder.name, note)
    runs = note.get("runs", [])
    audited = sum((out / "analyses" / name / COMPLETE).is_file() for name in runs)
    return {**note, "name": folder.name, "done": done and "summary" in note, "audited": audited, "of": len(runs)}


def _without_replaced(rows: list[Row]) -> list[Row]:
    """The rows without audits that were stopped and whose command has ended since, with other code, as another
    report."""
    ended: dict[str, str] = {}
    for row in (row for row in rows if row["done"] and "command" in row):
        command = str(row["command"])
        ended[command] = max(ended.get(command, ""), str(row["finished"]))
    return [row for row in rows if row["done"] or ended.get(str(row.get("command")), "") <= row.get("started", "")]


def _written(file: Path) -> str:
    """When a file was written: the date of reports of earlier versions, which have no note of their end."""
    return datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def summary(report: Folder) -> Row:
    """A report in short: methods, task, attacks, seeds, epsilons, and of each adversary the gravest verdict with
    the number of runs that have it, of all runs in which it has one. Missing or Damaged: it cannot be read."""
    runs = report.read_json("runs.json")
    return {
        "methods": _distinct(row["method"] for row in runs),
        "task": runs[0]["task"],
        "attacks": _distinct(name for row in runs for name in (row.get("attacks") or "").split(",") if name),
        "seeds": _distinct(row["seed"] for row in runs),
        "epsilons": _distinct(row["privacy.epsilon"] for row in runs if row.get("privacy.epsilon") is not None),
        "verdicts": _verdicts(report.read_json("findings.json")),
    }


def _verdicts(findings: list[Row]) -> list[Row]:
    """A row {"threat_model", "verdict", "runs", "of"} per adversary, from what its cards may quote."""
    from fedaudit.reports.doubts import verdict_word
    from fedaudit.reports.verdict_cards import gravest, quotable

    groups: dict[str, dict[tuple[Any, ...], list[Row]]] = {}
    for f in (f for f in findings if f["metric"] == "auroc"):
        groups.setdefault(f["threat_model"], {}).setdefault((f["run"], f["method"]), []).append(f)
    rows = []
    for threat, by_run in groups.items():
        gravest_ones = [gravest(quotable(group)) for group in by_run.values()]
        worst = [verdict_word(f) for f in gravest_ones if f]
        if worst:
            verdict = min(worst, key=(*VERDICTS, DOUBTED).index)
            rows.append({"threat_model": threat, "verdict": verdict, "runs": worst.count(verdict), "of": len(worst)})
    return rows


def _distinct(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
