"""Seconds and peak memory of work on this machine, logged to `times/NAME.jsonl` under --out.

These logs are not results: no manifest, key or report includes them, so that equal runs have equal files.
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
class ResourceUsage:
    """Seconds by phase, and the largest peak memory of any process in bytes. Creating one resets this process' peak."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0

    def __post_init__(self) -> None:
        forget_peak()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside the `with` block to phase `name`, and count this process' peak memory."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            self.count_peak(peak_memory())

    def count_peak(self, peak: int) -> None:
        """Raise `peak` to the peak memory of another process, in bytes, if that is larger."""
        self.peak = max(self.peak, peak)


def forget_peak() -> None:
    """Reset the peak memory of this process; only Linux can, elsewhere nothing happens."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes, since `forget_peak` on Linux, else since it started; 0 on
    Windows."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def note(work: Path, about: Mapping[str, Any], spent: ResourceUsage) -> None:
    """Append {**about, "seconds": {phase: s}, "peak": bytes} to the log OUT/times/NAME.jsonl; `work` is the folder
    OUT/KIND/NAME. Nothing is raised if the disk refuses: the line is lost."""
    line = {**about, "seconds": {name: round(s, 6) for name, s in spent.seconds.items()}, "peak": spent.peak}
    with contextlib.suppress(OSError):
        folder = work.parent.parent / FOLDER
        folder.mkdir(exist_ok=True)
        with (folder / f"{work.name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_log(file: Path) -> list[dict[str, Any]]:
    """The entries of a log file in order, as `note` wrote them; [] if it cannot be read. Broken lines are skipped."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    values = []
    for line in lines:
        with contextlib.suppress(ValueError):
            values.append(json.loads(line))
    return [value for value in values if isinstance(value, dict) and {"seconds", "peak"} <= value.keys()]
