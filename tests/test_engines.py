"""The contract of engines: whoever runs the jobs, results come in order, once, and whatever happens to a worker."""

import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401, before the fork, so that all workers start at once

from fedaudit.attacks.facts import ATTACKS
from fedaudit.machinery import places
from fedaudit.machinery.engines import crew, local
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import AHEAD, Executor, WorkerDied
from fedaudit.machinery.store import Folder, Missing
from tests.plugin_places import forgotten  # noqa: F401, a fixture
from tests.whole_runs import Job, contents, report

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="kills")
MIB = 2**20


class Started:
    def __init__(self, engine: str, folder: Path) -> None:
        self.engine, self.folder, self.said = engine, folder, list[str]()

    def __call__(self, build: Callable[[], Any] | None = None) -> Executor[Path]:
        of_ray = {"folder": self.folder / "shared", "cpus": 1, "gpus": 0, "environment": dict}
        more = {"engine": self.engine, "say": self.said.append, "options": of_ray if self.engine == "ray" else {}}
        return Executor(build or Bench(self.folder), workers=2, **more)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One of Ray on this machine, for all tests of this file."""
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=128 * MIB)
    yield
    ray.shutdown()


# slow: the same contract of spawned workers, which takes seconds each, and of Ray's; quick: forked ones, spawned ones below
@pytest.fixture(params=["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "ray"))])
def started(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return Started("ray", tmp_path)
    if request.param == "fork" and sys.platform != "linux":
        pytest.skip("workers are spawned here")
    monkeypatch.setenv(local.START, request.param)
    return Started("local", tmp_path)


@dataclass
class Bench:
    """Builds the bench: a folder, in which it leaves a mark of each building process."""

    folder: Path

    def __call__(self) -> Path:
        (self.folder / f"built-{os.getpid()}-{time.time_ns()}").touch()
        return self.folder


def double(bench: Path, x: int) -> tuple[int, int]:
    time.sleep(0.02 * (x % 3))
    return 2 * x, os.getpid()


class Odd(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def fail(bench: Path, how: str) -> Any:
    match how:
        case "missing":
            raise Missing(bench / "file")
        case "odd":
            raise Odd(1, 2)
        case "unreadable":
            return lambda: how
    raise ValueError(f"job {how}")


def die(bench: Path, x: int) -> None:
    (bench / f"died-{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(bench: Path, x: int) -> bytes:
    """Half of the third job's first worker dies, the second one gives all."""
    if x == 3 and not (mark := bench / "died").exists():
        mark.touch()
        die(bench, x)
    return bytes([x]) * MIB


def large(bench: Path, job: tuple[int, int]) -> bytes:
    """As many bytes as the job says, from a worker that has left its number a moment before; an error for none."""
    x, size = job
    if not size:
        fail(bench, str(x))
    data = random.Random(x).randbytes(size)
    if x == 0:
        (bench / "sends").write_text(str(os.getpid()))
    return data


