"""Runs independent jobs in this process, or in a few worker processes that each hold the same bench.

The bench is whatever all jobs share: a model, data. A job is a module-level function of (bench, argument). Results do
not depend on the number of workers: each worker computes with one thread.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from fedaudit.machinery import places

Bench = TypeVar("Bench")
Argument = TypeVar("Argument")
Result = TypeVar("Result")

DIED = "a worker process died (was it killed for its memory?); run the same command to resume"
AHEAD = 3  # submitted and unfinished jobs per worker: a worker need not wait until the caller has written results

_bench: Any = None  # in a worker process: the bench that `build` returned


class WorkerDied(RuntimeError):
    """A worker process ended without a result."""


class Executor(Generic[Bench]):
    """Runs jobs on the bench that `build` makes. A context manager: leaving it ends the workers; an error kills them.

    With one worker, jobs run in this process. On Linux the bench is built here and the workers are forked, so that they
    share its memory; elsewhere each worker calls `build` itself, which must be picklable.
    """

    def __init__(self, build: Callable[[], Bench], *, workers: int = 1) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        if workers == 1:
            self._local = build()
            return
        self._ahead = AHEAD * workers
        fork = sys.platform == "linux"
        if fork:
            bench = self._local = build()
        context = multiprocessing.get_context("fork" if fork else "spawn")
        get_bench = (lambda: bench) if fork else build
        carrier = places.Carrier.of_this_process()  # comes first: what `build` holds may be of a plugin
        self._pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start_worker, (carrier, get_bench))
        self._others = set(multiprocessing.active_children())
        try:
            # the first job starts all workers: before any thread of ours (a progress display, say) exists
            self._pool.submit(os.getpid).result()
        except BaseException:
            self._kill()
            raise

    def map(self, function: Callable[[Bench, Argument], Result], jobs: Iterable[Argument]) -> Iterator[Result]:
        """Yield the result of each job, in the order of `jobs`, which may be a generator: it is read step by step.
        While a long job runs, the results of later jobs wait in memory. An error of a job is raised here in place of
        its result."""
        if self._pool is None:
            yield from (function(self._local, job) for job in jobs)
            return
        pool, waiting = self._pool, iter(jobs)
        futures: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        running: set[concurrent.futures.Future[Result]] = set()
        try:
            while True:
                running = {future for future in running if not future.done()}
                for job in itertools.islice(waiting, self._ahead - len(running)):
                    futures.append(pool.submit(_call, function, job))
                    running.add(futures[-1])
                if not futures:
                    return
                if futures[0].done():
                    yield futures.popleft().result()
                else:  # any of them may be the next to end: short jobs go on beside a long one
                    concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise WorkerDied(DIED) from error
        except GeneratorExit:  # not after an error: a pool whose workers were killed fails on cancelled futures
            for future in futures:
                future.cancel()
            raise

    def chains(
        self, function: Callable[[Bench, Argument], Result], chains: Iterable[Iterable[Argument]]
    ) -> Iterator[Result]:
        """Yield the results of chains of small jobs as they end, in no fixed order. A job starts when the one before it
        in its chain has ended; chains do not wait for each other."""
        if self._pool is None:
            yield from (function(self._local, job) for chain in chains for job in chain)
            return
        chain_of: dict[concurrent.futures.Future[Result], Iterator[Argument]] = {}
        pool = self._pool

        def submit(chain: Iterator[Argument]) -> None:
            for job in itertools.islice(chain, 1):
                chain_of[pool.submit(_call, function, job)] = chain

        try:
            for chain in chains:
                submit(iter(chain))
            while chain_of:
                ended, _ = concurrent.futures.wait(chain_of, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in ended:
                    submit(chain_of.pop(future))
                    yield future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise WorkerDied(DIED) from error

    def __enter__(self) -> Executor[Bench]:
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        if self._pool is None:
            return
        if error is not None:
            self._kill()  # safe: a file that a worker writes appears whole or not at all
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def _kill(self) -> None:
        """Kill the workers, whatever they are doing, and wait until they are gone."""
        workers = set(multiprocessing.active_children()) - self._others
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def one_thread() -> None:
    """Limit torch, BLAS and OpenMP in this process to one thread; parallel workers would only wait for each other."""
    import threadpoolctl
    import torch

    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)


def set_precision(name: str) -> None:
    """Multiply float32 matrices in this process in float32 ("highest"), or with TF32's ten bits where the GPU can
    ("tf32")."""
    import torch

    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"  # of convolutions; torch itself allows it by default


@contextlib.contextmanager
def restored_settings() -> Iterator[None]:
    """Restore, on leaving the `with` block, the precision of products that torch had before it, and the numbers of
    threads of torch, BLAS and OpenMP."""
    import threadpoolctl
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    try:
        with threadpoolctl.threadpool_limits(limits=None):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def _start_worker(carrier: places.Carrier, build: Callable[[], Any]) -> None:
    global _bench
    for name in ("SIGINT", "SIGHUP"):  # the parent handles them, and then ends its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a broken pool ends its other workers by this signal
    threading.Thread(target=_die_with_parent, daemon=True).start()
    one_thread()
    _without_gpu()
    _bench = build()


def _without_gpu() -> None:
    """Hide GPUs from torch in a worker: it computes on the processor, and a forked process must not touch CUDA, which
    torch's optimizers do at each step where a GPU is there."""
    import torch

    torch.cuda.is_available = lambda: False


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[[Any, Argument], Result], job: Argument) -> Result:
    return function(_bench, job)
