"""JSON that somebody wrote by hand or with a script of theirs: parsed strictly, checked field by field, refused in one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedaudit.errors import InputError, nearest

FORMAT = 1  # of docs/own-runs.md
RUN, ROUNDS = "run.json", "rounds.json"
SCORES = ("captions", "answers")  # how utility is scored
CLIENTS = (
    100_000  # a client's number lies below: a larger one is a typing error, and every number up to it becomes a client
)


@dataclass(frozen=True)
class Kind:
    """What a field may hold, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _utility(value: Any) -> bool:
    """{model: {metric: number, or null where there is none}}"""
    return isinstance(value, dict) and all(
        isinstance(found, dict) and all(v is None or _number(v) for v in found.values()) for found in value.values()
    )


TEXT = Kind("a text that is not empty", lambda v: isinstance(v, str) and bool(v.strip()))
ANY_TEXT = Kind("a text", lambda v: isinstance(v, str))
TEXTS = Kind("a list of texts", lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v))
NAME = Kind(
    "a name: one line, at most 100 characters",
    lambda v: isinstance(v, str) and v.strip() == v and 0 < len(v) <= 100 and v.isprintable(),
)
INTEGER = Kind("a whole number", _whole)
COUNT = Kind("a whole number, 0 or more", lambda v: _whole(v) and v >= 0)
CLIENT = Kind(f"a client's number, 0 to {CLIENTS - 1}", lambda v: _whole(v) and 0 <= v < CLIENTS)
POSITIVE = Kind("a number above 0", lambda v: _number(v) and 0 < v < 1e300)
OBJECT = Kind("an object", lambda v: isinstance(v, dict))
UTILITY = Kind('an object as {"global": {"loss": 1.5}}', _utility)


def one_of(*values: Any) -> Kind:
    """One of a few values; JSON's true is no 1."""
    words = " or ".join(json.dumps(value) for value in values)
    return Kind(words, lambda v: any(type(v) is type(value) and v == value for value in values))


def parse(data: bytes, where: str) -> Any:
    """The value of a JSON text in UTF-8. InputError: no valid JSON, NaN or an infinity."""
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no valid JSON ({error})") from error


def fields(thing: Any, where: str, needed: Mapping[str, Kind], optional: Mapping[str, Kind]) -> dict[str, Any]:
    """`thing`, an object with exactly these fields. InputError names the first that is missing, unknown or of another kind."""
    if not isinstance(thing, dict):
        raise InputError(f"{where} must be an object with the keys {_listed(needed)}, not {_shown(thing)}")
    known = {**needed, **optional}
    for key in needed:
        if key not in thing:
            raise InputError(f"{where} lacks the key {key!r}, which is {known[key].words}")
    for key, value in thing.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; valid are {_listed(known)}{nearest(key, known)}")
        if not known[key].holds(value):
            raise InputError(f"{where}: {key} must be {known[key].words}, not {_shown(value)}")
    return thing


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _finite(word: str) -> float:
    value = float(word)
    return value if math.isfinite(value) else _refuse(word)
