"""What work spent on this machine: seconds by phase, and the most memory that a process held.

Kept in files of their own beside the results, `times/NAME.jsonl` under --out: they are no results, in no manifest, no
key and no report, so that equal runs have equal files.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "times"


@dataclass
class Spent:
    """Seconds of each phase, and the largest peak of a process in bytes; the peak begins anew with it."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0

    def __post_init__(self) -> None:
        forget_peak()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done within belongs to a phase; a phase may come several times."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            self.held(peak_memory())

    def held(self, peak: int) -> None:
        """Count the peak of this or another process."""
        self.peak = max(self.peak, peak)


def forget_peak() -> None:
    """Let the peak of this process begin anew, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most memory that this process held, in bytes: since `forget_peak`, where the system can, else since it
    began."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def note(work: Path, about: Mapping[str, Any], spent: Spent) -> None:
    """Add a line about what was done for `work`, a folder in one of those under --out. A disk that cannot be written
    loses it: it is no result."""
    line = {**about, "seconds": {name: round(s, 6) for name, s in spent.seconds.items()}, "peak": spent.peak}
    with contextlib.suppress(OSError):
        folder = work.parent.parent / FOLDER
        folder.mkdir(exist_ok=True)
        with (folder / f"{work.name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def noted(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, in the order in which they came; one that broke off is left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict) and {"seconds", "peak"} <= one.keys()]
