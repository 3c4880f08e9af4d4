"""Jobs on this machine's workers: short ones beside long ones, signals, death of the parent. Else see test_engines."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch  # before the fork, so that all workers start at once
from threadpoolctl import threadpool_info

from fedaudit.machinery import threads
from fedaudit.machinery.executor import Executor, one_thread, restored_settings, set_precision
from tests.doc_blocks import ROOT


def times(bench, x):
    time.sleep(0.02 * (x % 3))
    return bench * x, os.getpid()


def waited_for(path):
    """Whether it is there within half a minute."""
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return path.exists()


def meet(bench, job):
    path, x = job
    if x == 20:
        path.touch()
    return x != 0 or waited_for(path)


def test_short_jobs_go_on_beside_a_long_one(tmp_path):
    """The first of 30 ends only when the twentieth has: handing out work in blocks would never come so far."""
    with Executor(lambda: 1, workers=2) as executor:
        assert list(executor.map(meet, [(tmp_path / "met", x) for x in range(30)])) == [True] * 30


def follow(bench, job):
    """Wait for the mark of the chain that comes first here, then leave one's own."""
    folder, chain, x = job
    if chain == "a":
        waited_for(folder / "b2")
    before = not x or (folder / f"{chain}{x - 1}").exists()
    (folder / f"{chain}{x}").touch()
    return before and (folder / "b2").exists() >= (chain == "a")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_waits_for_the_one_before_it_in_its_chain_and_for_no_other_chain(tmp_path, workers):
    """The first chain's first job ends only when the other chain has ended: rounds of chains would never come so far."""
    chains = [[(tmp_path, chain, x) for x in range(3)] for chain in ("ab" if workers == 2 else "ba")]
    with Executor(lambda: 1, workers=workers) as executor:
        assert list(executor.chains(follow, chains)) == [True] * 6


def test_threads_meet_if_so_many_are_allowed_and_keep_the_order(monkeypatch):
    monkeypatch.setattr(threads, "_allowed", 1)
    assert len({*threads.in_threads(lambda _: threading.get_ident(), range(4))}) == 1
    threads.allow_threads(3)
    together = threading.Barrier(3, timeout=60)
    assert threads.in_threads(lambda x: together.wait() >= 0 and x, range(3)) == [0, 1, 2]


def test_one_worker_is_this_process():
    with Executor(lambda: 10) as executor:
        assert list(executor.map(times, [3])) == [(30, os.getpid())]


def doze(bench, x):
    time.sleep(600)


def interrupted(results):
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    next(results)


def test_leaving_by_an_error_ends_the_workers_at_once_and_nobody_else():
    """In the middle of jobs that would take ten minutes; `others` is a process of the caller's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
    others = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    others.start()
    there = multiprocessing.active_children()  # earlier tests of this process may have left some
    with pytest.raises(KeyboardInterrupt), Executor(lambda: 1, workers=2) as executor:
        interrupted(executor.map(doze, range(8)))
    signal.signal(signal.SIGINT, before)
    until = time.monotonic() + 20  # who has seen the end of a worker, the pool's thread or we, is told a moment later
    while set(multiprocessing.active_children()) != {*there} and time.monotonic() < until:
        time.sleep(0.01)
    assert set(multiprocessing.active_children()) == {*there}
    assert others in there
    others.kill()
    others.join()


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_workers_leave_signals_to_their_parent(name):
    with Executor(lambda: 1, workers=2) as executor:
        for _, pid in executor.map(times, range(4)):
            os.kill(pid, getattr(signal, name))
        assert [value for value, _ in executor.map(times, range(4))] == [0, 1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_die_with_a_killed_parent(tmp_path):
    (tmp_path / "torch.py").write_text("def set_num_threads(n): ...\nclass cuda: ...\n")  # the real one takes seconds
    code = (
        "import os, time\n"
        "from fedaudit.machinery.executor import Executor\n"
        "def own(bench, x):\n    time.sleep(0.02)\n    return os.getpid()\n"
        "with Executor(lambda: 1, workers=2) as e:\n"
        "    print(*set(e.map(own, range(8))), flush=True)\n"
        "    time.sleep(60)\n"
    )
    where = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=where, stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert workers
    parent.kill()
    parent.wait()
    until = time.monotonic() + 10
    while (alive := [*filter(_lives, workers)]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive


def _lives(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_workers_see_no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for workers in (2, 1):
        with Executor(lambda: None, workers=workers) as executor:
            assert {*executor.map(_sees_gpu, range(4))} == {workers == 1}


def _sees_gpu(bench, job):
    return torch.cuda.is_available()


def test_a_callers_threads_are_given_back():
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with restored_settings():
            one_thread()
            set_precision("tf32")
            assert torch.get_num_threads() == 1
            assert torch.get_float32_matmul_precision() == "high"
            assert {pool["num_threads"] for pool in threadpool_info()} == {1}
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_num_threads(before)
    assert {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()} == pools
