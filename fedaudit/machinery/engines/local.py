"""The engine of one machine: worker processes, each behind a pipe of its own.

On Linux the bench is built here and workers are forked, so that they share its memory; elsewhere, on several GPUs, and
with FEDAUDIT_START=spawn, each worker builds it, from a `build` that can be pickled. A worker that dies closes its
pipe, also in the middle of a message: whoever waits for it sees that at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedaudit.machinery.engines.crew import DIED, TRIES, Crew, Lost
from fedaudit.machinery.engines.parcels import pickled, unpickled, unwrap_outcome, wrap_outcome
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Job, WorkerDied, one_thread

START = "FEDAUDIT_START"  # environment variable: "fork" or "spawn", how workers are started
UNGUARDED = 77  # exit code of a worker that would run the caller's whole script
GUARD = (
    'workers import this script, and would run all of it again: put the call under `if __name__ == "__main__":`, or '
    "use one worker (--threads 1)"
)
GONE = (EOFError, ConnectionError)  # the other end of a pipe was closed


def start(build: Callable[[], Any], workers: int, say: Callable[[str], None], *, gpus: Sequence[str] = ()) -> Crew:
    """Start worker processes. What `build` raises in them is raised here. `gpus`: those that workers see, one each, as
    CUDA_VISIBLE_DEVICES names them; by default they see none."""
    folder = Path(tempfile.mkdtemp(prefix="fedaudit-results-"))
    fork = forks() and not gpus  # a forked process must not touch CUDA
    context: Any = multiprocessing.get_context("fork" if fork else "spawn")
    started: list[_Process] = []
    hiring = threading.Lock()

    def begin() -> _Process:
        with hiring:
            in_use = {one.gpu for one in started if one.alive}
            gpu = next((gpu for gpu in gpus if gpu not in in_use), "")
            started.append(_Process(context, build, folder, started if fork else None, gpu))
            return started[-1]

    def hire() -> _Process | None:
        if not fork:
            worker = begin()
            worker.send(build)
            return worker.ready()
        return spare.pop() if spare else None

    def leave() -> None:
        for one in spare:
            one.end()
        shutil.rmtree(folder, ignore_errors=True)

    spare: list[_Process] = []
    try:
        if fork:
            import torch  # noqa: F401, once for all that are forked

            bench = build()
            build = lambda: bench  # noqa: E731
        crew = [begin() for _ in range(workers)]
        # all are forked now: later a thread may hold a lock that the copy would wait for
        spare += [begin() for _ in range(TRIES - 1 if fork else 0)]
        for one in started if not fork else ():
            one.send(build)
        for one in started:
            one.ready()
    except BaseException:
        for one in started:
            one.kill()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Crew(crew, hire, say, leave)


def forks() -> bool:
    """Whether workers are forked, so that they have what this process has, and may have workers of their own."""
    return os.environ.get(START, "fork" if sys.platform == "linux" else "spawn") == "fork"


def refuse_import() -> None:
    """End this process if it is a spawned worker that still imports the caller's script: whoever started it says why.
    Without that it would wait for locks of its parent, which waits for it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)


class _Process:
    """A worker process, and this process' end of its pipe."""

    def __init__(
        self, context: Any, build: Callable[[], Any], folder: Path, forked: Sequence[_Process] | None, gpu: str
    ) -> None:
        """Start a worker. `forked`: the workers before it, whose pipes it copies; None if it is spawned. `gpu` is the
        one that it sees; "" if none."""
        self.gpu = gpu
        self.connection, theirs = context.Pipe()
        copies = [] if forked is None else [*(one.connection for one in forked), self.connection]
        built_here = build if forked is not None else None
        self._process = context.Process(target=_work, args=(theirs, built_here, folder, copies, gpu), daemon=True)
        self._process.start()
        theirs.close()  # so that its death closes the last one

    @property
    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def send(self, build: Callable[[], Any]) -> None:
        """Send what builds the bench: by our pipe, since a process that dies while it is spawned hangs Python's own."""
        with contextlib.suppress(OSError):  # it died, as `ready` says
            self.connection.send_bytes(pickled(build))

    def ready(self) -> _Process:
        """This worker, when its bench is built. InputError: the caller's script does not let it start."""
        try:
            self._receive()
        except Lost as error:
            self._process.join()
            if self._process.exitcode == UNGUARDED:
                raise InputError(GUARD) from None
            raise WorkerDied(DIED) from error
        return self

    def call(self, function: Job, job: Any) -> Any:
        """See `Worker`."""
        message = pickle.dumps((function, job), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise Lost from error
        return self._receive()

    def _receive(self) -> Any:
        try:
            parcel = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise Lost from error
        return unwrap_outcome(parcel)

    def end(self) -> None:
        """See `Worker`."""
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        """See `Worker`."""
        self._process.kill()
        self._process.join()


def _work(
    connection: Connection, build: Callable[[], Any] | None, folder: Path, copies: Sequence[Connection], gpu: str
) -> None:
    """Be a worker, until the other end of the pipe is closed. `build` is None where it comes by the pipe; `copies` are
    ends of pipes that a fork copied."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # read when torch first touches CUDA
    for copy in copies:
        copy.close()
    for name in ("SIGINT", "SIGHUP"):  # the parent handles them, and then ends its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, args=(folder,), daemon=True).start()
    one_thread()
    if not gpu:
        _without_gpu()
    bench: list[Any] = []

    def prepare() -> None:
        bench.append((build or unpickled(connection.recv_bytes()))())

    connection.send_bytes(wrap_outcome(prepare, folder))
    while bench:
        try:
            message = connection.recv_bytes()
        except GONE:
            return
        connection.send_bytes(wrap_outcome(lambda m=message: _call(bench[0], m), folder))  # type: ignore[misc]


def _call(bench: Any, message: bytes) -> Any:
    function, job = pickle.loads(message)
    return function(bench, job)


def _without_gpu() -> None:
    """Hide GPUs from torch in a worker: it computes on the processor, and a forked process must not touch CUDA, which
    torch's optimizers do at each step where a GPU is there."""
    import torch

    torch.cuda.is_available = lambda: False


def _die_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
