"""Locks that keep other processes out of a folder while one writes into it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedaudit.machinery.disk_errors import write_errors

if sys.platform == "win32":
    import msvcrt

    def _acquire(descriptor: int, *, wait: bool) -> None:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:
                    raise BlockingIOError from error
                time.sleep(0.1)

    def _release(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _acquire(descriptor: int, *, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(descriptor: int) -> None:
        # closing alone would not do: a forked worker holds a copy of the descriptor
        fcntl.flock(descriptor, fcntl.LOCK_UN)


LOCK = ".lock"  # the file in the folder that is locked

_holders: dict[Path, int] = {}  # process that holds the lock, by folder


class Busy(Exception):
    """Another process holds the lock of a folder."""


@contextlib.contextmanager
def folder_lock(folder: Path, say: Callable[[str], None] | None = None, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a folder inside the `with` block; wait while another process holds it, and tell `say` so, or
    raise Busy where `wait` is false. May be nested within one process: yields whether this is the outermost block.
    RuntimeError in a forked worker whose parent holds the lock."""
    key = folder.resolve()
    if key in _holders:
        if _holders[key] != os.getpid():
            raise RuntimeError(f"a worker process cannot write into {folder}: its parent holds the lock")
        yield False
        return
    with write_errors(folder / LOCK):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, folder, say, wait)
        _holders[key] = os.getpid()
        try:
            yield True
        finally:
            del _holders[key]
            _release(descriptor)
    finally:
        os.close(descriptor)


def holds_lock(folder: Path) -> bool:
    """Whether this process is inside `folder_lock` of a folder."""
    return _holders.get(folder.resolve()) == os.getpid()


def _take(descriptor: int, path: Path, say: Callable[[str], None] | None, wait: bool) -> None:
    """Take the lock of an open lock file, waiting for as long as another process holds it; `say` is told so first."""
    with write_errors(path / LOCK), contextlib.suppress(BlockingIOError):
        _acquire(descriptor, wait=False)
        return
    if not wait:
        raise Busy(f"another process works on {path}")
    if say is not None:
        say(f"another process works on {path}; waiting")
    with write_errors(path / LOCK):
        _acquire(descriptor, wait=True)
