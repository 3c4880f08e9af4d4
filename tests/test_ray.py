"""Workers on Ray: refusals before anything runs, traps of Ray, and whole commands to the bytes of one machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedaudit.command.cli import read_command
from fedaudit.machinery.engines import crew
from fedaudit.machinery.engines import ray as engine
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.pipeline.workers import environment
from tests.whole_runs import ROOT, contents

WORDS = "--method promptfl,fedotp --epsilon none --rounds 2 --clients 2 --train 8 --test 1 --prompt-length 4"
AUDIT = f"{WORDS} --seeds 2 --attack lira,loss --shadows 4 --targets 1 --quiet"


def test_the_engine_moves_no_key() -> None:
    plans = [read_command(f"{WORDS} {more}".split()).plan for more in ("", "--engine ray --workers 9 --worker-cpus 2")]
    assert plans[1].workers == 9
    assert plans[1].out.is_absolute()
    for one, other in zip(*(plan.cells for plan in plans), strict=True):
        assert (one.training_key, one.analysis_key) == (other.training_key, other.analysis_key)
    assert plans[0].report_folder.name == plans[1].report_folder.name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--worker-cpus 2", "--worker-cpus: only --engine ray"),
        ("--engine ray --worker-cpus 9999", "--worker-cpus 9999.0: must be at most 1024"),
        ("--engine spark", "--engine: invalid choice"),
        ("--engine ray --workers 0", "must be at least 1"),
    ],
)
def test_words_that_fit_no_engine(words: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_command(f"{WORDS} {words}".split())


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedaudit\[cluster\]'"):
        engine.start(int, 2, print, folder=tmp_path, cpus=1, gpus=0, environment=dict)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not list(tmp_path.iterdir())


HERE = {"Python": "3.11.7", "torch": "2.8.0", engine.SIMD: "AVX2"}
NODE = {**HERE, "node": "10.0.0.2", "folder": "seen"}


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (NODE | {"torch": "2.7.1"}, r"node 10\.0\.0\.2 is unlike this machine: torch 2\.7\.1 there, 2\.8\.0 here;"),
        (NODE | {"folder": "missing"}, r"node 10\.0\.0\.2 does not see /shared: --out must be a folder that all"),
    ],
)
def test_an_unlike_node_is_refused_by_name_and_difference(node: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine._check_alike([NODE, node], HERE, Path("/shared/ray-0"), print)


def test_a_mix_of_processors_is_said() -> None:
    assert {"Python", "FedAudit", "torch", "numpy", engine.SIMD} <= environment().keys(), "what must be alike"
    said: list[str] = []
    engine._check_alike([NODE, NODE | {engine.SIMD: "AVX512"}], HERE, Path("/shared/ray-0"), said.append)
    assert len(said) == 1
    assert "(AVX2, AVX512): last digits may differ" in said[0]


def test_more_workers_than_places_are_refused() -> None:
    engine._check_place({"CPU": 4.0}, 4, 1, 0)
    with pytest.raises(InputError, match=r"--workers 4: with --worker-cpus 2 they need 8 CPUs, .* has 4; at most 2"):
        engine._check_place({"CPU": 4.0}, 4, 2, 0)
    with pytest.raises(InputError, match=r"with --worker-gpus 1 they need 4 GPUs, .* has 0; at most 0"):
        engine._check_place({"CPU": 4.0}, 4, 1, 1)


@pytest.fixture
def handler() -> Iterator[Any]:
    def stop(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, before)


def own_number() -> dict[str, str]:
    return {"process": str(os.getpid())}


@pytest.mark.slow  # on Ray itself; quick: the handshake on made-up nodes, above
def test_rays_traps(tmp_path: Path, handler: Any) -> None:
    """The handler of SIGTERM stays, before, during and after; an unlike node is refused, and nothing stays behind."""
    ray = pytest.importorskip("ray")
    options = {"folder": tmp_path, "cpus": 1, "gpus": 0, "environment": dict}
    with Executor(int, workers=1, engine="ray", options=options) as executor:
        assert signal.getsignal(signal.SIGTERM) is handler
        assert list(executor.map(divmod, [])) == []
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not ray.is_initialized()
    with pytest.raises(InputError, match=r"is unlike this machine: process \d+ there, \d+ here"):
        Executor(int, workers=1, engine="ray", options=options | {"environment": own_number})
    assert not ray.is_initialized()
    assert not list(tmp_path.iterdir())


def command(out: Path, more: str) -> list[str]:
    return [sys.executable, str(ROOT / "audit.py"), *f"{AUDIT} {more} --out {out}".split()]


def audit(out: Path, more: str, **env: str) -> None:
    done = subprocess.run(command(out, more), capture_output=True, text=True, timeout=900, env=os.environ | env)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("local")
    audit(out, "--threads 1")
    return contents(out)


@pytest.mark.slow  # a whole command on Ray; quick: forked workers (test_engines)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_worker_and_the_same_bytes(local: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = command(tmp_path, "--engine ray --workers 2")
    words.remove("--quiet")
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/*/round-000.json")):
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(_actor(running.pid), signal.SIGKILL)
    _, said = running.communicate()
    assert running.returncode == 0, said
    assert said.count(crew.AGAIN) == 1
    assert contents(tmp_path) == local


def _actor(driver: int) -> int:
    """An actor's process: all are Ray's, and below the driver."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title, pid = (path / "cmdline").read_bytes(), int(path.name)
            if title.startswith(b"ray::_Bench") and driver in _above(pid):
                return pid
        except OSError:
            continue
    raise LookupError("no actor")


def _above(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


@pytest.mark.slow  # a whole command on two nodes of Ray; quick: forked workers (test_engines)
def test_a_lost_node_and_the_same_bytes(local: dict[str, str], tmp_path: Path) -> None:
    """One of two, in the middle of the trainings; the other has place for both workers."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        env = os.environ | {"RAY_ADDRESS": cluster.address}
        running = subprocess.Popen(command(tmp_path, "--engine ray --workers 2"), env=env, stdout=subprocess.DEVNULL)
        while not list(tmp_path.glob("runs/*/round-000.json")):
            assert running.poll() is None
            time.sleep(0.01)
        cluster.remove_node(second, allow_graceful=False)
        assert running.wait(600) == 0
    finally:
        cluster.shutdown()
    assert contents(tmp_path) == local
