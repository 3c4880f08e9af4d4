"""Differences of two rates on the same records, and the p-value of any difference by its interval.

Differences of AUROCs on the same records are in `audits.statistics.ranking` and `stratified` (DeLong's paired test,
clustered by client).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedaudit.audits.statistics.arrays import Floats, Labels
from fedaudit.audits.statistics.intervals import check_confidence, quantile
from fedaudit.audits.statistics.placements import clustered_error, codes_of

LEAST = 1e-12  # smaller p-values are not told apart


@dataclass(frozen=True)
class Student:
    """A difference between -1 and 1 with its intervals: Student's about `middle`, or normal ones if `dof` is None."""

    value: float
    middle: float
    se: float
    dof: float | None

    def ends(self, confidence: float) -> tuple[float, float]:
        """(Low, high) of the interval."""
        check_confidence(confidence)
        reach = quantile(self.dof, confidence) * self.se
        return max(-1.0, self.middle - reach), min(1.0, self.middle + reach)


def rate_difference(a: npt.ArrayLike, b: npt.ArrayLike, unit: Labels) -> Student:
    """The share of records of which `a` [n] is true less the share of which `b` [n] is; shares of a record, between 0
    and 1, count as such.

    Records of one `unit` [n] (a client) may be correlated. Bonett and Price's (2012, J. Educ. Behav. Stat. 37:479)
    adjusted interval of paired proportions: one record that only `a` has and one that only `b` has are added, as units
    of their own, so that few differing records, or none, still have an interval. The error is that of a mean over
    units, with Student's quantile. ValueError: lengths differ, or there is no record.
    """
    differ = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if not len(differ) or len(differ) != len(unit):
        raise ValueError(f"a, b and unit must be of one length, at least 1, got {len(differ)} and {len(unit)}.")
    codes = codes_of(unit)
    padded = np.concatenate([differ, [1.0, -1.0]])
    units = np.concatenate([codes, codes.max() + np.array([1, 2])])
    nothing: Floats = np.zeros_like(padded)
    se, dof = clustered_error(padded, nothing, units, units)
    return Student(float(differ.mean()), float(padded.mean()), se, dof)


def p_by_interval(at: Callable[[float], tuple[float, float]]) -> float:
    """The two-sided p-value of a difference being 0: the smallest 1 - confidence at which the interval
    `at(confidence)`, (low, high), does not hold 0; 1 if every interval does, `LEAST` if none."""

    def clear(log_level: float) -> float:
        low, high = at(1 - float(np.exp(log_level)))
        return max(low, -high)

    narrowest, widest = np.log(1 - LEAST), np.log(LEAST)
    if clear(narrowest) <= 0:
        return 1.0
    if clear(widest) > 0:
        return LEAST
    return float(np.exp(brentq(clear, widest, narrowest, xtol=1e-6)))
