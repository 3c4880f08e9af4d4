"""Runs independent jobs in this process, or in a few worker processes that each hold the same bench.

The bench is whatever all jobs share: a model, data. A job is a module-level function of (bench, argument). Results do
not depend on the number of workers: each worker computes with one thread.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from fedaudit.machinery.engines.crew import Crew

Bench = TypeVar("Bench")
Argument = TypeVar("Argument")
Result = TypeVar("Result")
Job = Callable[[Any, Any], Any]  # a module's function of (bench, argument)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
AHEAD = 3  # submitted and unfinished jobs per worker: a worker need not wait until the caller has written results


class WorkerDied(RuntimeError):
    """Worker processes ended without a result, too often to go on."""


class Executor(Generic[Bench]):
    """Runs jobs on the bench that `build` makes. A context manager: leaving it ends the workers; an error kills them.

    With one worker of the engine "local", jobs run in this process. A job whose worker dies runs again in another one;
    `say` is told so once. `options` are the engine's own. WorkerDied: it died several times, or all workers did.
    """

    def __init__(
        self, build: Callable[[], Bench], *, workers: int = 1, engine: str = "local",
        options: Mapping[str, Any] = NO_OPTIONS,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:  # fmt: skip
        self._crew: Crew | None = None
        if workers == 1 and engine == "local":
            self._bench = build()
            return
        self._ahead = AHEAD * workers
        self._crew = importlib.import_module(f"fedaudit.machinery.engines.{engine}").start(
            build, workers, say, **options
        )

    def map(self, function: Callable[[Bench, Argument], Result], jobs: Iterable[Argument]) -> Iterator[Result]:
        """Yield the result of each job, in the order of `jobs`, which may be a generator: it is read step by step.
        While a long job runs, the results of later jobs wait in memory. An error of a job is raised here in place of
        its result."""
        if self._crew is None:
            yield from (function(self._bench, job) for job in jobs)
            return
        crew, waiting = self._crew, iter(jobs)
        futures: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        running: set[concurrent.futures.Future[Result]] = set()
        try:
            while True:
                running = {future for future in running if not future.done()}
                for job in itertools.islice(waiting, self._ahead - len(running)):
                    futures.append(crew.submit(function, job))
                    running.add(futures[-1])
                if not futures:
                    return
                if futures[0].done():
                    yield futures.popleft().result()
                else:  # any of them may be the next to end: short jobs go on beside a long one
                    concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        finally:  # an error, or nobody wants the rest
            for future in futures:
                future.cancel()

    def chains(
        self, function: Callable[[Bench, Argument], Result], chains: Iterable[Iterable[Argument]]
    ) -> Iterator[Result]:
        """Yield the results of chains of small jobs as they end, in no fixed order. A job is drawn from its chain when
        the result of the one before it has been taken; chains do not wait for each other."""
        if self._crew is None:
            yield from (function(self._bench, job) for chain in chains for job in chain)
            return
        chain_of: dict[concurrent.futures.Future[Result], Iterator[Argument]] = {}
        crew = self._crew

        def submit(chain: Iterator[Argument]) -> None:
            for job in itertools.islice(chain, 1):
                chain_of[crew.submit(function, job)] = chain

        for chain in chains:
            submit(iter(chain))
        while chain_of:
            ended, _ = concurrent.futures.wait(chain_of, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                chain = chain_of.pop(future)
                yield future.result()
                submit(chain)

    def __enter__(self) -> Executor[Bench]:
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        if self._crew is not None and error is None:
            self._crew.end()
        elif self._crew is not None:
            self._crew.kill()  # safe: a file that a worker writes appears whole or not at all


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
