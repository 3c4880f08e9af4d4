"""Workers that are spawned, as on macOS and Windows: what they are sent can be pickled, and scripts are explained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit.machinery.engines import local
from tests.whole_runs import ROOT, contents

SPAWN = os.environ | {local.START: "spawn", "PYTHONPATH": str(ROOT)}
SMALL = "--rounds 1 --clients 2 --test 1 --threads 2 --quiet"
LORA = f"--method fedavg --attack loss --per-round 2 --records 4 --reference 4 --novel 2 --local-steps 1 {SMALL}"
PROMPTS = f"--method promptfl --epsilon none --attack loss,lira --shadows 4 --train 8 --prompt-length 4 {SMALL}"
SCRIPT = """
import sys
from functools import partial
from unittest import mock
sys.modules["torch"] = mock.MagicMock()  # which each worker would load for seconds to tell it the number of threads
from fedaudit.machinery.engines.local import refuse_import
from fedaudit.machinery.executor import Executor

def add(bench, x):
    return bench() + x

def main():
    refuse_import()
    with Executor(partial(make, bytes(10**6)), workers=2) as executor:
        print(list(executor.map(add, range(3))))

def make(weights):
    return int
"""
LIBRARY = """
import fedaudit
def main():
    print(len(fedaudit.audit(method="promptfl", epsilon="none", rounds=1, clients=2, train=8, test=1, threads=2, out="out").findings))
"""
GUARDED, BARE = 'if __name__ == "__main__":\n    main()\n', "main()\n"
# commands whose workers are spawned; quick: two scripts, and forked workers everywhere
in_whole_runs = pytest.mark.slow


def run(script: str, place: Path) -> subprocess.CompletedProcess[str]:
    (place / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=place, env=SPAWN, capture_output=True, text=True, timeout=60)


def test_a_script_with_the_guard_runs_and_one_without_it_is_explained(tmp_path: Path) -> None:
    done = run(SCRIPT + GUARDED, tmp_path)
    assert (done.stdout, done.returncode) == ("[0, 1, 2]\n", 0), done.stderr
    done = run(SCRIPT + BARE, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(local.GUARD)
    assert done.stderr.count("Traceback") == 1


@in_whole_runs
def test_the_library_from_a_script(tmp_path: Path) -> None:
    bare = run(LIBRARY + BARE, tmp_path)
    assert bare.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in bare.stderr
    guarded = run(LIBRARY + GUARDED, tmp_path)
    assert guarded.returncode == 0, guarded.stderr
    assert int(guarded.stdout.split()[-1]) > 3


def audit(words: str, out: Path, **more: str) -> None:
    command = [sys.executable, str(ROOT / "audit.py"), *words.split(), "--out", str(out)]
    done = subprocess.run(command, env=SPAWN | more, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@in_whole_runs
@pytest.mark.parametrize("words", [LORA, PROMPTS], ids=["LoRA", "prompts"])
def test_commands_write_the_same_bytes(words: str, tmp_path: Path) -> None:
    """Of one process; a console of Windows in western Europe cannot print everything."""
    audit(words, tmp_path / "spawned", PYTHONIOENCODING="cp1252")
    audit(words.replace("--threads 2", "--threads 1"), tmp_path / "alone")
    assert contents(tmp_path / "spawned") == contents(tmp_path / "alone")


@in_whole_runs
def test_an_own_run(tmp_path: Path) -> None:
    audit(f"{PROMPTS.replace('loss,lira --shadows 4', 'loss')} --export-run {tmp_path / 'run'}", tmp_path / "out")
    audit(f"--run {tmp_path / 'run'} --attack loss --threads 2 --quiet", tmp_path / "own")


@in_whole_runs
def test_an_item_of_a_paper(tmp_path: Path) -> None:
    sizes = "--clients 3 --per-round 2 --records 4 --reference 4 --novel 4 --test 2"
    audit(f"--paper fedrand:figure4 --rounds 1 {sizes} --local-steps 1 --threads 2 --quiet", tmp_path / "paper")
