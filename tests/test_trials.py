"""Two of the trials of `benchmarks/trials.py`, with the quickest training there is: a kill at a random moment, a folder deleted meanwhile."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import trials
from tests.warm import Started


class Warm(trials.Job):
    """What is disturbed starts as users start it; what is not, with its libraries loaded."""

    def finish(self, out: Path, *, largest: int | None = None) -> trials.Done:
        return Started([*self.words.split(), "--out", str(out)], trials.ROOT).finish()


QUICK = Warm("prompts", "--method promptfl --epsilon none --rounds 2 --clients 3 --train 12 --test 1 --threads 2")


@pytest.mark.slow  # a whole run; quick: the three tests below
def test_a_run_keeps_what_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "JOBS", (QUICK,))
    monkeypatch.setattr(trials, "ADAPTERS", QUICK)
    found = list(trials.trials(("kills", "disks"), kills=1, pairs=0, disks=[trials.DELETED], seed=1))
    assert [trial.kind for trial in found] == ["kill", "disk"]
    assert all(trial.kept for trial in found), [trial for trial in found if not trial.kept]


def job(source: str) -> trials.Job:
    """A job that is a little program, which finds the run's folder in `out`."""

    class Small(trials.Job):
        def command(self, out: Path) -> list[str]:
            return [sys.executable, "-c", f"import pathlib, sys, time; out = pathlib.Path({str(out)!r})\n{source}"]

    return Small("small", "")


TRACED = """
runs = out / 'runs'
runs.mkdir(exist_ok=True)
n = len(list(runs.iterdir()))
(runs / str(n)).write_text('')
time.sleep(60 * (n == 0))
"""


def test_other_bytes_after_a_kill_are_noticed(tmp_path: Path) -> None:
    """A program that leaves a trace of each of its runs breaks the promise."""
    found = trials.kill(job(TRACED), {"runs/0": b""}, tmp_path, "runs/0", 0.0)
    assert (found.kept, found.found) == (False, "killed, 0 rounds and 0 files complete; again: OTHER bytes")


def test_a_run_that_ended_was_not_killed(tmp_path: Path) -> None:
    found = trials.kill(job("(out / 'runs').mkdir(exist_ok=True)"), {}, tmp_path, "runs/0", 0.0)
    assert (found.kept, found.found[:12]) == (False, "ENDED with 0")


def test_a_traceback_is_no_sentence() -> None:
    assert trials._refused(subprocess.CompletedProcess([], 2, "", "error: full\n"))
    for code, said in ((1, "error: full\n"), (2, "error: a\nerror: b\n"), (2, "Traceback\nerror: full\n"), (2, "")):
        assert not trials._refused(subprocess.CompletedProcess([], code, "", said))
