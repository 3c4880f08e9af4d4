"""The words of a command before they are parsed: what no flag can mean, and how numbers are written. Imports nothing
heavy."""

from __future__ import annotations

import argparse
import math
import numbers
import os
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from fedaudit.machinery.errors import InputError

LARGEST = 1_000_000  # whole number, of every flag but --seed
LARGEST_SEED = 10**18
NAME_BYTES = 255  # of one folder or file: what file systems take
PATH_BYTES = 3600  # of a whole path: what a run writes below it needs the rest of the 4,096 that systems take

_PATHS = (
    "--out",
    "--run",
    "--config",
    "--backbone",
    "--backbone-code",
    "--weights",
    "--export-run",
    "--export-adapters",
)
_REPEATED = ("--fail-if",)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def check(words: Iterable[str]) -> None:
    """InputError: a value of nothing or of two dashes, a character that no name has, a path that no disk takes, or a
    flag that comes twice."""
    seen: dict[str, str] = {}
    flag = ""  # whose value the next word is
    for word in words:
        value: str | None = word
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            _check_letters("", flag)
            if _field(flag) in seen and flag not in _REPEATED:
                raise InputError(f"{seen[_field(flag)]}: given twice; give it once")
            seen[_field(flag)] = flag
            value = value if equals else None
        if value is not None:
            _check_value(flag, value)
            flag = ""


def fields(words: Iterable[str]) -> frozenset[str]:
    """The parameters that the words give a value, by the names of their fields: `--no-past` gives past one."""
    return frozenset(_field(word.partition("=")[0]) for word in words if _is_flag(word))


def _is_flag(word: str) -> bool:
    return word.startswith("--") and word != "--"


def _field(flag: str) -> str:
    return flag[2:].removeprefix("no-").replace("-", "_")


def _check_value(flag: str, value: str) -> None:
    if not value.strip():
        if flag:
            raise InputError(
                f"{flag}: its value is empty, as of a variable that is not set; give one, or leave {flag} out"
            )
        raise InputError("an empty word stands between the options, as of a variable that is not set; leave it out")
    if value == "--":  # argparse drops it, and the flag would have an empty list for its value
        raise InputError(
            f"{flag}: two dashes (--) are no value; give one, or leave {flag} out"
            if flag
            else "--: no such option; leave the two dashes out"
        )
    _check_letters(f"{flag}: " if flag else "", value)
    if flag in _PATHS or flag.endswith("-root"):
        _check_path(flag, value)


def _check_letters(where: str, text: str) -> None:
    """InputError for control characters, and for halves of surrogate pairs: bytes that are not UTF-8."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise InputError(f"{where}{shown(text)} holds a control character, or bytes that are not UTF-8; no name may")


def _check_path(flag: str, value: str) -> None:
    if any(len(os.fsencode(part)) > NAME_BYTES for part in re.split(r"[/\\]", value)):
        raise InputError(f"{flag} {shown(value)}: a name is longer than the {NAME_BYTES} bytes that disks take")
    if len(os.fsencode(os.path.abspath(value))) > PATH_BYTES:
        raise InputError(f"{flag} {shown(value)}: the path is longer than {PATH_BYTES} bytes")


def shown(value: object) -> str:
    """A value as messages show it: on one line, and not at length."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    return short.repr(value)


def whole(text: str, largest: int = LARGEST) -> int:
    """A whole number in the digits 0 to 9. argparse names the flag of what is none."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a whole number in digits, as 12")
    if len(text) > 30 or abs(int(text)) > largest:  # int() refuses thousands of digits
        raise argparse.ArgumentTypeError(f"{shown(text)} must lie between -{largest} and {largest}")
    return int(text)


def number(text: str) -> float:
    """A number as 0.3 or 1e-4, or "inf". argparse names the flag of what is none; NaN and what overflows is none."""
    if text == "inf":
        return math.inf
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a number, as 0.3 or 1e-4")
    if math.isinf(found := float(text)):
        raise argparse.ArgumentTypeError(f"{shown(text)} is too large for a number")
    return found


def seed(text: str) -> int:
    """A whole number of up to 18 digits."""
    return whole(text, LARGEST_SEED)


def words_of(mapping: Mapping[str, Any]) -> list[str]:
    """A mapping of option names to values as command-line words, checked. InputError for names and values that no flag
    can have."""
    words = []
    for key, value in mapping.items():
        if not _OPTION.fullmatch(key):
            raise InputError(f"{shown(key)} is no name of an option, such as per_round")
        flag = f"--{key.replace('_', '-')}"
        several = isinstance(value, (list, tuple))
        texts = [_text(key, one) for one in (value if several else (value,))]
        if not texts:
            raise InputError(f"{key} is an empty list; name at least one value, or leave it out")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif flag in _REPEATED:
            words += [f"{flag}={text}" for text in texts]
        elif several and not all(text.strip() for text in texts):
            raise InputError(f"{flag}: one of its values is empty, as of a variable that is not set")
        else:
            words.append(f"{flag}={','.join(texts)}")
    check(words)
    return words


def _text(key: str, value: object) -> str:
    if not isinstance(value, (str, numbers.Real, os.PathLike)):
        raise InputError(f"{key} must be a plain value, not {shown(value)}")
    try:
        return str(value)
    except ValueError as error:  # thousands of digits
        raise InputError(f"{key}: too large for a number") from error
