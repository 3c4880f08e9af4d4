"""The command in a process that starts with its libraries loaded: these take longer than a tiny run, and the tests start many.

What a start from nothing does is tested elsewhere: tests/test_exits.py, benchmarks/trials.py and `.ci/run` start as users do.
"""

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedaudit.machinery.places import OURS
from tests.unprinted import unprinted

ROOT = Path(__file__).parent.parent
PATIENCE = 60  # seconds after which a command is said to hang: a tiny one takes one
_context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    multiprocessing.set_forkserver_preload(["tests.warm_libraries"])


class Started:
    """A running command of the `audit.py` in the folder `cwd`, of the project or of a changed copy of it.

    `printing`: figures are printed, not only plotted. `held`: whoever writes a file like that (a pattern) goes no further,
    so that who waits for the file need not hurry.
    """

    def __init__(
        self, words: Sequence[str], cwd: Path, *, printing: bool = True, held: str = "", patience: float = PATIENCE
    ) -> None:
        self._words, self._said, self._patience = words, tempfile.TemporaryDirectory(), patience
        self.process = _context.Process(target=_command, args=(words, cwd, Path(self._said.name), printing, held))
        self.process.start()

    def wait_for(self, seen: Callable[[], bool], what: str) -> None:
        """Until it has done something; it must not end before."""
        late = time.monotonic() + self._patience
        while not seen():
            assert self.process.is_alive(), f"ended before {what} was seen"
            assert time.monotonic() < late, f"hangs before {what} was seen"
            time.sleep(0.01)

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Its exit code, minus the signal that killed it, and what it said."""
        code = _ended(self.process, self._patience)
        stdout, stderr = ((Path(self._said.name) / name).read_text() for name in ("stdout", "stderr"))
        self._said.cleanup()
        assert code is not None, f"{self._words} hangs; it said {stdout}{stderr}"
        return subprocess.CompletedProcess(self._words, code, stdout, stderr)


def in_turn(commands: Sequence[str], cwd: Path) -> list[subprocess.CompletedProcess[str]]:
    """Several commands in one process, for those that look only at what is said: a copy of the project is loaded once."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_commands, args=(commands, cwd, sender))
    process.start()
    sender.close()
    said = []
    for words in commands:
        if not receiver.poll(PATIENCE):
            process.kill()
            raise AssertionError(f"{words} hangs")
        said.append(subprocess.CompletedProcess(words.split(), *receiver.recv()))
    process.join()
    return said


def exit_code(function: Callable[..., None], *given: object) -> int | None:
    """Of a process that does nothing else; None of one that hangs."""
    process = _context.Process(target=function, args=given)
    process.start()
    return _ended(process, PATIENCE)


def _ended(process: BaseProcess, patience: float) -> int | None:
    """The exit code of a process; None of one that had to be killed, since it hangs."""
    process.join(patience)
    if (code := process.exitcode) is None:
        process.kill()
        process.join()
    return code


def _command(words: Sequence[str], cwd: Path, said: Path, printing: bool, held: str) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    main = _main_in(cwd, printing)
    from fedaudit.machinery.store import Folder

    write = Folder.write

    def held_there(folder: Folder, name: str, data: bytes) -> None:
        write(folder, name, data)
        if (folder.path / name).match(held):
            time.sleep(PATIENCE)

    if held:
        Folder.write = held_there  # type: ignore[method-assign]
    sys.exit(main(words))


def _commands(commands: Sequence[str], cwd: Path, sender: Connection) -> None:
    main = _main_in(cwd, printing=False)
    for words in commands:
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            try:
                code = main(words.split())
            except SystemExit as end:  # of `--help`
                code = end.code
        sender.send((code, stdout.getvalue(), stderr.getvalue()))


def _main_in(cwd: Path, printing: bool) -> Callable[[Sequence[str]], int]:
    """The command of the project in a folder, from now on the current one."""
    os.chdir(cwd)
    if cwd != ROOT:  # what is loaded of the project itself is forgotten: a copy has its own
        for name in [name for name in sys.modules if name.partition(".")[0] == OURS]:
            del sys.modules[name]
        sys.path.insert(0, str(cwd))
    from fedaudit.__main__ import main

    if not printing:
        from fedaudit.reports.figures import drawing

        drawing.printed = unprinted
    assert Path(sys.modules["fedaudit"].__path__[0]).parent == cwd
    return main
