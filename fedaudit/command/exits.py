"""How the command ends: exit codes, one sentence for what went wrong, signals, and streams that are closed or know few
letters.

Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, TextIO

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import WorkerDied

DONE = 0
CROSSED = 1  # a gate, and nothing else
MENDABLE = 2  # by the user
BROKEN = 3  # an unexpected error, or a worker process that died
FAILED = 4  # a cell of a matrix, or an item of several, failed; the others are done
CLOSED = 128 + 13  # as of a program that SIGPIPE ends: nobody reads on
STOPPED = "stopped; the same command goes on from here"
LONGEST = 1200  # letters of a sentence

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


_received: list[int] = []  # signals, since the command began


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end."""


def ended(work: Callable[[], int], *, debug: bool) -> int:
    """The exit code of the command that `work` is. What ended it before its end is said in one sentence on stderr.

    The first SIGINT, SIGTERM or SIGHUP ends this process and its workers from here, another one at any moment by
    itself.
    """
    _make_streams_usable()
    with _stoppable() as received:
        try:
            code = work()
            sys.stdout.flush()
            return code
        except BaseException as error:
            if received:  # whatever the signal's exception became on its way
                _say(STOPPED)
                _leave(128 + received[0])
            return _code(error, debug)


def _code(error: BaseException, debug: bool) -> int:
    """The exit code for what ended the command, after saying it."""
    if isinstance(error, SystemExit):  # argparse has shown its help, or rich has met a closed pipe
        return CLOSED if error.code else _flushed()
    if isinstance(error, BrokenPipeError):
        _close(sys.stdout, sys.stderr)
        return CLOSED
    if isinstance(error, KeyboardInterrupt):
        _say(STOPPED)
        return 128 + signal.SIGINT
    if isinstance(error, InputError):
        _say(f"error: {error}")
        return MENDABLE
    _say(f"error: {_sentence(error)}; {_traceback(error, debug)}")
    return BROKEN


def stopping() -> bool:
    """Whether a signal has asked the command to end, whatever its exception became on its way."""
    return bool(_received)


def explained(error: Exception, debug: bool) -> str:
    """In one sentence what broke a part of the command, which goes on without it."""
    if isinstance(error, InputError):
        return str(error)
    return f"{_sentence(error)}; {_traceback(error, debug)}"


def _flushed() -> int:
    try:
        sys.stdout.flush()
        return DONE
    except BrokenPipeError:
        _close(sys.stdout)
        return CLOSED


def _sentence(error: BaseException) -> str:
    """What happened, without the traceback."""
    text = str(error)
    if isinstance(error, WorkerDied):
        return text
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for this
        lower = "lower --batch or --clients-per-batch, or give --dtype bfloat16 or --device cpu"
        return f"the GPU has too little memory; {lower}"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "this machine has too little memory; lower --threads, --batch or the number of records"
    if isinstance(error, RecursionError):
        return "something is nested deeper than any input should be (RecursionError)"
    return f"unexpected {type(error).__name__}" + (f": {text}" if text else "")


def _traceback(error: BaseException, debug: bool) -> str:
    """Where the traceback is: on stderr with `debug`, else in a file for logs."""
    text = "".join(traceback.format_exception(error))
    if debug:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return "its traceback is above"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="fedaudit-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"{sys.argv}\n{text}")
        return f"its traceback is in {file.name}"
    except OSError:
        return "--debug shows its traceback"


def _say(sentence: str) -> None:
    """One line on stderr, of letters that any terminal can show, and not at length."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(sentence.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 3 :]}"
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _close(sys.stderr)


def _make_streams_usable() -> None:
    """Standard streams that are closed (`>&-`) lead nowhere instead of into the next file that is opened; letters that
    one lacks become "?"."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, as long as the process
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close(*streams: TextIO) -> None:
    """Let what still waits to be written go nowhere, so that the interpreter does not complain of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Within, the first signal raises Stopped and is listed; from then on the system's own handling ends the process at
    once.

    A signal that the caller ignores (nohup, a job in the background) stays ignored.
    """
    received = _received
    received.clear()
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        received.append(number)
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():
        before = {n: known for n in _SIGNALS if (known := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, stop)
    try:
        yield received
    finally:
        if not received:
            for number, known in before.items():
                signal.signal(number, known)


def _leave(code: int) -> NoReturn:
    """End the workers and this process without waiting for anything: a worker that was ended while it spoke is never
    heard to the end."""
    for worker in multiprocessing.active_children():
        worker.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
