"""Several things that are wrong at once, such as all damaged files of a folder: a sentence for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fedaudit.machinery.errors import InputError

MOST = 100  # sentences of one message
Thing = TypeVar("Thing")
Result = TypeVar("Result")


class Faults(InputError):
    """Several things are wrong, each with a sentence of its own: a line of the message."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(sentences)
        self.sentences = tuple(dict.fromkeys(sentences))

    def __str__(self) -> str:
        return "\n".join(first_of(self.sentences))


def sentences(error: InputError) -> tuple[str, ...]:
    """The sentences of an error, one for each thing that is wrong."""
    return error.sentences if isinstance(error, Faults) else (str(error),)


def first_of(sentences: Sequence[str]) -> list[str]:
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
    refuse(faults)
    return results


def refuse(faults: Sequence[str]) -> None:
    """Raise InputError if there are faults: a sentence for each."""
    if len(faults) > 1:
        raise Faults(faults)
    if faults:
        raise InputError(*faults)


def at_once(*reads: Callable[[], Any]) -> list[Any]:
    """Call several functions and return their results, in order. InputError as `each`."""
    return each(lambda read: read(), reads)


class DamagedPicture(InputError):
    """A picture of the user's cannot be decoded."""
