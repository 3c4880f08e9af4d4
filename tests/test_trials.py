"""A few of the trials of `benchmarks/trials.py`: kills at random moments, two processes at once, disks that fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import trials


@pytest.mark.slow
def test_a_run_keeps_what_is_promised() -> None:
    found = list(
        trials.trials(
            ("kills", "pairs", "disks"), kills=3, pairs=1, disks=["full disk", "folder deleted meanwhile"], seed=1
        )
    )
    assert [trial.kind for trial in found] == ["kill"] * 3 + ["pair"] + ["disk"] * 2
    assert all(trial.kept for trial in found), [trial for trial in found if not trial.kept]


def job(tmp_path: Path, source: str) -> trials.Job:
    """A job that is a little program, which finds the run's folder in `out`."""

    class Small(trials.Job):
        def command(self, out: Path) -> list[str]:
            return [sys.executable, "-c", f"import pathlib, sys, time; out = pathlib.Path({str(out)!r})\n{source}"]

    return Small("small", "")


WRITE = "(out / 'runs').mkdir(exist_ok=True); (out / 'runs' / 'a').write_text('a')\n"


def test_other_bytes_after_a_kill_are_noticed(tmp_path: Path) -> None:
    """A program that leaves a trace of having been killed breaks the promise."""
    traced = job(
        tmp_path,
        WRITE + "n = len(list(out.glob('runs/*')))\n(out / 'runs' / str(n)).write_text('')\ntime.sleep(5 * (n < 2))",
    )
    found = trials.kill(traced, trials.Whole({"runs/a": b"a", "runs/1": b""}, 3.0), tmp_path, 0.9)
    assert not found.kept
    assert "OTHER bytes" in found.found


def test_a_traceback_is_no_sentence() -> None:
    assert trials._refused(subprocess.CompletedProcess([], 2, "", "error: full\n"))
    for code, said in ((1, "error: full\n"), (2, "error: a\nerror: b\n"), (2, "Traceback\nerror: full\n"), (2, "")):
        assert not trials._refused(subprocess.CompletedProcess([], code, "", said))
