"""Guesses about canaries: their number, their choice, and the search for the bound that follows from them.

A bound counts the right guesses among a number that was fixed before the coins were looked at. Here that is a fifth of
the canaries: half of the guesses are "in", for the canaries that look most like members, half "out", for those that
look least so. No guess is made about the others, but they count in the bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

CONFIDENCE = 0.95  # of a bound
SHARE = 5  # one guess for so many canaries
HALVINGS = 60  # largest number of steps of the bisection for a bound
TOLERANCE = 1e-9  # relative, of a bound


def number_of_guesses(canaries: int) -> int:
    """The number of guesses about so many canaries: a fifth, rounded up."""
    return -(-canaries // SHARE)


def right_guesses(scores: NDArray[np.float64], coins: NDArray[np.bool_], model: NDArray[np.str_]) -> int:
    """The number of right guesses among `number_of_guesses`: half are "in", for the highest scores, half "out", the
    lowest.

    `scores` [m] are higher for canaries that look like members, NaN without a score; `coins` [m]: whether each was
    inserted; `model` [m]: the name of the model that scored it. Scores of different models are compared by their rank
    within the model. Canaries without a score are in the middle, and equal ranks keep the order of the canaries.
    """
    rank = np.zeros(len(scores))
    for name in np.unique(model):
        rows = np.flatnonzero((model == name) & ~np.isnan(scores))
        rank[rows] = (rankdata(scores[rows]) - (len(rows) + 1) / 2) / max(1, len(rows))
    order, r = np.argsort(rank, kind="stable"), number_of_guesses(len(scores))
    guessed_out, guessed_in = order[: r // 2], order[len(order) - (r - r // 2) :]
    return int(coins[guessed_in].sum() + (~coins[guessed_out]).sum())


def check(correct: int, guesses: int, canaries: int) -> None:
    """Raise ValueError unless 0 <= correct <= guesses <= canaries."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"correct <= guesses <= canaries must hold from 0 on, not {correct}, {guesses}, {canaries}")


def largest_refuted(refuted: Callable[[float], bool], *, tolerance: float = TOLERANCE) -> float:
    """The largest number of which `refuted` is true, if it is true of every smaller one; 0 if of none. Too small by a
    share of `tolerance` at most. Large numbers must not be refuted: the search would not end."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):  # `low` is always refuted, so that rounding makes the bound smaller
        if high - low <= tolerance * low:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
