"""One-run theorem: a lower bound on the epsilon of one training from the number of canaries that were guessed right.

Each of m canaries was put into training by a fair coin of its own. Somebody who sees what the training released guesses
"in" or "out" for r of them and is right v times. If the release is (epsilon, delta)-DP with respect to one canary, then
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
from scipy.special import bdtr, expit

from fedaudit.audits.statistics import trade_off
from fedaudit.audits.statistics.guesses import CONFIDENCE, check, largest_refuted, number_of_guesses

SHOWN = 0.5  # the epsilon of `canary_table`'s column `needed`


def p_value(*, correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Largest probability that `correct` or more of `guesses` are right if the training is (epsilon, delta)-DP."""
    check(correct, guesses, canaries)
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"epsilon must be at least 0 and delta lie between 0 and 1, not {epsilon} and {delta}")
    wrong, mistake = guesses - correct, expit(-epsilon)  # mistakes, since their probability keeps its digits
    at_most = bdtr(np.arange(wrong, guesses + 1), guesses, mistake)  # f(v - i), i = 0 .. v
    beta = at_most[0]
    alpha = np.max((at_most[1:] - beta) / np.arange(1, correct + 1), initial=0.0)
    return min(1.0, float(beta + 2 * canaries * delta * alpha))


def epsilon_lower_bound(
    *, correct: int, guesses: int, canaries: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Lower bound on epsilon at `delta`, 0 without one; it exceeds the truth with probability <= 1 - confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")

    def refuted(epsilon: float) -> bool:
        p = p_value(correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
        return p <= 1 - confidence

    return largest_refuted(refuted)


def ceiling(guesses: int, *, canaries: int | None = None, delta: float, confidence: float = CONFIDENCE) -> float:
    """The lower bound on epsilon if all guesses are right; `canaries` None: as many as guesses."""
    number = guesses if canaries is None else canaries
    return epsilon_lower_bound(correct=guesses, guesses=guesses, canaries=number, delta=delta, confidence=confidence)


def needed_accuracy(canaries: int, *, epsilon: float, delta: float, confidence: float = CONFIDENCE) -> float:
    """Smallest share of right guesses, about all canaries, that shows that epsilon is at least `epsilon`; inf: not even
    a perfect attack does."""

    def shows(correct: int) -> bool:
        p = p_value(correct=correct, guesses=canaries, canaries=canaries, epsilon=epsilon, delta=delta)
        return p <= 1 - confidence

    least = bisect.bisect_left(range(canaries + 1), True, key=shows)
    return least / canaries if least <= canaries else math.inf


def canary_table(kind: str, coins: Sequence[bool], *, delta: float) -> pd.DataFrame:
    """One row about canaries, `coins` saying which were inserted: `kind` (as given), `inserted`, `left_out`, their
    `number`, `delta`; `ceiling` and `gaussian_ceiling`, the largest epsilon that a perfect attack on all could show for
    any mechanism and for a Gaussian one (NaN for a delta of 0); `guesses`, how many an attack makes; and `needed`, the
    share of right guesses about all that shows epsilon SHOWN (inf: none does)."""
    n, inserted = len(coins), int(sum(coins))
    row = {"kind": kind, "inserted": inserted, "left_out": n - inserted, "number": n, "delta": delta}
    gaussian = trade_off.ceiling(n, canaries=n, delta=delta) if delta else math.nan
    ceilings = {
        "ceiling": ceiling(n, delta=delta),
        "gaussian_ceiling": gaussian,
        "guesses": number_of_guesses(n),
        "needed": needed_accuracy(n, epsilon=SHOWN, delta=delta),
    }
    return pd.DataFrame([row | ceilings])
