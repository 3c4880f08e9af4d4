"""What every word is: the text that files and pages hold, with what the code must know of it.

Type checkers treat a group's class as a frozen dataclass. It is none at runtime: `dataclasses.asdict` of a finding
would take its words apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypeVar, dataclass_transform


@dataclass_transform(frozen_default=True)
class Term(str):
    """A text with the fields that its class annotates; `name` is the text itself."""

    def __new__(cls, name: str, **fields: object) -> Term:
        term = super().__new__(cls, name)
        term.__dict__.update(fields, name=name)
        return term

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} of {self} stays as it is")


AnyTerm = TypeVar("AnyTerm", bound=Term)


def find(group: Sequence[AnyTerm], name: str, what: str) -> AnyTerm:
    """The word of a group that a text holds. ValueError, which says what it is: there is none."""
    if name not in group:
        raise ValueError(f"{what} must be one of {', '.join(group)}, not {name}")
    return group[group.index(name)]
