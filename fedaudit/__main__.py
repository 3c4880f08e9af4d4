"""The command, as `fedaudit` and `python -m fedaudit`. Checks that other packages do not hide ours before it imports
them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedaudit.command.import_shadowing import HOME, refuse_shadowed
from fedaudit.machinery.errors import InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code, see `fedaudit.command.cli.main`; 2 if another package hides one of
    ours."""
    try:
        refuse_shadowed()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from fedaudit.command.cli import main as command

    return command(argv)


if __name__ == "__main__":
    # `python -m` puts the current folder first in sys.path; the installed command does not
    if sys.path[0] == os.getcwd() != str(HOME):
        del sys.path[0]
    sys.exit(main())
