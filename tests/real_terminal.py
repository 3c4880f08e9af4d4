"""What a command shows in a real terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def in_terminal(words: Sequence[str], columns: int, folder: Path = ROOT, seconds: float = 60) -> tuple[int, str]:
    """The exit code of the command, called in `folder`, and the text, stdout and stderr together, that a terminal of so
    many columns gets. The command asks the terminal itself for its width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fedaudit", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while True:
            said += os.read(ours, 65536)
    os.close(ours)
    return process.wait(seconds), said.decode()
