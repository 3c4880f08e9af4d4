"""`--plugins FOLDER`: methods, attacks, audits and tasks of one's own (docs/guides/plugins.md). Imports nothing
heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedaudit.command.argv import check, given_fields
from fedaudit.command.flags import Parser, add_plugins
from fedaudit.machinery import places


def use(words: Sequence[str]) -> None:
    """Make the plugins known that lie in the folders of --plugins, if the words have it. InputError: one is wrong."""
    if "plugins" not in given_fields(words):
        return
    check(words)
    parser = Parser(add_help=False, allow_abbrev=False)
    add_plugins(parser)
    chosen, _ = parser.parse_known_args(words)
    folders = chosen.plugins.split(",") if chosen.plugins else []
    places.add([Path(folder).expanduser() for folder in folders], "--plugins")
