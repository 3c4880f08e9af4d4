"""Parses JSON that users wrote, strictly: every field is checked, an InputError names the mistake in one sentence."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedaudit.machinery.errors import InputError, nearest

FORMATS = (1, 2)  # versions of the format in docs/reference/run-folder.md; the last one is written
RUN, ROUNDS = "run.json", "rounds.json"
IMAGE = "<image>"  # where a prompt has its picture
SCORES = ("captions", "answers")  # how utility is scored
CLIENTS = 100_000  # client numbers lie below: a typing error would create as many clients
DEEPEST = 20  # levels of lists and objects
LARGEST = 2**63  # whole numbers lie below: larger ones fit into no table and no seed
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line ends, and characters that control a terminal
_UNUSABLE = re.compile(r"[\x00\ud800-\udfff]")
_COLUMNS = ("round", "model", "method", "seed")  # columns of the utility table that are no metrics


@dataclass(frozen=True)
class Kind:
    """A kind of valid values: `words` describe it in messages, `holds` tests a value."""

    words: str
    holds: Callable[[Any], bool]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not _CONTROL.search(value) and _bytes(value) <= 255


def _path(value: object) -> bool:
    """Whether every file system takes the value as a path."""
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
    """Whether the value is a list of whole numbers, 0 or more."""
    return isinstance(value, list) and all(COUNT.holds(v) for v in value)


def _utility(value: object) -> bool:
    """Whether the value is {model: {metric: number or null}}."""
    return isinstance(value, dict) and all(NAME.holds(model) and _metrics(metrics) for model, metrics in value.items())


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
UNIQUE_NAMES = Kind(
    "a list of different names, each one line of at most 100 bytes",
    lambda v: isinstance(v, list) and all(NAME.holds(name) for name in v) and 0 < len(v) == len(set(v)) <= CLIENTS,
)
CLIENTS_LIST = Kind(
    "a list of clients",
    lambda v: isinstance(v, list) and all(isinstance(c, (str, int)) and not isinstance(c, bool) for c in v),
)
POSITIVE = Kind("a number above 0, at most 1000000", lambda v: _number(v) and 0 < v <= 1e6)
BY_LAYER = Kind(
    "an object with a number above 0 for each layer",
    lambda v: isinstance(v, dict) and bool(v) and all(POSITIVE.holds(scale) for scale in v.values()),
)
LOSSES = Kind(
    "an object with a loss, 0 or more, for each id of a member",
    lambda v: isinstance(v, dict) and all(_number(loss) and 0 <= loss < 1e15 for loss in v.values()),
)
SHARE = Kind("a number from 0 to below 1", lambda v: _number(v) and 0 <= v < 1)
OBJECT = Kind("an object", lambda v: isinstance(v, dict))
UTILITY = Kind(
    f'an object as {{"global": {{"loss": 1.5}}}}, with numbers below 1e15 and none called {", ".join(_COLUMNS)}',
    _utility,
)


def one_of(*values: Any) -> Kind:
    """The kind of values that equal one of `values` and have its type: true is not 1."""
    some = [json.dumps(value, ensure_ascii=False) for value in values[:20]]
    words = " or ".join(some) + (f" or {len(values) - 20} more" if len(values) > 20 else "")
    return Kind(words, lambda v: any(type(v) is type(value) and v == value for value in values))


def parse(data: bytes, where: str) -> Any:
    """Parse JSON in UTF-8; `where` begins the message of errors. InputError: invalid JSON, NaN, an infinity, a whole
    number of LARGEST or more, a key twice, a text with NUL or half of a surrogate pair, more than DEEPEST levels."""
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_once,
        )
        _require_usable(value)
        return value
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no valid JSON ({error})") from error


def fields(thing: Any, where: str, needed: Mapping[str, Kind], optional: Mapping[str, Kind]) -> dict[str, Any]:
    """Check that `thing` is an object with all `needed`, perhaps some `optional`, and no other keys; return it.
    InputError, which begins with `where`, names the first key that is missing, unknown or has a wrong value."""
    if not isinstance(thing, dict):
        raise InputError(f"{where} must be an object with the keys {_listed(needed or optional)}, not {_json(thing)}")
    kinds = {**needed, **optional}
    for key in needed:
        if key not in thing:
            raise InputError(f"{where} lacks the key {key!r}, which is {kinds[key].words}")
    for key, value in thing.items():
        if key not in kinds:
            raise InputError(f"{where}: unknown key {_quoted(key)}; valid are {_listed(kinds)}{nearest(key, kinds)}")
        if not kinds[key].holds(value):
            raise InputError(f"{where}: {one_line(key)} must be {kinds[key].words}, not {_json(value)}")
    return thing


def one_line(text: str, *, most: int = 60) -> str:
    """A text for a message, with at most `most` characters, its middle left out; as repr if some cannot be printed."""
    short = _shortened(text, most)
    return short if short.isprintable() else repr(short)


def _quoted(text: str) -> str:
    return repr(_shortened(text, 60))


def _shortened(text: str, most: int) -> str:
    """`text` if it has at most `most` characters, else without its middle: names differ at their ends."""
    if len(text) <= most:
        return text
    end = (most - 3) // 2
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def _json(value: object) -> str:
    return one_line(json.dumps(value, ensure_ascii=False))


def _listed(names: Collection[str]) -> str:
    few = list(names)[:10]
    return ", ".join([*few, "..."] if len(few) < len(names) else few)


def _refuse(word: str) -> float:
    raise ValueError(f"{one_line(word)} is no JSON number")


def _integer(word: str) -> int:
    if len(word) > 20 or abs(int(word)) >= LARGEST:
        raise ValueError(f"{one_line(word)} is too large")
    return int(word)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these (key, value) pairs. ValueError: a key comes twice."""
    thing = dict(pairs)
    if len(thing) < len(pairs):
        ((key, _),) = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {_quoted(key)} comes twice")
    return thing


def _require_usable(value: Any, room: int = DEEPEST) -> None:
    """ValueError: a text with NUL or half of a surrogate pair, or more than `room` levels."""
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
