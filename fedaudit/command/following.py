"""Defaults that follow the values that were given, so that no command fails by a number that nobody gave. Imports
nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.command.argv import given_fields

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Most = Callable[[argparse.Namespace], int]

AT_MOST: Mapping[str, tuple[tuple[str, ...], Most]] = {  # by parameter: what it follows, and what it is at most then
    "newcomers": (("clients",), lambda given: max(given.clients - 1, 0)),
    "per_round": (("clients", "newcomers"), lambda given: max(given.clients - given.newcomers, 1)),
    "rank": (("prompt_length",), lambda given: max(given.prompt_length, 1)),
    "shots": (("train",), lambda given: max(given.train, 1)),
}
DROPPED: Mapping[str, str] = {  # by parameter: the one above which its usual value stands for it
    **dict.fromkeys(("observed_rounds", "solved_rounds", "last", "probe_round"), "rounds"),
    "targets": "clients",
}
UNDOING: Mapping[str, tuple[str, Any]] = {  # by parameter: another one that would undo it, and its value then
    "local_steps": ("local_epochs", 0),
    "dirichlet": ("partition", "dirichlet"),
}


def follow(
    options: argparse.Namespace, sources: Mapping[str, Sequence[str]], classes: Iterable[type[DataclassInstance]],
    *, on_shares: bool,
) -> None:  # fmt: skip
    """Change the options that a weaker source sets, or none, to what fits those that a stronger one sets. `sources`:
    words by their source, the strongest one last; `classes` have the defaults of the options that are None; `on_shares`
    as `MethodFacts.on_shares` of any method."""
    strength = {name: i for i, words in enumerate(sources.values()) for name in given_fields(words)}
    defaults = {field.name: field.default for cls in classes for field in dataclasses.fields(cls)}

    def decides(name: str, other: str) -> bool:
        return strength.get(name, -1) > strength.get(other, -1) and hasattr(options, other)

    for name, (other, value) in UNDOING.items():
        if decides(name, other):
            setattr(options, other, value)
    if decides("partition", "shots") and options.partition == "dirichlet":
        options.shots = 0
    for name, (deciders, most_of) in AT_MOST.items():
        if any(decides(decider, name) for decider in deciders):
            value = defaults.get(name) if getattr(options, name) is None else getattr(options, name)
            if value is not None and value != (fitting := _at_most(value, most_of(options))):
                setattr(options, name, fitting)
    for name, decider in DROPPED.items():
        if decides(decider, name) and (getattr(options, name) or 0) > getattr(options, decider):
            setattr(options, name, None)
    alone = "shadow_kind" not in strength and getattr(options, "trajectory", None) != "observed"
    if on_shares and alone and hasattr(options, "shadow_kind"):
        options.shadow_kind = "federations"


def _at_most(value: Any, most: int) -> Any:
    """A number, or each of several, but `most` where it is larger."""
    return tuple(dict.fromkeys(min(one, most) for one in value)) if isinstance(value, tuple) else min(value, most)