def half(bench: Path, x: int) -> bytes:
    """The first worker dies when half of its message is sent, the others send it whole."""
    if not (mark := bench / "died").exists():
        import multiprocessing.connection

        def send(self: Any, data: Any) -> None:
            os.write(self.fileno(), bytes(data)[: len(data) // 2])
            mark.touch()
            die(bench, x)

        multiprocessing.connection.Connection._send = send  # type: ignore[attr-defined]
    return b"x" * 20_000


def test_results_come_in_the_order_of_the_jobs_and_from_several_workers(started: Started) -> None:
    """For each of which the bench is built once at most."""
    with started() as executor:
        found = list(executor.map(double, range(12)))
        again = list(executor.map(double, range(3)))
    assert [value for value, _ in found] == [2 * x for x in range(12)]
    assert [value for value, _ in again] == [0, 2, 4]
    assert len({pid for _, pid in found} - {os.getpid()}) == 2
    built = [path.name.split("-")[1] for path in started.folder.glob("built-*")]
    assert 1 <= len({*built}) == len(built) <= 2


def test_jobs_are_made_when_their_turn_is_near(started: Started) -> None:
    """Large jobs come from a generator: of 50, only a few per worker are drawn before the first result is out."""
    drawn = []

    def jobs() -> Iterator[int]:
        for x in range(50):
            drawn.append(x)
            yield x

    with started() as executor:
        results = executor.map(double, jobs())
        next(results)
        assert len(drawn) <= 2 * AHEAD + 6  # those that ended beside the first one made room
        assert [value for value, _ in results] == [2 * x for x in range(1, 50)]
    assert len(drawn) == 50


def leave_a_mark(bench: Path, x: int) -> int:
    time.sleep(0.05)
    (bench / f"mark-{x}").touch()
    return x


def test_who_wants_no_more_results_starts_no_more_jobs(started: Started) -> None:
    with started() as executor:
        results = executor.map(leave_a_mark, range(50))
        assert next(results) == 0
        results.close()
        assert next(iter(executor.map(double, [4])))[0] == 8
    assert len(list(started.folder.glob("mark-*"))) <= 2 * AHEAD + 4


@pytest.mark.parametrize("kind", ["map", "chains"])
def test_an_error_comes_back_as_it_is_if_it_can(started: Started, kind: str) -> None:
    errors: dict[str, tuple[type[Exception], str]] = {
        "plain": (ValueError, "^job plain"),
        "missing": (Missing, "file is not there"),
        "odd": (RuntimeError, "^Odd: 1 and 2$"),
        "unreadable": (Exception, "pickle"),
    }
    with started() as executor:
        for how, (error, said) in errors.items():  # and the workers go on
            with pytest.raises(error, match=said):
                list(getattr(executor, kind)(fail, [how] if kind == "map" else [[how, how]]))
        assert next(iter(executor.map(double, [1])))[0] == 2


def cannot_build() -> Path:
    raise InputError("this model cannot be read")


def test_what_a_bench_cannot_be_built_for(started: Started) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        started(cannot_build)


@POSIX
@pytest.mark.parametrize("kind", ["map", "chains"])
def test_a_job_that_kills_its_workers_ends_after_three_of_them(started: Started, kind: str) -> None:
    jobs: Any = [4] if kind == "map" else [[4, 5]]
    with started() as executor, pytest.raises(WorkerDied, match="run the same command to resume"):
        list(getattr(executor, kind)(die, jobs))
    assert started.said == [crew.AGAIN]
    assert len(list(started.folder.glob("died-*"))) == 3


@POSIX
def test_the_job_of_a_dead_worker_runs_again(started: Started) -> None:
    with started() as executor:
        assert list(executor.map(die_once, range(6))) == [bytes([x]) * MIB for x in range(6)]
    assert started.said == [crew.AGAIN]


@POSIX
def test_a_worker_that_died_between_two_series_of_jobs(started: Started) -> None:
    with started() as executor:
        (_, pid), *_ = executor.map(double, range(4))
        os.kill(pid, signal.SIGKILL)
        assert [value for value, _ in executor.map(double, range(9))] == [2 * x for x in range(9)]


@POSIX
def test_without_workers_left_all_jobs_end(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "TRIES", 1)  # no spare one
    if started.engine == "local" and os.environ[local.START] == "fork":  # elsewhere there are always more
        with started() as executor:
            for job in (die, double):
                with pytest.raises(WorkerDied):
                    list(executor.map(job, range(9)))


@POSIX
def test_a_worker_that_dies_in_the_middle_of_a_message(started: Started) -> None:
    if started.engine == "ray":
        pytest.skip("sends by messages of its own")
    with started() as executor:
        assert list(executor.map(half, [1, 2])) == [b"x" * 20_000] * 2
    assert started.said == [crew.AGAIN]


@POSIX
def test_a_worker_that_is_killed_while_it_sends_a_large_result(started: Started) -> None:
    sends, killed = started.folder / "sends", list[float]()

    def kill() -> None:
        while not (text := sends.read_text() if sends.exists() else ""):
            time.sleep(0.001)
        time.sleep(0.001)
        killed.append(time.monotonic())
        os.kill(int(text), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with started() as executor:
        killer.start()
        found = list(executor.map(large, [(x, 20 * MIB) for x in range(3)]))
        killer.join()
    assert found == [random.Random(x).randbytes(20 * MIB) for x in range(3)]
    assert time.monotonic() - killed[0] < 60


def test_large_results_leave_no_file(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with started() as executor:
        assert len(next(executor.map(large, [(1, MIB)]))) == MIB
    with pytest.raises(ValueError, match="job 3"), started() as executor:
        list(executor.map(large, [(1, MIB), (2, MIB), (3, 0)]))
    assert not list(tmp_path.glob("fedaudit-results-*")) + list(tmp_path.glob("shared/*"))


def informed(folder: Path, params: Any) -> Any:
    Bench(folder)()
    return params


def sees(params: Any, x: int) -> tuple[str | None, tuple[int, str, float]]:
    time.sleep(0.1)
    return os.environ.get("CUDA_VISIBLE_DEVICES"), (os.getpid(), ATTACKS["odd_one"].load().__module__, params.weight)


PLUGIN = '''"""Odd: a score that is made up for a test."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    weight: float = 0.5


class OddOne: ...
'''


@POSIX
@pytest.mark.usefixtures("forgotten")
def test_on_several_gpus_each_worker_is_spawned_sees_one_and_knows_plugins(tmp_path: Path, monkeypatch: Any) -> None:
    """And whoever comes after a dead one sees the same."""
    (tmp_path / "torch.py").write_text("def set_num_threads(n): ...\n")  # the real one takes each worker seconds
    monkeypatch.syspath_prepend(str(tmp_path))
    (attacks := tmp_path / "mine" / "attacks").mkdir(parents=True)
    (attacks / "odd_one.py").write_text(PLUGIN)
    places.add([tmp_path / "mine"], "--plugins")
    build = functools.partial(informed, tmp_path, ATTACKS["odd_one"].params(weight=0.125))  # type: ignore[call-arg]
    with Executor(build, workers=2, options={"gpus": ["3", "MIG-5"]}) as executor:
        found = dict(executor.map(sees, range(8)))
        assert sorted(found, key=str) == ["3", "MIG-5"]
        os.kill(found["3"][0], signal.SIGKILL)
        again = dict(executor.map(sees, range(40)))
    assert sorted(again, key=str) == ["3", "MIG-5"]
    assert again["MIG-5"] == found["MIG-5"]
    assert again["3"][0] != found["3"][0]
    assert {told[1:] for told in again.values()} == {("fedaudit.attacks.odd_one", 0.125)}
    assert len([*tmp_path.glob("built-*")]) == 3


@pytest.mark.slow  # in a whole command; quick: test_the_job_of_a_dead_worker_runs_again
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_command_whose_workers_are_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Both of them, in the middle of two trainings."""
    words = "--method promptfl --epsilon none --rounds 2 --clients 3 --train 12 --test 1 --seeds 2 --threads 2"
    job, hurt = Job(words.split(), printing=False), tmp_path / "hurt"
    running = job.start(hurt, held="runs/*/round-000.json")
    while sum("round-000.json" in Folder(path) for path in hurt.glob("runs/*")) < 2:
        assert running.process.is_alive()
        time.sleep(0.01)
    pid = running.process.pid
    for worker in sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))[:2]:
        os.kill(worker, signal.SIGKILL)
    done = running.finish()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(crew.AGAIN) == 1
    assert contents(report(done)) == contents(report(job.audit(tmp_path / "unhurt")))
