"""Threads of BLAS and OpenMP in functions that users call by themselves.

For a whole run the command and the library's front door limit them: `machinery.executor.one_thread`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


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
