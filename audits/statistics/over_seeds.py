"""A number of several trainings: its mean, with an interval that speaks of other trainings and of other records.

Trainings that share their records and coins err by both: Student's interval of the mean over them (s^2 / S, S - 1
degrees of freedom) and that by records, which is theirs together, are joined by square-and-add (Zou and Donner 2008).
It covers 95 to 99 % where 95 are asked for, whichever of the two is larger; Satterthwaite's degrees of freedom, which
are estimated from as few trainings, cover 88 % with two seeds and 93 % with three (`benchmarks.curves`). Trainings each
on data of their own have both in their spread: Student's interval alone, and no less than records alone would give. The
two ends of an interval are made one by one, as they need not lie alike.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.special import ndtri, stdtrit


@dataclass(frozen=True)
class OfTraining:
    """A number of one training with its interval over records; `data` says which records and coins."""

    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    data: Hashable = None

    @property
    def errors(self) -> tuple[float, float]:
        """Standard errors by records, below and above: those of the normal interval that is as wide; 0 without one."""
        if self.low is None or self.high is None:
            return 0.0, 0.0
        z = _normal(self.confidence)
        return (self.value - self.low) / z, (self.high - self.value) / z


@dataclass(frozen=True)
class OverSeeds:
    """A mean with its interval and standard error; None for the ends, and an error of 0, where nothing tells them."""

    value: float
    low: float | None
    high: float | None
    se: float
    seeds: int


def over_seeds(
    found: Sequence[OfTraining], *, confidence: float, least: float = -math.inf, most: float = math.inf
) -> OverSeeds:
    """The mean of at least one training (of several data sets, of their means); its interval is cut at `least` and
    `most`."""
    data = list(dict.fromkeys(f.data for f in found))
    groups = [mean(f.value for f in found if f.data == one) for one in data]
    middle = mean(groups)
    if len(found) == 1 and found[0].low is None:
        return OverSeeds(middle, None, None, 0.0, 1)
    several = len(data) > 1
    between, reach = _student(groups if several else [f.value for f in found], confidence)
    ends, variances = [], []
    for errors in zip(*(f.errors for f in found), strict=True):
        by_records = mean(e**2 for e in errors) / len(data)
        own = _normal(confidence) * math.sqrt(by_records)
        ends.append(max(reach, own) if several else math.hypot(reach, own))
        variances.append(max(between, by_records) if several else between + by_records)
    low, high = max(least, middle - ends[0]), min(most, middle + ends[1])
    return OverSeeds(middle, low, high, math.sqrt(mean(variances)), len(found))


def _student(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Variance of the mean of independent values, and half its interval; 0 for a single one."""
    n = len(values)
    if n < 2:
        return 0.0, 0.0
    between = float(np.var(values, ddof=1)) / n
    return between, float(stdtrit(n - 1, (1 + confidence) / 2)) * math.sqrt(between)


def _normal(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))
