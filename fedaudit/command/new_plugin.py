"""`--new KIND NAME`: writes a small whole method, attack or audit with its test (docs/guides/plugins.md). Imports
nothing heavy."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.command.argv import check
from fedaudit.command.flags import Parser, add_manner
from fedaudit.command.listing import KINDS
from fedaudit.command.plugin_templates import PLUGINS, TESTS
from fedaudit.command.window import tell
from fedaudit.machinery import places
from fedaudit.machinery.errors import InputError, nearest

RESERVED = ("all", "none", "list")  # words that stand for names on the command line
_HELP = (
    "write a small method, attack or audit with its test into --plugins or the current folder (docs/guides/plugins.md)"
)
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True)
class NewPlugin:
    """The files to write, by path."""

    folder: Path
    files: dict[Path, str]


def read(words: Sequence[str]) -> NewPlugin | None:
    """The plugin that --new asks for; None if the words have no --new, or ask for help. InputError: a word does not
    fit, the name is bad or taken, or a file is there already."""
    if {"--help", "-h"} & {*words} or not any(word.partition("=")[0] == "--new" for word in words):
        return None
    check(words)
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--new", nargs="*")
    add_manner(parser)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        raise InputError(f"{unknown[0]}: has no place beside --new, which writes a file; there is --plugins")
    if len(options.new) != 2:
        raise InputError("--new: needs a kind and a name, as in --new attack surprise")
    kind, name = options.new
    if kind not in PLUGINS:
        raise InputError(f"--new {kind}: no such kind{nearest(kind, PLUGINS)}; there are {', '.join(PLUGINS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in RESERVED or len(name) > 40:
        raise InputError(
            f"--new {kind} {name}: must be a name of at most 40 small letters, digits and single underscores, such as "
            f"my_{kind}, and no word that Python or the command has already"
        )
    folder = Path(options.plugins or ".").expanduser()
    part = KINDS[kind].package.partition(".")[2]
    if any(folder.glob(f"{part}/*.py")):
        places.add([folder], "--plugins")
    if name in KINDS[kind] or places.source_of(f"{places.OURS}.{part}.{name}"):
        taken = KINDS[kind][name].path if name in KINDS[kind] else places.source_of(f"{places.OURS}.{part}.{name}")
        raise InputError(f"--new {kind} {name}: the name is taken by {taken}")
    title = "".join(map(str.title, name.split("_")))
    texts = {folder / part / f"{name}.py": PLUGINS[kind], folder / "tests" / f"test_{kind}_{name}.py": TESTS[kind]}
    files = {path: text.replace("NAME", name).replace("Title", title) for path, text in texts.items()}
    if there := [path for path in files if path.exists()]:
        raise InputError(f"--new {kind} {name}: {there[0]} is there already, and nothing is written over")
    return NewPlugin(folder, files)


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add --new to the help of other commands, which never see it: it is read before them."""
    group = parser.add_argument_group("plugins of your own")
    group.add_argument("--new", nargs=2, metavar=("KIND", "NAME"), help=_HELP)


def main(request: NewPlugin) -> int:
    """Write the files, say what comes next, and return the exit code 0. InputError: a file cannot be written."""
    for path, text in request.files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"--new: {path} cannot be written ({error.strerror or error})") from error
        print(f"written: {path}")
    tell(f"next: fedaudit check {request.folder}")
    return 0
