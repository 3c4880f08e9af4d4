"""What the user gave is wrong: one sentence says what, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OUTSIDE_KEYS = "says what is wrong; where something is, there is no number"


class InputError(ValueError):
    """Its message is one sentence that names the flag or file, the value and what is valid.

    The command prints it and exits with 2.
    """


class Diverged(InputError):
    """A training left the finite numbers: which one, where it was seen, and what to change."""

    def __init__(self, training: str, seed: int, at: int, what: str, remedy: str) -> None:
        super().__init__(training, seed, at, what, remedy)  # all, so that it survives the way out of a worker process
        self.training, self.seed, self.round, self.what, self.remedy = training, seed, at, what, remedy

    def __str__(self) -> str:
        return (
            f"{self.training}, seed {self.seed}, diverged in round {self.round}: {self.what} holds NaN or infinity; "
            f"{self.remedy}"
        )


def nearest(name: str, options: Iterable[str]) -> str:
    """The suffix " (did you mean 'fedrand'?)" for the option nearest to `name` in any case; empty if none is near."""
    known = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(name.casefold(), known, n=1)
    return f" (did you mean {known[found[0]]!r}?)" if found else ""
