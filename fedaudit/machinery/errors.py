"""Errors that the user can mend. Each message is one sentence: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

MOST = 100  # sentences of one message
Thing = TypeVar("Thing")
Result = TypeVar("Result")

OUTSIDE_KEYS = "says what is wrong; where something is, there is no number"


class InputError(ValueError):
    """The user's input is wrong: the message names the flag or file, the value, and what is valid. The command prints
    the message and exits with code 2."""


class Faults(InputError):
    """Several things are wrong, each with a sentence of its own: a line of the message."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(sentences)
        self.sentences = tuple(dict.fromkeys(sentences))

    def __str__(self) -> str:
        return "\n".join(shown(self.sentences))


def sentences(error: InputError) -> tuple[str, ...]:
    """The sentences of an error, one for each thing that is wrong."""
    return error.sentences if isinstance(error, Faults) else (str(error),)


def shown(sentences: Sequence[str]) -> list[str]:
    """The first `MOST` sentences, and how many more there are."""
    more = len(sentences) - MOST
    return [*sentences[:MOST], *([f"and {more:,} more like these"] if more > 0 else [])]


def each(read: Callable[[Thing], Result], things: Iterable[Thing]) -> list[Result]:
    """The results for all things, in order. InputError with the sentences of all those for which one was raised."""
    results, faults = [], list[str]()
    for thing in things:
        try:
            results.append(read(thing))
        except InputError as error:
            faults += sentences(error)
    if len(faults) > 1:
        raise Faults(faults)
    if faults:
        raise InputError(*faults)
    return results


def at_once(*reads: Callable[[], Any]) -> list[Any]:
    """What each function returns. InputError as `each`."""
    return each(lambda read: read(), reads)


class DamagedPicture(InputError):
    """A picture of the user's cannot be decoded."""


class Diverged(InputError):
    """A training produced NaN or infinity. `training` is its name, `at` the round, `what` the values that are not
    finite, `remedy` what the user can change."""

    def __init__(self, training: str, seed: int, at: int, what: str, remedy: str) -> None:
        super().__init__(training, seed, at, what, remedy)  # all, so that it survives the way out of a worker process
        self.training, self.seed, self.round, self.what, self.remedy = training, seed, at, what, remedy

    def __str__(self) -> str:
        return (
            f"{self.training}, seed {self.seed}, diverged in round {self.round}: {self.what} holds NaN or infinity; "
            f"{self.remedy}"
        )


def nearest(name: str, options: Iterable[str]) -> str:
    """The suffix " (did you mean 'fedrand'?)" with the option most like `name`, whatever its case; "" if none is."""
    by_folded = {option.casefold(): option for option in options}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f" (did you mean {by_folded[matches[0]]!r}?)" if matches else ""
