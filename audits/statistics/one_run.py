"""One-run theorem: from how many canaries of one training were guessed right, a lower bound on its epsilon.

Each of m canaries was put into training by a fair coin of its own. Somebody who sees what the training released says
"in" or "out" of r of them and is right v times. If the release is (epsilon, delta)-DP with respect to one canary, then
P[at least v right] is at most

    f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v]

An epsilon for which that is at most 1 - confidence is refuted. r must be fixed before the coins are looked at; the
guesses may depend on each other and on everything released. Source: Steinke, Nasr and Jagielski, "Privacy Auditing with
One (1) Training Run" (NeurIPS 2023), theorem 5.2.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import binom

SHOWN = 0.5  # an epsilon that canaries should be able to show
HALVINGS = 60  # of the interval that holds the bound


def p_value(*, correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Largest probability that `correct` or more of `guesses` are right if the training is (epsilon, delta)-DP."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"correct <= guesses <= canaries must hold from 0 on, not {correct}, {guesses}, {canaries}")
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"epsilon must be at least 0 and delta lie between 0 and 1, not {epsilon} and {delta}")
    wrong, mistake = guesses - correct, expit(-epsilon)  # counted in mistakes, whose probability keeps its digits
    beta = binom.cdf(wrong, guesses, mistake)  # f(v)
    more = np.cumsum(binom.pmf(np.arange(wrong + 1, guesses + 1), guesses, mistake))  # f(v - i) - f(v), i = 1 .. v
    alpha = np.max(more / np.arange(1, correct + 1), initial=0.0)
    return min(1.0, float(beta + 2 * canaries * delta * alpha))


def epsilon_lower_bound(*, correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on epsilon at `delta`, which exceeds the truth with probability 1 - confidence at most; 0 if nothing
    can be shown."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")

    def refuted(epsilon: float) -> bool:
        p = p_value(correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
        return p <= 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):  # `low` is refuted all along: the side on which rounding is safe
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def ceiling(canaries: int, *, delta: float, confidence: float = 0.95) -> float:
    """What an attack that is right about every canary would show."""
    return epsilon_lower_bound(
        correct=canaries, guesses=canaries, canaries=canaries, delta=delta, confidence=confidence
    )


def needed_accuracy(canaries: int, *, epsilon: float, delta: float, confidence: float = 0.95) -> float:
    """Smallest share of right guesses about all canaries that shows `epsilon`; inf if not even a perfect attack
    does."""

    def shows(correct: int) -> bool:
        p = p_value(correct=correct, guesses=canaries, canaries=canaries, epsilon=epsilon, delta=delta)
        return p <= 1 - confidence

    least = bisect.bisect_left(range(canaries + 1), True, key=shows)
    return least / canaries if least <= canaries else math.inf


def canary_table(kind: str, coins: Sequence[bool], *, delta: float) -> pd.DataFrame:
    """How many canaries were inserted (`coins`: which), the largest epsilon that a perfect attack on them all could
    show, and the share of right guesses that epsilon `SHOWN` needs."""
    n, inserted = len(coins), int(sum(coins))
    row = {"kind": kind, "inserted": inserted, "left_out": n - inserted, "number": n, "delta": delta}
    about = {"ceiling": ceiling(n, delta=delta), "needed": needed_accuracy(n, epsilon=SHOWN, delta=delta)}
    return pd.DataFrame([row | about])
