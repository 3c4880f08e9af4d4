"""Values on their way between processes: small ones as bytes, large ones as files of a folder that both sides see."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedaudit.machinery import places
from fedaudit.machinery.disk_errors import write_errors

LARGE = 1 << 15  # bytes; less than any pipe holds, so that whoever sends need not wait for whoever reads


def pickled(build: Callable[[], Any]) -> bytes:
    """Pickle what builds the bench, for a new process, with the plugins that it may be of."""
    return pickle.dumps((places.Carrier.of_this_process(), build))  # in this order: plugins come first


def unpickled(data: bytes) -> Callable[[], Any]:
    """Unpickle what `pickled` returned."""
    _, build = pickle.loads(data)
    return build


def wrap(value: Any, folder: Path) -> bytes:
    """A value as at most about `LARGE` bytes: the value itself, or the name of a file with it."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    if len(data) <= LARGE:
        return b"v" + data
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
    with write_errors(path):
        path.write_bytes(data)
    return b"f" + os.fsencode(path)


def unwrap(parcel: bytes) -> Any:
    """The value of a parcel, whose file is removed."""
    if parcel[:1] == b"v":
        return pickle.loads(parcel[1:])
    path = Path(os.fsdecode(parcel[1:]))
    try:
        return pickle.loads(path.read_bytes())
    finally:
        path.unlink(missing_ok=True)


def wrap_outcome(work: Callable[[], Any], folder: Path) -> bytes:
    """The outcome of `work()` as a parcel: (True, result) or (False, its error)."""
    try:
        return wrap((True, work()), folder)
    except BaseException as error:
        error.add_note(f"in a worker process:\n{''.join(traceback.format_exception(error))}")
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))  # fails where the error's class wants other arguments
            return wrap((False, error), folder)
        return wrap((False, RuntimeError(f"{type(error).__name__}: {error}")), folder)


def unwrap_outcome(parcel: bytes) -> Any:
    """The result in a parcel of `wrap_outcome`; its error is raised."""
    done, value = unwrap(parcel)
    if done:
        return value
    raise value
