"""JSON that somebody wrote by hand or with a script of theirs: parsed strictly, checked field by field, refused in one
sentence."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedaudit.machinery.errors import InputError, nearest

FORMAT = 1  # of docs/own-runs.md
RUN, ROUNDS = "run.json", "rounds.json"
SCORES = ("captions", "answers")  # how utility is scored
CLIENTS = (
    100_000  # a client's number lies below: a larger one is a typing error, and every number up to it becomes a client
)
DEEPEST = 20  # levels of lists and objects
LARGEST = 2**63  # whole numbers lie below: tables and seeds hold no larger ones
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # ends a line, or means something to a terminal
_UNUSABLE = re.compile(r"[\x00\ud800-\udfff]")
_COLUMNS = ("round", "model", "method", "seed")  # of the table of utility, beside its numbers


@dataclass(frozen=True)
class Kind:
    """What a field may hold, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not _CONTROL.search(value) and _bytes(value) <= 255


def _path(value: object) -> bool:
    """What a file system takes as a path."""
    return (
        isinstance(value, str)
        and bool(value.strip())
        and not _CONTROL.search(value)
        and _bytes(value) <= 1000
        and all(_bytes(part) <= 255 for part in value.split("/"))
    )


def _bytes(text: str) -> int:
    return len(text.encode())


def counts(value: object) -> bool:
    """A list of whole numbers, none of them negative."""
    return isinstance(value, list) and all(COUNT.holds(v) for v in value)


def _utility(value: object) -> bool:
    """{model: {metric: number, or null where there is none}}"""
    return isinstance(value, dict) and all(NAME.holds(model) and _metrics(found) for model, found in value.items())


def _metrics(value: object) -> bool:
    return isinstance(value, dict) and all(
        NAME.holds(name) and name not in _COLUMNS and (v is None or (_number(v) and abs(v) < 1e15))
        for name, v in value.items()
    )


TEXT = Kind("a text that is not empty", lambda v: isinstance(v, str) and bool(v.strip()))
ANY_TEXT = Kind("a text", lambda v: isinstance(v, str))
TEXTS = Kind("a list of texts", lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v))
NAME = Kind(
    "a name: one line, at most 100 bytes",  # folders are called by it
    lambda v: isinstance(v, str) and v.strip() == v and 0 < _bytes(v) <= 100 and v.isprintable(),
)
LINE = Kind("one line of at most 255 bytes that is not empty", _line)
PATH = Kind("a path of one line, at most 1000 bytes and 255 for a name in it", _path)
INTEGER = Kind("a whole number", _whole)
COUNT = Kind("a whole number, 0 or more", lambda v: _whole(v) and v >= 0)
CLIENT = Kind(f"a client's number, 0 to {CLIENTS - 1}", lambda v: _whole(v) and 0 <= v < CLIENTS)
POSITIVE = Kind("a number above 0, at most 1000000", lambda v: _number(v) and 0 < v <= 1e6)
OBJECT = Kind("an object", lambda v: isinstance(v, dict))
UTILITY = Kind(
    f'an object as {{"global": {{"loss": 1.5}}}}, with numbers below 1e15 and none called {", ".join(_COLUMNS)}',
    _utility,
)


def one_of(*values: Any) -> Kind:
    """One of a few values; JSON's true is no 1."""
    words = " or ".join(json.dumps(value) for value in values)
    return Kind(words, lambda v: any(type(v) is type(value) and v == value for value in values))


def parse(data: bytes, where: str) -> Any:
    """The value of a JSON text in UTF-8.

    InputError: no valid JSON, or something that JSON has and nobody can use: NaN, an infinity, a whole number of
    LARGEST or more, a key twice, a text with NUL or half of a surrogate pair, more than DEEPEST levels.
    """
    try:
        found = json.loads(
            data.decode("utf-8-sig"),
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_once,
        )
        _require_usable(found)
        return found
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no valid JSON ({error})") from error


def fields(thing: Any, where: str, needed: Mapping[str, Kind], optional: Mapping[str, Kind]) -> dict[str, Any]:
    """`thing`, an object with exactly these fields. InputError names the first that is missing, unknown or of another
    kind."""
    if not isinstance(thing, dict):
        raise InputError(f"{where} must be an object with the keys {_listed(needed or optional)}, not {_json(thing)}")
    known = {**needed, **optional}
    for key in needed:
        if key not in thing:
            raise InputError(f"{where} lacks the key {key!r}, which is {known[key].words}")
    for key, value in thing.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {_quoted(key)}; valid are {_listed(known)}{nearest(key, known)}")
        if not known[key].holds(value):
            raise InputError(f"{where}: {shown(key)} must be {known[key].words}, not {_json(value)}")
    return thing


def shown(text: str, *, most: int = 60) -> str:
    """What somebody else called something, as a message shows it: on one line, and no more than its beginning if it is
    long."""
    short = _shortened(text, most)
    return short if short.isprintable() else repr(short)


def _quoted(text: str) -> str:
    return repr(_shortened(text, 60))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _json(value: object) -> str:
    return shown(json.dumps(value, ensure_ascii=False))


def _listed(names: Collection[str]) -> str:
    few = list(names)[:10]
    return ", ".join([*few, "..."] if len(few) < len(names) else few)


def _refuse(word: str) -> float:
    raise ValueError(f"{shown(word)} is no JSON number")


def _integer(word: str) -> int:
    if len(word) > 20 or abs(int(word)) >= LARGEST:
        raise ValueError(f"{shown(word)} is too large")
    return int(word)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. ValueError: a key comes twice, and one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {_quoted(key)} comes twice")
    return found


def _require_usable(value: Any, room: int = DEEPEST) -> None:
    """ValueError: a text that no table, page or file name can hold, or more levels than there is `room` for."""
    if isinstance(value, str) and _UNUSABLE.search(value):
        raise ValueError(f"{_quoted(value)} holds NUL or half of a surrogate pair")
    if isinstance(value, (list, dict)):
        if not room:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _require_usable(part, room - 1)


def _finite(word: str) -> float:
    value = float(word)
    return value if math.isfinite(value) else _refuse(word)
