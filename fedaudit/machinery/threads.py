"""Threads: those of BLAS and OpenMP in functions that users call by themselves, and our own.

For a whole run the command and the library's front door limit the first: `machinery.executor.one_thread`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_allowed = 1


def allow_threads(most: int) -> None:
    """Let `in_threads` use so many threads in this process; by default it uses one."""
    global _allowed
    _allowed = most


def in_threads(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> list[Result]:
    """The result of `function` for each argument, in their order. For long NumPy operations, during which other threads
    run."""
    with ThreadPoolExecutor(_allowed) as threads:
        return [*threads.map(function, arguments)]


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread inside the `with` block or the decorated function: on many short vectors
    their threads only wait for each other."""
    with _libraries().limit(limits=1):
        yield


@functools.cache
def _libraries() -> Any:
    """The controller of the libraries that are loaded; to look for them takes longer than to limit them."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()
