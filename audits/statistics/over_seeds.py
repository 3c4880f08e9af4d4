"""Mean of a number over several trainings, with an interval that covers other trainings and other records.

Trainings that share their records and coins have two errors: Student's interval of the mean over trainings (s^2 / S,
S - 1 degrees of freedom) and the interval over records, which they share, are joined by square-and-add (Zou and Donner
2008). It covers 95 to 99 % at a confidence of 95 %, whichever of the two is larger; Satterthwaite's degrees of freedom,
estimated from so few trainings, cover 88 % with two seeds and 93 % with three (`benchmarks.curves`). The spread of
trainings on data of their own has both errors: Student's interval alone, and no less than records alone would give. The
two ends of an interval are computed separately, since intervals need not be symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from fedaudit.audits.statistics.intervals import quantile


@dataclass(frozen=True)
class OfTraining:
    """A number of one training with its interval over records; `data` is a key of the training's records and coins."""

    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    data: Hashable = None

    @property
    def errors(self) -> tuple[float, float]:
        """Standard errors (below, above) of the number: those of normal intervals that end at `low` and at `high`; 0
        without an interval."""
        if self.low is None or self.high is None:
            return 0.0, 0.0
        z = quantile(None, self.confidence)
        return (self.value - self.low) / z, (self.high - self.value) / z


@dataclass(frozen=True)
class OverSeeds:
    """A mean over trainings with its interval and standard error; None and 0 for one training without an interval."""

    value: float
    low: float | None
    high: float | None
    se: float
    seeds: int


def over_seeds(
    trainings: Sequence[OfTraining], *, confidence: float, least: float = -math.inf, most: float = math.inf
) -> OverSeeds:
    """The mean over trainings (if there are several data sets, over the data sets' means), with its interval cut at
    `least` and `most`, and its standard error."""
    data = list(dict.fromkeys(one.data for one in trainings))
    groups = [mean(one.value for one in trainings if one.data == name) for name in data]
    middle = mean(groups)
    if len(trainings) == 1 and trainings[0].low is None:
        return OverSeeds(middle, None, None, 0.0, 1)
    several = len(data) > 1
    between, reach = _student(groups if several else [one.value for one in trainings], confidence)
    ends, variances = [], []
    for errors in zip(*(one.errors for one in trainings), strict=True):
        by_records = mean(e**2 for e in errors) / len(data)
        record_reach = quantile(None, confidence) * math.sqrt(by_records)
        ends.append(max(reach, record_reach) if several else math.hypot(reach, record_reach))
        variances.append(max(between, by_records) if several else between + by_records)
    low, high = max(least, middle - ends[0]), min(most, middle + ends[1])
    return OverSeeds(middle, low, high, math.sqrt(mean(variances)), len(trainings))


def _student(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Variance of the mean of independent values, and half the width of the mean's interval; both 0 for a single
    value."""
    n = len(values)
    if n < 2:
        return 0.0, 0.0
    between = float(np.var(values, ddof=1)) / n
    return between, quantile(n - 1, confidence) * math.sqrt(between)
