"""Confidence intervals and p-values of AUROCs, rates and their differences, from an estimate and its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy import special

from fedaudit.audits.statistics.arrays import Floats, Ints

CONSTANT = "constant score"  # how the interval of one was made, which is the point 0.5
ZERO = 1e-10  # a smaller standard error is rounding


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval; `dof` is None when records, not clients, were the units."""

    value: float
    low: float
    high: float
    members: int
    nonmembers: int
    clients: int
    confidence: float = 0.95
    how: str
    se: float
    dof: float | None  # effective degrees of freedom where clients differ in size
    pairs: int | None = None  # number of disjoint pairs, where a record is compared with some of the others only

    @property
    def units(self) -> float:
        """Number of independent comparisons of a member with a non-member: one per client or, where records are the
        units, per pair of records. Exact binomial intervals take it for the number of trials."""
        if self.dof is not None:
            return self.dof + 1
        return min(self.members, self.nonmembers) if self.pairs is None else self.pairs

    def at(self, confidence: float, *, lowest: float = 0.0) -> tuple[float, float]:
        """Low and high at another confidence, of an interval of `wald_interval` or `point_interval`."""
        if self.se > 0.0:
            reach = quantile(self.dof, confidence) * self.se
            return max(lowest, self.value - reach), min(1.0, self.value + reach)
        if self.low == self.high:
            return self.low, self.high
        return clopper_pearson(self.value * self.units, self.units, confidence)


class Basis(TypedDict):
    """The numbers of records and clients, and the confidence, that an `Interval` repeats."""

    members: int
    nonmembers: int
    clients: int
    confidence: float


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless 0 < confidence < 1."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}.")


def quantile(dof: float | None, confidence: float) -> float:
    """Two-sided quantile: half the interval is this many standard errors. Student's t, or normal if `dof` is None."""
    p = (1 + confidence) / 2
    return float(special.ndtri(p) if dof is None else special.stdtrit(dof, p))


def mean_with_error(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean of independent values, its standard error and degrees of freedom."""
    se = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), (se if se > ZERO else 0.0), len(values) - 1


def wald_interval(
    value: float, se: float, dof: float | None, basis: Basis, how: str, *, lowest: float = 0.0, pairs: int | None = None
) -> Interval:
    """The Wald interval, value +- quantile * se, clipped to [lowest, 1]; the exact binomial one where `se` is zero. The
    quantile is Student's with `dof` degrees of freedom, or normal for None."""
    law = "normal" if dof is None else f"t({dof:.3g})"
    wald = Interval(
        value=value,
        low=0.0,
        high=1.0,
        how=f"{how}, {law}",
        se=se,
        dof=dof,
        pairs=pairs,
        **basis,
    )
    low, high = wald.at(wald.confidence, lowest=lowest)
    return replace(wald, low=low, high=high, how=wald.how if se > 0.0 else f"exact binomial({wald.units:.3g})")


def point_interval(value: float, basis: Basis, how: str, pairs: int | None = None) -> Interval:
    """An interval of length zero: [value, value], for values that follow from the scores alone, whoever is a member."""
    return Interval(value=value, low=value, high=value, how=how, se=0.0, dof=None, pairs=pairs, **basis)


def square_and_add(a: Interval, b: Interval) -> Interval:
    """Interval of a - b from those of a and b (Zou and Donner 2008); conservative if they correlate positively. The
    result's numbers of records are those of `a`, its `se` is 0."""
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return replace(a, value=value, low=low, high=high, how="square-and-add", se=0.0)


def cross_fitted(interval: Interval, folds: int, *, control: Interval | None = None) -> Interval:
    """`interval` widened for cross-fitted scores, whose folds depend on each other; unchanged if its standard error is
    0.

    Nadeau and Bengio (2003, Machine Learning 52:239): the variance is 1 + k / (k - 1) times the one of independent
    folds. If the interval is of a difference between an attack and such a classifier, `control` is the classifier's own
    interval, and only its part of the variance grows.
    """
    if interval.se == 0.0:
        return interval
    more = folds / (folds - 1) * (interval if control is None else control).se ** 2
    se = math.sqrt(interval.se**2 + more)
    reach = quantile(interval.dof, interval.confidence) * se
    lowest = 0.0 if control is None else -1.0
    low, high = max(lowest, interval.value - reach), min(1.0, interval.value + reach)
    return replace(interval, low=low, high=high, se=se, how=f"{interval.how}, cross-fitted")


def clopper_pearson(k: float, n: float, confidence: float) -> tuple[float, float]:
    """(Low, high) of the exact binomial interval of a rate, for k of n successes (Clopper and Pearson 1934); neither
    needs to be an integer."""
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return low, high


def proportion(hits: Floats, codes: Ints, confidence: float) -> tuple[float, float, float]:
    """(Mean, low, high) of `hits` [n] in [0, 1] of clients `codes` [n] (Korn, Graubard 1998, Surv. Meth. 24:193).

    Clopper-Pearson at the effective sample size p (1 - p) / variance, the variance being that of the ratio estimator
    over clients, corrected for its degrees of freedom. At a rate of 2 %, 12 clients of 25 records and a correlation of
    0.05 it covers 98 times of 100, the plain t interval 86 times. One client or no variance: n as it is.
    """
    p, n, clients = float(hits.mean()), len(hits), len(np.unique(codes))
    residual = np.bincount(codes, hits - p) / n
    variance = float(residual @ residual) * clients / (clients - 1) if clients > 1 else 0.0
    effective = float(n)
    if variance > ZERO**2:
        correction = quantile(n - 1, confidence) / quantile(clients - 1, confidence)
        effective = min(n, p * (1 - p) / variance * correction**2)
    return p, *clopper_pearson(p * effective, effective, confidence)


def auroc_p_value(interval: Interval) -> float:
    """Two-sided p-value of the hypothesis that an AUROC (or balanced accuracy) is 0.5, by the law that its interval
    comes from."""
    if interval.se > 0:
        t = -abs(interval.value - 0.5) / interval.se
        return float(2 * (special.ndtr(t) if interval.dof is None else special.stdtr(interval.dof, t)))
    n, k = interval.units, interval.value * interval.units
    at_least = special.betainc(k, n - k + 1, 0.5) if k > 0 else 1.0
    at_most = special.betainc(n - k, k + 1, 0.5) if k < n else 1.0
    return float(min(1.0, 2 * min(at_least, at_most)))


def detectable(members: int, nonmembers: int, clients: int = 1, *, confidence: float = 0.95) -> float:
    """The smallest AUROC whose interval would exclude 0.5 with so many records, at most 1.

    0.5 + quantile · sqrt((m + n + 1) / (12 m n)), the null variance of the rank-sum statistic (Mann and Whitney 1947).
    The quantile is Student's with clients - 1 degrees of freedom, or normal for fewer than two clients.
    """
    if members < 1 or nonmembers < 1:
        raise ValueError(f"members and nonmembers must be at least 1, got {members} and {nonmembers}.")
    check_confidence(confidence)
    se = math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers))
    return min(1.0, 0.5 + quantile(clients - 1 if clients > 1 else None, confidence) * se)


def holm(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values [n] in input order (Holm 1979, Scand. J. Statist. 6:65): they bound the family-wise error."""
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values must lie in [0, 1], got {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted
