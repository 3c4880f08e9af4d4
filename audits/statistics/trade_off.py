"""Test of a trade-off curve in one run: sharper than the one-run theorem where the mechanism is known.

Each of m canaries was put into training by a fair coin of its own; somebody guesses "in" or "out" for r of them, and c
guesses are right. Let f be a trade-off curve (the smallest rate of false negatives for each rate of false positives in
telling two trainings that differ by one canary; Dong, Roth, Su 2022), and p_i the probability that exactly i guesses
are right. If the training is f-DP with respect to every canary, then for all i

    sum_{j >= i} (j / m) p_j  <=  1 - f( sum_{j >= i - 1} ((r - j) / m) p_j )

so that P[at least c right] = error needs at least a certain probability of every smaller number, and all of these may
not exceed 1. An error for which they do is refuted. r must be fixed before the coins are looked at; the guesses may
depend on each other and on everything released. Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential
Privacy in One Run" (ICML 2025, arXiv 2410.22235), two answers to guess from, with abstentions.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from fedaudit.audits.statistics.guesses import CONFIDENCE, TOLERANCE, check, largest_refuted

# The inverse of a curve f: by rate of true positives the smallest rate of false positives, that is the smallest x for
# which 1 - f(x) is at least that rate
Inverse = Callable[[float], float]
NORMAL = NormalDist()  # on single numbers ten times as fast as scipy's functions on arrays
LEAST = 1e-300  # p-values below it are not told apart


def gaussian(mu: float) -> Inverse:
    """The inverse curve G_mu (false positives by true positives) of a Gaussian mechanism that a record moves by `mu`
    standard deviations."""

    def false_positives(true_positives: float) -> float:
        if true_positives >= 1:
            return 1.0
        return math.erfc((mu - NORMAL.inv_cdf(true_positives)) / math.sqrt(2)) / 2

    return false_positives


class Family(Protocol):
    """A family of mechanisms that differ in one number mu, which grows with the effect of a record on the release."""

    @property
    def words(self) -> str:
        """The mechanism in words, such as "Gaussian"."""

    @property
    def tolerance(self) -> float:
        """Relative tolerance of a bound on mu."""

    def curve(self, mu: float) -> Inverse:
        """The inverse trade-off curve at mu: by rate of true positives, the smallest rate of false positives."""

    def epsilon(self, mu: float, delta: float) -> float:
        """Epsilon at delta of the mechanism at mu."""

    def mu(self, epsilon: float, delta: float) -> float:
        """The mu of the mechanism whose epsilon at delta that is."""


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian mechanisms that a record moves by mu standard deviations; steps without sampling are one
    together."""

    words = "Gaussian"
    tolerance = TOLERANCE

    def curve(self, mu: float) -> Inverse:
        return gaussian(mu)

    def epsilon(self, mu: float, delta: float) -> float:
        """The epsilon at `delta` of a Gaussian mechanism that a record moves by mu standard deviations, by Balle and
        Wang (2018); 0 for a mu of 0. ValueError: not 0 < delta < 1."""
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

        if not 0 < delta < 1:
            raise ValueError(
                f"delta must lie between 0 and 1, not {delta}: without it a Gaussian has no finite epsilon"
            )
        return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0

    def mu(self, epsilon: float, delta: float) -> float:
        from dp_accounting.gaussian_mechanism import get_sigma_gaussian

        return 1 / float(get_sigma_gaussian(epsilon, delta))


GAUSSIAN = Gaussian()


def of_profile(epsilons: Sequence[float], deltas: Sequence[float]) -> Inverse:
    """The inverse curve of a mechanism that is (epsilon, delta)-DP for each of these pairs; epsilons grow from 0.

    The supremum of the pairs' own curves (Dong, Roth, Su 2022, the dual view): by each pair, false positives are at
    least (y - delta) e^-epsilon and 1 - delta - e^epsilon (1 - y). The largest of these lines in y is the curve.
    """
    lines = [(math.exp(-e), -d * math.exp(-e)) for e, d in zip(epsilons, deltas, strict=True)]
    lines += [(math.exp(e), 1 - d - math.exp(e)) for e, d in zip(epsilons, deltas, strict=True)]
    hull = _upper_hull(lines)
    turns = [(one[1] - two[1]) / (two[0] - one[0]) for one, two in itertools.pairwise(hull)]

    def false_positives(true_positives: float) -> float:
        slope, height = hull[bisect.bisect(turns, true_positives)]
        return min(1.0, max(0.0, slope * true_positives + height))

    return false_positives


def _upper_hull(lines: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Upper envelope of lines (slope, intercept): those that are the highest somewhere, by slope."""
    hull: list[tuple[float, float]] = []
    for slope, height in sorted(lines):
        while hull and (slope == hull[-1][0] or (len(hull) > 1 and _hidden(hull[-2], hull[-1], (slope, height)))):
            hull.pop()
        hull.append((slope, height))
    return hull


def _hidden(one: tuple[float, float], middle: tuple[float, float], two: tuple[float, float]) -> bool:
    """Whether the middle one of three lines is nowhere the highest."""
    return (middle[1] - one[1]) * (two[0] - one[0]) <= (two[1] - one[1]) * (middle[0] - one[0])


def refutes(curve: Inverse, *, correct: int, guesses: int, canaries: int, error: float) -> bool:
    """Whether `correct` or more right guesses have a probability below `error` under every mechanism with that curve.

    This is the recursion of the paper's numerical algorithm, with two sums over all j from i on: `right` of (j / m)
    p_j, `wrong` of ((r - j) / m) p_j.
    """
    check(correct, guesses, canaries)
    whole = guesses / canaries  # right + wrong, had all numbers of right guesses been summed
    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        needed = curve(right)
        if needed <= wrong:  # then also for every smaller i
            return False
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > whole:
            return True
    return False


def p_value(curve: Inverse, *, correct: int, guesses: int, canaries: int) -> float:
    """Largest probability that `correct` or more of `guesses` are right under a mechanism with that curve; at least
    LEAST."""
    low, high = math.log(LEAST), 0.0

    def refuted(log_error: float) -> bool:
        return refutes(curve, correct=correct, guesses=guesses, canaries=canaries, error=math.exp(log_error))

    if not refuted(high):
        return 1.0
    if refuted(low):
        return LEAST
    while high - low > 1e-9:  # `high` is always refuted, so that rounding makes p larger
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return math.exp(high)


def mu_lower_bound(
    *, correct: int, guesses: int, canaries: int, confidence: float = CONFIDENCE, family: Family = GAUSSIAN
) -> float:
    """Lower bound on the mu of a mechanism; it exceeds the truth with a probability of at most 1 - confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")

    def refuted(mu: float) -> bool:
        return refutes(family.curve(mu), correct=correct, guesses=guesses, canaries=canaries, error=1 - confidence)

    return largest_refuted(refuted, tolerance=family.tolerance)


def epsilon_lower_bound(
    *,
    correct: int,
    guesses: int,
    canaries: int,
    delta: float,
    confidence: float = CONFIDENCE,
    family: Family = GAUSSIAN,
) -> float:
    """Lower bound on epsilon at `delta` if the mechanism is of that family; 0: nothing can be shown."""
    mu = mu_lower_bound(correct=correct, guesses=guesses, canaries=canaries, confidence=confidence, family=family)
    return family.epsilon(mu, delta)


def ceiling(
    guesses: int, *, canaries: int, delta: float, confidence: float = CONFIDENCE, family: Family = GAUSSIAN
) -> float:
    """The lower bound on epsilon for that family if all guesses are right."""
    counts = {"correct": guesses, "guesses": guesses, "canaries": canaries}
    return epsilon_lower_bound(**counts, delta=delta, confidence=confidence, family=family)
