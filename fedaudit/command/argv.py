"""Checks command-line words before argparse does, reads numbers, and turns mappings into words. Imports nothing
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

LARGEST = 1_000_000  # whole number that a flag takes, except --seed
LARGEST_SEED = 10**18
NAME_BYTES = 255  # of the name of a folder or file, as file systems limit it
PATH_BYTES = 3600  # of a path that a user gives: files of a run below it need the rest of the usual 4,096

_PATHS = (
    "--out",
    "--run",
    "--config",
    "--backbone",
    "--backbone-code",
    "--weights",
    "--export-run",
    "--export-adapters",
    "--plugins",
)
_REPEATED = ("--fail-if",)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_EVERY = re.compile(r"every:[1-9]\d{0,5}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(|MB|GB)", re.IGNORECASE)
MB = 10**6
_UNITS = {"": 1, "MB": MB, "GB": 1000 * MB}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def check(words: Iterable[str]) -> None:
    """Raise InputError for an empty value or `--`, a control character, a path too long for disks, or a flag given
    twice (--fail-if may be)."""
    flags: dict[str, str] = {}  # by the field that they set
    flag = ""  # the flag whose value the next word is
    for word in words:
        value: str | None = word
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            _check_letters("", flag)
            if _field(flag) in flags and flag not in _REPEATED:
                raise InputError(f"{flags[_field(flag)]}: given twice; give it once")
            flags[_field(flag)] = flag
            value = value if equals else None
        if value is not None:
            _check_value(flag, value)
            flag = ""


def given_fields(words: Iterable[str]) -> frozenset[str]:
    """Names of the parameters that the words set: {"past", "per_round"} for `--no-past --per-round 3`."""
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
    if value == "--":  # argparse drops it: the value of the flag would be an empty list
        raise InputError(
            f"{flag}: two dashes (--) are no value; give one, or leave {flag} out"
            if flag
            else "--: no such option; leave the two dashes out"
        )
    _check_letters(f"{flag}: " if flag else "", value)
    if flag in _PATHS or flag.endswith("-root"):
        _check_path(flag, value)


def _check_letters(where: str, text: str) -> None:
    """Raise InputError, which begins with `where`, for control characters and for bytes that are not UTF-8."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise InputError(
            f"{where}{short_repr(text)} holds a control character, or bytes that are not UTF-8; no name may"
        )


def _check_path(flag: str, value: str) -> None:
    if any(len(os.fsencode(part)) > NAME_BYTES for part in re.split(r"[/\\]", value)):
        raise InputError(f"{flag} {short_repr(value)}: a name is longer than the {NAME_BYTES} bytes that disks take")
    if len(os.fsencode(os.path.abspath(value))) > PATH_BYTES:
        raise InputError(f"{flag} {short_repr(value)}: the path is longer than {PATH_BYTES} bytes")


def short_repr(value: object) -> str:
    """A value as Python writes it (repr), for messages: on one line, shortened to about 80 characters."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    return short.repr(value)


def whole(text: str, largest: int = LARGEST) -> int:
    """Parse a whole number in ASCII digits, at most `largest` in size. ArgumentTypeError, to which argparse adds the
    flag."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must be a whole number in digits, as 12")
    if len(text) > 30 or abs(int(text)) > largest:  # int() refuses thousands of digits
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must lie between -{largest} and {largest}")
    return int(text)


def number(text: str) -> float:
    """Parse a number as 0.3 or 1e-4, or "inf". ArgumentTypeError for anything else, NaN and overflows included."""
    if text == "inf":
        return math.inf
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must be a number, as 0.3 or 1e-4")
    if math.isinf(value := float(text)):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} is too large for a number")
    return value


def size(text: str) -> int:
    """Parse a number of bytes as 500MB or 4GB, of 1 MB at least. ArgumentTypeError as in `whole`."""
    if not (parts := _SIZE.fullmatch(text)):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must be a size, as 500MB or 4GB")
    if not MB <= (value := int(float(parts[1]) * _UNITS[parts[2].upper()])) <= 10**6 * MB:
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must lie between 1MB and 1000GB")
    return value


def kept_rounds(text: str) -> str:
    """Check a value of --keep-rounds: all, last or every:N. ArgumentTypeError as in `whole`."""
    if not (text in ("all", "last") or _EVERY.fullmatch(text)):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} must be all, last or every:N, as every:10")
    return text


def doubts(text: str) -> tuple[str, ...]:
    """Parse a value of --accept-doubts: names of checks. ArgumentTypeError as in `whole`."""
    from fedaudit.reports.doubts import DOUBTS

    names = tuple(text.split(","))
    if odd := [name for name in names if name not in DOUBTS]:
        there = ", ".join(DOUBTS)
        raise argparse.ArgumentTypeError(f"{short_repr(odd[0])} is no check of a recording; there are {there}")
    return names


def seed(text: str) -> int:
    """Parse a whole number in ASCII digits, at most `LARGEST_SEED` in size. ArgumentTypeError as in `whole`."""
    return whole(text, LARGEST_SEED)


def words_of(mapping: Mapping[str, Any]) -> list[str]:
    """Turn {option name: value} into command-line words, one per option, and check them. False becomes --no-NAME, a
    list one word with commas (for --fail-if one word each). InputError: no flag can have such a name or value."""
    words = []
    for key, value in mapping.items():
        if not _OPTION.fullmatch(key):
            raise InputError(f"{short_repr(key)} is no name of an option, such as per_round")
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
        raise InputError(f"{key} must be a plain value, not {short_repr(value)}")
    try:
        return str(value)
    except ValueError as error:  # thousands of digits
        raise InputError(f"{key}: too large for a number") from error
