"""Parameters: dataclasses whose fields state default, meaning and valid values on one line each.

`rank: int = whole(8, "rank of the adapters", least=1, most=4096)`. Such a class is a frozen dataclass that inherits
from `Parameters`, which checks every value when an object is made. Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")


@dataclass(frozen=True)
class Between:
    """Valid values: numbers from `low` to `high`; an open bound is itself not valid.

    `infinite` is the word for infinity ("inf for no limit"); if it is "", infinity is not valid. `sentence` is for
    messages ("at least 1 and at most 4096"), `short` for help texts ("1 to 4096"), as in the other kinds below.
    """

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    infinite: str = ""

    def __contains__(self, value: float) -> bool:
        if value == math.inf:
            return bool(self.infinite)
        above = self.low < value if self.open_low else self.low <= value
        return above and (value < self.high if self.open_high else value <= self.high)

    @property
    def sentence(self) -> str:
        low, high = "above" if self.open_low else "at least", "below" if self.open_high else "at most"
        return f"{low} {self.low} and {high} {self.high}" + (f", or {self.infinite}" if self.infinite else "")

    @property
    def short(self) -> str:
        low, high = "above " if self.open_low else "", "below " if self.open_high else ""
        return f"{low}{self.low} to {high}{self.high}" + (f", or {self.infinite}" if self.infinite else "")


@dataclass(frozen=True)
class OneOf:
    """Valid values: the `options` alone. An option "" means "none" and is not listed in messages."""

    options: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.options

    @property
    def sentence(self) -> str:
        *most, last = (str(option) for option in self.options if option != "")
        return f"{', '.join(most)} or {last}"

    @property
    def short(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Matching:
    """Valid values: texts that match the regular expression `pattern` as a whole; `sentence` says so in words."""

    pattern: str
    sentence: str
    short: str = ""

    def __contains__(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None


Valid = Between | OneOf | Matching


@dataclass(frozen=True)
class Parameters:
    """Base class of dataclasses of parameters. ValueError on creation: names the first bad value and what is valid."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, valid = getattr(self, field.name), field.metadata.get("valid")
            if valid is not None and value not in valid:
                raise ValueError(f"{field.name} must be {valid.sentence}, not {value!r}")
        self.check()

    def check(self) -> None:
        """Override to check several parameters together; raise ValueError. Each one has been checked by itself."""


def whole(default: int, meaning: str, *, least: int, most: int, **more: object) -> int:
    """A field for a whole number from `least` to `most`. `more`, here and below, is further metadata of the field."""
    return _parameter(default, meaning, Between(least, most), more)


def number(
    default: float, meaning: str, *, least: float | None = None, above: float | None = None,
    most: float | None = None, below: float | None = None, infinite: str = "", **more: object,
) -> float:  # fmt: skip
    """A field for a number: give `least` (valid itself) or `above` (not valid), and `most` (valid) or `below` (not).
    `infinite` is the word for infinity, which is valid only if the word is given."""
    low, high = least if above is None else above, most if below is None else below
    assert low is not None
    assert high is not None
    return _parameter(default, meaning, Between(low, high, above is not None, below is not None, infinite), more)


def choice(default: Value, meaning: str, options: tuple[Value, ...], **more: object) -> Value:
    """A field whose value must be one of `options`."""
    return _parameter(default, meaning, OneOf(options), more)


def text(default: str, meaning: str, *, form: str = "", said: str = "", **more: object) -> str:
    """A field for a text that matches the regular expression `form` as a whole, if given; `said` is the form in
    words."""
    return _parameter(default, meaning, Matching(form, said) if form else None, more)


def flag(default: bool, meaning: str, **more: object) -> bool:
    """A field for True or False."""
    return _parameter(default, meaning, None, more)


def like(of: type[DataclassInstance], name: str, default: Value, meaning: str = "") -> Value:
    """A field with the valid values and other metadata of the field `name` of class `of`, but with another default, and
    another meaning if given."""
    metadata = of.__dataclass_fields__[name].metadata
    field: Value = dataclasses.field(default=default, metadata={**metadata, "help": meaning or metadata["help"]})
    return field


def _parameter(default: Value, meaning: str, valid: Valid | None, more: dict[str, object]) -> Value:
    field: Value = dataclasses.field(default=default, metadata={"help": meaning, "valid": valid, **more})
    return field
