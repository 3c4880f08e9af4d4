"""What every run of the command promises, on the quickest one: the short version of tests that are marked slow (end to end, trials, exits)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warm import Started
from tests.whole_runs import Job, contents, report

JOB = Job(
    "--method promptfl --epsilon none --rounds 2 --clients 3 --train 12 --test 1 --threads 2".split(), printing=False
)
Whole = tuple[Path, subprocess.CompletedProcess[str], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Where a run that nobody disturbed lies, what it said, and its report."""
    out = tmp_path_factory.mktemp("whole")
    done = JOB.audit(out)
    return out, done, report(done)


def until(out: Path, seen: str) -> Started:
    """The command at work, when a file (a pattern) is there."""
    running = JOB.start(out)
    while not list(out.glob(seen)):
        assert running.process.is_alive(), "ended before it was seen"
        time.sleep(0.01)
    return running


def test_leaves_a_report_that_says_where_nothing_lies(whole: Whole) -> None:
    out, done, folder = whole
    text = (folder / "index.html").read_text() + (folder / "findings.json").read_text()
    assert str(out) not in text
    assert {f["metric"] for f in json.loads((folder / "findings.json").read_text())} >= {"accuracy/local", "epsilon"}
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".svg", ".pdf", ".csv"}
    assert "local" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_stopped_killed_and_repeated_ends_with_the_same_bytes(whole: Whole, tmp_path: Path) -> None:
    stopped = until(tmp_path, "runs/*/initial.json")
    assert stopped.process.pid is not None
    os.kill(stopped.process.pid, signal.SIGINT)
    said = stopped.finish()
    assert said.returncode == 130
    assert said.stderr.splitlines()[-1] == "stopped; the same command goes on from here"
    assert not list(tmp_path.rglob("*.tmp"))
    killed = until(tmp_path, "runs/*/round-000.safetensors")
    killed.process.kill()
    assert killed.finish().returncode == -signal.SIGKILL
    assert contents(report(JOB.audit(tmp_path))) == contents(whole[2])


def test_one_worker_elsewhere_finds_the_same_and_repairs_what_is_damaged(whole: Whole, tmp_path: Path) -> None:
    alone = report(JOB.audit(tmp_path / "alone", "--threads", "1"))
    assert contents(alone) == contents(whole[2])
    JOB.check_reuse(tmp_path / "alone", alone)
    JOB.check_repair("runs/*/round-001.safetensors", tmp_path / "alone", alone, tmp_path / "copy")


def test_two_processes_with_the_same_command_share_the_work(whole: Whole, tmp_path: Path) -> None:
    JOB.check_two_processes(whole[2], tmp_path)


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    JOB.check_dry_run(tmp_path, "1 training to run: 2 rounds, 3 of 3 clients a round", "2 workers")
