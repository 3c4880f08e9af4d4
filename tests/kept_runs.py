"""Tiny runs that are made once in a whole run of pytest, by the first process that needs them.

All processes of a run share a folder. Who asks for runs that are there finds them finished, and who asks for them while
another process makes them waits for it: that is what `fedaudit.audit` does with results on disk. Tests only read these
runs; what is to be changed is copied.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedaudit
from tests.unprinted import no_pages, nothing_printed, with_pages

TINY = {"rounds": 2, "clients": 3, "train": 12, "test": 2, "threads": 1, "quiet": True}
LORA = {
    "method": "fedavg", "rounds": 2, "clients": 3, "per_round": 2, "records": 6, "reference": 10, "novel": 4, "test": 2,
    "local_steps": 1, "threads": 1, "shadows": 4, "shadow_trajectories": 2, "targets": 1, "attack": ["loss", "source", "lira"],
    "quiet": True,
}  # fmt: skip


@dataclass(frozen=True)
class KeptRuns:
    """Finished audits by name, and the folder that was their `out`."""

    out: Path
    audits: dict[str, fedaudit.Audit]

    def copied(self, place: Path) -> Path:
        """The same results in a folder where they may be harmed."""
        return shutil.copytree(self.out, place, dirs_exist_ok=True)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The same one in all processes of a run of pytest, with or without pytest-xdist."""
    base = factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "kept"


def prompt_runs(factory: pytest.TempPathFactory) -> KeptRuns:
    """Three runs without noise in three reports: one run is in two of them, and two runs attack one training."""
    out = shared_folder(factory) / "prompts"
    wanted = {
        "loss": {"method": "promptfl", "attack": "loss"},
        "both": {"method": ["promptfl", "local"], "attack": "loss"},
        "entropy": {"method": "promptfl", "attack": "entropy"},
    }
    more = {"epsilon": "none", "out": out} | TINY
    with nothing_printed(), with_pages():
        return KeptRuns(out, {name: fedaudit.audit(**words, **more) for name, words in wanted.items()})


def lora_run(factory: pytest.TempPathFactory) -> KeptRuns:
    """A run of adapters under attacks of which one trains shadow models. Its report has no page."""
    out = shared_folder(factory) / "lora"
    with no_pages():
        return KeptRuns(out, {"lora": fedaudit.audit(**LORA, out=out)})
