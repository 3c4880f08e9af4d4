"""Guesses about canaries: how many are made, about which, and the search that every bound from them has in common.

A bound counts the right guesses among a number that was fixed before the coins were looked at. Here that is a fifth of
the canaries: half of them "in", about those that look most like members, half "out", about those that look least so.
The other canaries are not guessed about, but all count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

CONFIDENCE = 0.95  # of a bound
SHARE = 5  # one of so many canaries is guessed about
HALVINGS = 60  # of the interval that holds a bound, at most
TOLERANCE = 1e-9  # of a bound, relative


def number_of_guesses(canaries: int) -> int:
    """About how many of so many canaries a guess is made: a fifth, rounded up."""
    return -(-canaries // SHARE)


def right_guesses(scores: NDArray[np.float64], coins: NDArray[np.bool_], model: NDArray[np.str_]) -> int:
    """How many of `number_of_guesses` guesses are right.

    `scores` [m] are high where a canary looks like a member, NaN where nothing can be said of it; `coins` [m] say which
    were inserted; `model` [m] is what scored it: scores of different models are compared by their rank within the
    model. Canaries without a score stand in the middle, and those that look alike are taken in their order.
    """
    place = np.zeros(len(scores))
    for name in np.unique(model):
        own = np.flatnonzero((model == name) & ~np.isnan(scores))
        place[own] = (rankdata(scores[own]) - (len(own) + 1) / 2) / max(1, len(own))
    order, r = np.argsort(place, kind="stable"), number_of_guesses(len(scores))
    said_out, said_in = order[: r // 2], order[len(order) - (r - r // 2) :]
    return int(coins[said_in].sum() + (~coins[said_out]).sum())


def check(correct: int, guesses: int, canaries: int) -> None:
    """ValueError unless so many guesses about so many canaries can be right."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"correct <= guesses <= canaries must hold from 0 on, not {correct}, {guesses}, {canaries}")


def largest_refuted(refuted: Callable[[float], bool], *, tolerance: float = TOLERANCE) -> float:
    """The largest number that is refuted, if every smaller one is too; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):  # `low` is refuted all along: the side on which rounding is safe
        if high - low <= tolerance * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
