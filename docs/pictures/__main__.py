"""Take the pictures of README and docs again.

`python -m docs.pictures` after a change of a report's words or looks; with `--record OUT` after a change of numbers: then the commands run first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from docs.pictures.night import NIGHTS
from docs.pictures.paper import TABLES
from docs.pictures.photographs import browser
from docs.pictures.picture import PICTURES
from fedaudit.command import exits
from fedaudit.command.flags import Parser
from fedaudit.machinery.progress import Progress

EVERY = (*PICTURES, *TABLES, *NIGHTS)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code (`fedaudit.command.exits`) of the command with these words."""
    return exits.exit_code(lambda: _main(argv), debug=False)


def _main(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="python -m docs.pictures", description=__doc__, allow_abbrev=False)
    names = [picture.name for picture in EVERY]
    parser.add_argument("--only", choices=names, help="one picture (default: all)")
    text = "run the commands first, as far as their results are not in this folder, and keep what their reports are made of"
    parser.add_argument("--record", type=Path, metavar="OUT", help=text)
    options = parser.parse_args(argv)
    browser()  # looked for before minutes of training
    for picture in EVERY:
        if options.only in (None, picture.name):
            if options.record:
                picture.record(options.record, Progress())
            picture.take()
            print(picture.file)
            for sentence in picture.stale():
                print(f"stale: {sentence}", file=sys.stderr)
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
