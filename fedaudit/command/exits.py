"""How the command ends: exit codes, one-sentence error messages, signals, closed streams. Imports nothing heavy."""

from __future__ import annotations

import atexit
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
from fedaudit.machinery.faults import first_of, sentences

DONE = 0
CROSSED = 1  # a gate is crossed; used for nothing else
MENDABLE = 2  # an error that the user can mend
BROKEN = 3  # an unexpected error, or workers that died too often
FAILED = 4  # a cell of a matrix or one of several items failed; the others are done
CLOSED = 128 + 13  # the reader of stdout has gone, as if SIGPIPE had ended the program
STOPPED = "stopped; the same command goes on from here"
APPLE_MEMORY = ("MPS backend out of memory", "Invalid buffer size")  # how torch begins where Apple's GPU has too little
NO_MEMORY = ("can't allocate memory", "failed to map segment")  # what torch and the system's loader say
LONGEST = 1200  # characters of an error message

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_received: list[int] = []  # signals since the command began
_kept: list[Any] = []  # what C may call at the end of this process
_told: list[int] = []  # of a guarded child: the pipe that its exit code goes to
_ENDED = b"error: a library ended this process; what it said is above, if anything\n"


class Stopped(KeyboardInterrupt):
    """A signal told the command to end."""


def exit_code(work: Callable[[], int], *, debug: bool) -> int:
    """Call `work` and return its exit code, or that of the exception it raised, which is printed as one sentence.

    The first SIGINT, SIGTERM or SIGHUP prints a sentence and ends this process and its workers; a second one ends the
    process at once. `debug` prints tracebacks.
    """
    _make_streams_usable()
    with _stoppable() as received:
        try:
            code = work()
            sys.stdout.flush()
            return code
        except BaseException as error:
            if received:  # the exception of a signal may have been replaced by another
                _say(STOPPED)
                _leave(128 + received[0])
            return _code(error, debug)


def _code(error: BaseException, debug: bool) -> int:
    """Print in a sentence what ended the command, and return its exit code: `MENDABLE` for an InputError, 128 + number
    for a signal, `CLOSED` for a closed pipe, `BROKEN` for anything unexpected."""
    if isinstance(error, SystemExit):  # argparse has printed its help, or rich has met a closed pipe
        return CLOSED if error.code else _flushed()
    if isinstance(error, BrokenPipeError):
        _close(sys.stdout, sys.stderr)
        return CLOSED
    if isinstance(error, KeyboardInterrupt):
        _say(STOPPED)
        return 128 + signal.SIGINT
    if isinstance(error, InputError):
        for sentence in first_of(sentences(error)):
            _say(f"error: {sentence}")
        return MENDABLE
    _say(f"error: {_sentence(error)}; {_traceback(error, debug)}")
    return BROKEN


def hear_libraries() -> None:
    """From now on the exit code is `BROKEN`, with a sentence, where a library ends this process in its own way, as
    OpenBLAS does with exit(1) if it gets no memory. `end` does not come by here. Without effect on Windows."""
    import ctypes

    here = os.getpid()

    def ended(_: object) -> None:
        if os.getpid() == here:
            os.write(2, _ENDED)
            os._exit(BROKEN)

    if os.name == "posix":
        _kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ended))
        ctypes.CDLL(None).__cxa_atexit(_kept[-1], None, None)


def guard() -> None:
    """Go on in a child of this process, whose exit code this process then has: `BROKEN`, with a sentence, where a
    library ended the child at once, as Ray does with _Exit(1) if its node is gone. To be called before threads start;
    without effect on Windows, in a child, and where `hear_libraries` was not called: a caller's process is not forked.
    """
    if not _kept or _told:
        return
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which hands it on
        _end_with_parent()
        _told.append(write)
        return
    os.close(write)
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda n, _: os.kill(child, n))
    _, status = os.waitpid(child, 0)
    planned, code = os.read(read, 1), os.waitstatus_to_exitcode(status)
    if planned or code < 0:
        os._exit(planned[0] if planned else 128 - code)
    os.write(2, _ENDED)
    os._exit(BROKEN)


def _end_with_parent() -> None:
    """End this process when its parent does, on Linux."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def end(code: int) -> NoReturn:
    """End this process as Python does at its end, but let the system free its memory: object by object, with torch
    loaded, it takes more than a second."""
    atexit._run_exitfuncs()
    _leave(code)


def is_stopping() -> bool:
    """Whether a signal told the command to end, even if another exception replaced Stopped."""
    return bool(_received)


def explain(error: Exception, debug: bool) -> str:
    """One sentence on an error, for a command that continues; writes the traceback of an unexpected one."""
    if isinstance(error, InputError):
        return str(error)
    return f"{_sentence(error)}; {_traceback(error, debug)}"


def _flushed() -> int:
    """Flush stdout; return `DONE`, or `CLOSED` if its reader has gone."""
    try:
        sys.stdout.flush()
        return DONE
    except BrokenPipeError:
        _close(sys.stdout)
        return CLOSED


def _sentence(error: BaseException) -> str:
    """The message for an unexpected exception or a worker that died, without the traceback."""
    text = str(error)
    if isinstance(error, WorkerDied):
        return text
    # torch's class, or what it says of Apple's GPU; torch is not imported for this
    if type(error).__name__ == "OutOfMemoryError" or text.startswith(APPLE_MEMORY):
        lower = "lower --memory or --batch, or give --dtype bfloat16 or --device cpu"
        return f"the GPU has too little memory; {lower}"
    if isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY):
        return "this machine has too little memory; lower --threads, --memory, --batch or the number of records"
    if isinstance(error, RecursionError):
        return "something is nested deeper than any input should be (RecursionError)"
    return f"unexpected {type(error).__name__}" + (f": {text}" if text else "")


def _traceback(error: BaseException, debug: bool) -> str:
    """Write the traceback, to stderr with `debug`, else to a temporary file; return the end of a sentence that says
    where it is."""
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
    """Print a sentence to stderr on one line, without control characters and shortened to LONGEST."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(sentence.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 3 :]}"
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _close(sys.stderr)


def _make_streams_usable() -> None:
    """Open closed standard streams (`>&-`) on the null device, so that no file gets their numbers; characters that a
    stream cannot encode become "?"."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, open until the process ends
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close(*streams: TextIO) -> None:
    """Redirect streams to the null device, so that the interpreter can flush them at its end without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Inside the `with` block the first signal raises Stopped and is added to the yielded list; the next one kills. A
    signal that is ignored already (nohup, background jobs) stays ignored."""
    received = _received
    received.clear()
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        received.append(number)
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():
        before = {n: handler for n in _SIGNALS if (handler := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, stop)
    try:
        yield received
    finally:
        if not received:
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave(code: int) -> NoReturn:
    """Kill the workers that are left and end this process at once: waiting for a worker that was killed in mid-message
    never ends."""
    for worker in multiprocessing.active_children():
        worker.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for pipe in _told:
        os.write(pipe, bytes([code]))
    os._exit(code)
