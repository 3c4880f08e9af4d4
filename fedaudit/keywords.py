"""Between Python and the command: keywords become the command's words, and errors name keywords in place of flags."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from fedaudit.command import plugin_folders
from fedaudit.command.argv import short_repr, words_of
from fedaudit.command.option_types import OF_THE_COMMAND
from fedaudit.command.owners import owners
from fedaudit.machinery.errors import Diverged, InputError, nearest
from fedaudit.options import Options

INSTEAD = {  # what Python has for a flag that is no keyword
    "compare": "Audit.compare",
    "dry_run": "fedaudit.dry_run",
    "help": "fedaudit.Options",
    "open": "Audit.open",
    "split": "fedaudit.split",
}
KINDS = typing.get_type_hints(Options)
SWITCHES = {name for name, kind in KINDS.items() if bool in typing.get_args(kind)}

_FLAG = re.compile(r"(?<![\w./-])(?<!audit\.py )--(no-)?([a-z][a-z0-9-]*)(/--no-\2)?")
_VALUE = re.compile(r"[ =]('[^']*'|[^\s;()]*[^\s;(),:.?])")
_PROSE = frozenset(  # words behind a flag that are no value of it
    "a adds alone allows an and as at decides does has holds in instead is knows must needs of on only or out reads "
    "says takes that the there to trains was were where which with without".split()
)


def words(options: Mapping[str, Any]) -> list[str]:
    """The words of the command for these keywords, without those that are None. InputError: a keyword is of the
    command only, or has a value that no flag can have, or there is none of its name."""
    if options.get("plugins") is not None:
        plugin_folders.use(words_of({"plugins": options["plugins"]}))
    for name, value in options.items():
        if name in OF_THE_COMMAND - {"check", "dry_run"}:
            raise InputError(command_only(name))
        if value is None and name not in KINDS and not owners(f"--{name.replace('_', '-')}"):
            raise InputError(f"{name}=None: no such keyword{nearest(name, KINDS)}")
        if name in SWITCHES and not isinstance(value, bool | None):
            raise InputError(f"{name}={_shown(value)}: must be True or False")
    return words_of({name: value for name, value in options.items() if value is not None})


def command_only(name: str) -> str:
    """A sentence on a flag of the command that is no keyword."""
    instead = f"; in Python it is {INSTEAD[name]}" if name in INSTEAD else ""
    return f"{name}: is of the command only, audit.py --{name}{instead}"


@contextmanager
def errors_in_python(options: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Inside the `with` block the message of an InputError names keywords; `options` are the caller's."""
    try:
        yield
    except Diverged as error:
        error.remedy = in_python(error.remedy, options)
        raise
    except InputError as error:
        error.args = (in_python(str(error), options),)
        raise


def in_python(message: str, options: Mapping[str, Any]) -> str:
    """A message of the command in which keywords stand for flags: "per_round=9: at most ..." for "--per-round 9: at
    most ...". A flag without a value is written "per_round=...", or with the caller's at the message's start."""
    translated, end = "", 0
    for flag in _FLAG.finditer(message):
        if flag.start() >= end:  # not within the value of the flag before
            keyword, length = _keyword(flag, message[flag.end() :], options)
            translated += message[end : flag.start()] + keyword
            end = flag.end() + length
    return translated + message[end:]


def _keyword(flag: re.Match[str], rest: str, options: Mapping[str, Any]) -> tuple[str, int]:
    """The keyword for a flag, and how many characters of the `rest` of the message it stands for."""
    name = flag[2].replace("-", "_")
    if name not in KINDS and (name not in options or name in OF_THE_COMMAND):
        return INSTEAD.get(name, flag[0]), 0
    if name in SWITCHES:
        return f"{name}={not flag[1]}", 0
    value = options.get(name)
    text = _text(value)
    if value is not None and re.match(rf"[ =]{re.escape(text)}(?!\w)", rest):
        return f"{name}={_shown(value)}", 1 + len(text)
    if value is not None and flag.start() == 0 and rest.startswith(":"):
        return f"{name}={_shown(value)}", 0
    behind = _VALUE.match(rest)
    if behind is None or behind[1] in _PROSE:
        return f"{name}=...", 0
    quoted = behind[1].startswith("'") or re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", behind[1])
    return f"{name}={behind[1] if quoted else repr(behind[1])}", behind.end()


def _text(value: Any) -> str:
    """A value as the command's words have it."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _shown(value: Any) -> str:
    return short_repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
