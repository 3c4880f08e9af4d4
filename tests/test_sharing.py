"""Several commands on one --out: what another one works on comes last, and a kill of either harms nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedaudit.machinery.executor import Executor
from fedaudit.machinery.locks import Busy, folder_lock
from fedaudit.pipeline.sharing import free_chains_first, free_first
from tests.whole_runs import Job, contents, report

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom fedaudit.machinery.locks import folder_lock\n"
    "folder = Path(sys.argv[1])\n"
    "with folder_lock(folder):\n"
    "    print('held', flush=True)\n"
    "    while not (folder / 'let-go').exists():\n"
    "        time.sleep(0.01)\n"
)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Three folders; another process holds the lock of the second until a file `let-go` is in it."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(paths[1])], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    yield paths
    holder.kill()
    holder.wait()
    holder.stdout.close()


def test_a_lock_that_is_not_waited_for(folders: list[Path]) -> None:
    with pytest.raises(Busy, match="another process works on"), folder_lock(folders[1], wait=False):
        pytest.fail("held by two")
    (folders[1] / "let-go").touch()
    with folder_lock(folders[1]), folder_lock(folders[1], wait=False):
        pass


def test_what_is_free_comes_first_and_results_in_order(folders: list[Path]) -> None:
    done: list[str] = []

    def work(path: Path, wait: bool) -> str:
        if path == folders[2]:
            (folders[1] / "let-go").touch()
        with folder_lock(path, wait=wait or path == folders[2]):
            done.append(path.name)
            return path.name.upper()

    assert free_first(work, folders) == ["A", "B", "C"]
    assert done[0] == "a"
    assert sorted(done) == ["a", "b", "c"]


def block(bench: Path, job: tuple[Path, int, bool]) -> int:
    path, until, wait = job
    with folder_lock(path, wait=wait):
        with (bench / "order").open("a") as file:
            file.write(f"{path.name}{until} ")
        if path.name == "c" and until == 20:
            (path.parent / "b" / "let-go").touch()
    return 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_busy_training_is_waited_for_after_all_others(folders: list[Path], tmp_path: Path, workers: int) -> None:
    """Each part of each training counts once."""
    with Executor(lambda: tmp_path, workers=workers) as executor:
        jobs = [(path,) for path in folders]
        assert sum(free_chains_first(executor.chains, block, jobs, [10, 20])) == 60
    order = (tmp_path / "order").read_text().split()
    assert sorted(order) == ["a10", "a20", "b10", "b20", "c10", "c20"]
    assert order.index("b20") > order.index("b10") >= (4 if workers == 1 else 2)


WORDS = (
    "--method promptfl --epsilon none --attack loss --rounds 2 --clients 3 --train 12 --test 1 --seeds 4 --threads 1"
)


@pytest.mark.slow  # whole commands; quick: the parts above, two whole commands in test_end_to_end
@pytest.mark.parametrize("seen", ["runs/*/round-001.json", "analyses/*/findings.json"])
def test_of_two_commands_one_is_killed_and_the_other_ends_with_the_same_bytes(seen: str, tmp_path: Path) -> None:
    job: Any = Job(WORDS.split(), printing=False)
    killed, other = job.start(tmp_path / "two", held=seen), job.start(tmp_path / "two")
    killed.wait_for(lambda: any((tmp_path / "two").glob(seen)), seen)
    killed.process.kill()
    assert killed.finish().returncode == -signal.SIGKILL
    done = other.finish()
    assert done.returncode == 0, done.stderr
    assert contents(report(done)) == contents(report(job.audit(tmp_path / "alone")))
