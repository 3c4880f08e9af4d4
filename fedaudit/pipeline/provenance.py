"""Notes on audits, `audits/NAME.json` under --out for the report NAME: its command, when it began and ended, with which
code and on which machine. They are written when an audit begins, so that an interrupted one is known by its command.

Notes are no results: no key or manifest includes them. A report that is mended keeps the note of its first end, and so
its bytes. Imports nothing heavy.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.checkout import commit
from fedaudit.machinery.store import claim
from fedaudit.pipeline.plan import Plan

FOLDER = "audits"
PLACES = ("--out", "--export-run", "--export-adapters")  # flags of folders that are written
PATHS = (  # flags of files and folders that are read
    "--run", "--config", "--backbone", "--backbone-code", "--weights", "--members", "--nonmembers", "--classes",
    "--compare", "--plugins",
)  # fmt: skip

Note = dict[str, Any]


def read(out: Path, name: str) -> Note:
    """The note on the report `name` under `out`; {} if there is none that can be read."""
    try:
        note = json.loads((out / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def write(out: Path, name: str, note: Mapping[str, Any]) -> None:
    """Write the note on the report `name` under `out`. InputError: it cannot be written."""
    folder = claim(out / FOLDER).path
    write_atomic(folder / f"{name}.json", json.dumps(note, indent=1, ensure_ascii=False).encode() + b"\n")


def begin(plan: Plan) -> Note:
    """Note that a plan's audit begins, unless it ended before; returns the note."""
    name = plan.report_folder.name
    note = read(plan.out, name)
    if "finished" not in note:
        note = {
            "command": shlex.join(["audit.py", *plan.words]),
            "started": _now(),
            "runs": [cell.analysis_folder.name for cell in plan.cells],
        }
        write(plan.out, name, note)
    return note


def end(plan: Plan, started: float, reused: Sequence[str]) -> Note:
    """Note that all runs of a plan are audited, unless it was noted before; returns the note. `started` is the time
    (`time.monotonic`) at which this process began, `reused` names what was on disk."""
    name = plan.report_folder.name
    note = read(plan.out, name)
    if "finished" not in note:
        note |= made(plan.words, started, device=plan.device, reused=len(reused))
        write(plan.out, name, note)
    return note


def made(words: Sequence[str], started: float, *, device: str = "cpu", reused: int = 0) -> Note:
    """How a page was made that is finished now: by the command with these `words`, since `started`
    (`time.monotonic`)."""
    return {
        "finished": _now(),
        "seconds": round(time.monotonic() - started, 1),
        "reused": reused,
        "fedaudit": __version__,
        "commit": commit(),
        "machine": machine(device),
        "shown": shlex.join(["audit.py", *portable(words)]),
    }


def portable(words: Sequence[str]) -> list[str]:
    """The words of a command without the folders that it writes; of other paths only the last name is left."""
    kept: list[str] = []
    flag = ""
    for word in words:
        given, equals, value = word.partition("=")
        if word.startswith("--"):
            flag = given
            if flag not in PLACES:
                kept.append(f"{flag}={_last(flag, value)}" if equals else word)
        elif flag not in PLACES:
            kept.append(_last(flag, word))
    return kept


def _last(flag: str, value: str) -> str:
    if flag == "--plugins":
        return ",".join(Path(folder).name for folder in value.split(","))
    return Path(value).name or value if flag in PATHS or flag.endswith("-root") else value


def machine(device: str) -> str:
    """The machine in a few words: system, processor, cores, and the GPU where `device` is one."""
    words = [platform.system(), platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    if device in ("cuda", "mps"):
        from fedaudit.machinery import devices

        words.append(devices.name(device))
    return ", ".join(words)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
