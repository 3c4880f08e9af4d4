"""The command, as `fedaudit` and `python -m fedaudit`: looks whether our own packages are in reach before it imports
them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedaudit.command.import_shadowing import HOME, refuse_shadowed
from fedaudit.machinery.errors import InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code as `fedaudit.command.cli.main` does, 2 where another package hides one of
    ours."""
    try:
        refuse_shadowed()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from fedaudit.command.cli import main as command

    return command(argv)


if __name__ == "__main__":
    # `python -m` puts the folder of the call first, where the installed command does not look
    if sys.path[0] == os.getcwd() != str(HOME):
        del sys.path[0]
    sys.exit(main())
