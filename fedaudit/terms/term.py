"""Base class of all words: a string, as it stands in files and on pages, with further fields for the code.

To type checkers each subclass is a frozen dataclass. At runtime it is a plain `str`, because `dataclasses.asdict` of a
finding would turn a dataclass into a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypeVar, dataclass_transform


@dataclass_transform(frozen_default=True)
class Term(str):
    """A string with the fields that its class annotates; `name` is the string itself. Fields cannot be set."""

    def __new__(cls, name: str, **fields: object) -> Term:
        term = super().__new__(cls, name)
        term.__dict__.update(fields, name=name)
        return term

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} of {self} stays as it is")


AnyTerm = TypeVar("AnyTerm", bound=Term)


def find(group: Sequence[AnyTerm], name: str, what: str) -> AnyTerm:
    """The term of a group that equals `name`; ValueError if there is none. `what` names the group in the message."""
    if name not in group:
        raise ValueError(f"{what} must be one of {', '.join(group)}, not {name}")
    return group[group.index(name)]
