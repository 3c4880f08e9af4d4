"""The command, as `fedaudit` and `python -m fedaudit`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code, see `fedaudit.command.cli.main`; after the word `check`, see
    `fedaudit.contracts.check`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["check"]:
        from fedaudit.contracts.check import main as check

        return check(words[1:])
    from fedaudit.command.cli import main as command

    return command(words)


def run() -> NoReturn:
    """Run the command and end this process with its exit code."""
    gc.set_threshold(50_000)  # by default 700 new objects: Python would look through all of torch's some ten times
    from fedaudit.command.exits import end, hear_libraries

    hear_libraries()
    end(main())


if __name__ == "__main__":
    # `python -m` puts the current folder first in sys.path; the installed command does not
    if sys.path[0] == os.getcwd() != str(Path(__file__).resolve().parent.parent):
        del sys.path[0]
    run()
