"""Reads as much of a long list as there is time for."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Thing = TypeVar("Thing")


@dataclass
class Sample:
    """Chooses what is read of lists in `seconds` each: at least one thing, and any number of them is spread over all.
    `of` and `read` count what there was, and what was chosen."""

    seconds: float = math.inf
    of: int = 0
    read: int = 0

    @property
    def partial(self) -> bool:
        """Whether not all was read."""
        return self.read < self.of

    def __call__(self, things: Sequence[Thing]) -> Iterator[Thing]:
        """Yield the chosen things; all of them in their order if the time is not limited."""
        self.of += len(things)
        until = time.monotonic() + self.seconds
        order = range(len(things)) if self.seconds == math.inf else _spread(len(things))
        for i in order:
            yield things[i]
            self.read += 1
            if time.monotonic() > until:
                return


def _spread(n: int) -> list[int]:
    """0 to n - 1 by their reversed bits: 0, the middle, the quarters and so on."""
    bits = max(n - 1, 1).bit_length()
    return sorted(range(n), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
