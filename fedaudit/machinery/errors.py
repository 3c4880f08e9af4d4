"""Errors that the user can mend. Each message is one sentence: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OUTSIDE_KEYS = "says what is wrong; where something is, there is no number"


class InputError(ValueError):
    """The user's input is wrong: the message names the flag or file, the value, and what is valid. The command prints
    the message and exits with code 2."""


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
