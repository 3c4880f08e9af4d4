"""Mutual information by nearest neighbours, in nats, with an interval and a permutation null.

`ksg` (Kraskov, Stoegbauer and Grassberger 2004, estimators 1 and 2) for continuous x and y, `ross` (Ross 2014) for
a label and continuous x, `mixed` (Gao, Kannan, Oh and Viswanath 2017) for variables that are neither. Distances are
maximum norms of coordinates scaled to variance 1: mutual information does not change with scale, its estimate does.

Ties: equal values of continuous variables are broken by a jitter of 1e-10 of their spread, drawn from `seed`; it is
independent of everything, so it adds no information. `mixed` counts ties instead of breaking them. Infinite values are
replaced by values just outside the finite ones.

Bias: estimates for independent variables have a mean of 0 and are often below it; they are not cut there. With many
coordinates all of these estimators are far too low if the information is large: `python -m
benchmarks.mutual_information bias`.

Shapes: x, y are [n] or [n, coordinates] numbers without NaN, labels [n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from fedaudit.audits.statistics.arrays import Floats, Ints
from fedaudit.audits.statistics.intervals import quantile
from fedaudit.audits.statistics.neighbours import Engine, counts, counts_within, kth_distance, kth_on_a_line, stretch

BITS = 1 / math.log(2)  # bits per nat
NEIGHBOURS = 3
HALVINGS = 20
DOF = 10  # the variance from so many halvings has 8 to 20 degrees of freedom
_JITTER = 1e-10


@dataclass(frozen=True, kw_only=True)
class Information:
    """An estimate in nats from n points, with its interval; `how` names the method of the interval."""

    value: float
    low: float
    high: float
    n: int
    confidence: float
    how: str


def ksg(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    k: int = NEIGHBOURS,
    estimator: int = 1,
    seed: int = 0,
    engine: Engine | None = None,
) -> float:
    """MI(x; y) in nats of continuous variables by Kraskov's equation (8), `estimator` 1, or (9), `estimator` 2.

    1: psi(k) + psi(n) - <psi(n_x + 1) + psi(n_y + 1)>, points strictly nearer in x (in y) than the k-th neighbour;
    2: psi(k) - 1/k + psi(n) - <psi(n_x) + psi(n_y)>, points in the rectangle of the k neighbours.
    """
    rng = np.random.default_rng(seed)
    a, b = (_without_ties(_scaled(v), rng) for v in _pair(x, y, k))
    if estimator == 1:
        inside = counts(a, b, k, shape="cube", engine=engine)
        return float(digamma(k) + digamma(len(a)) - (digamma(inside.x + 1) + digamma(inside.y + 1)).mean())
    if estimator == 2:
        inside = counts(a, b, k, shape="rectangle", engine=engine)
        return float(digamma(k) - 1 / k + digamma(len(a)) - (digamma(inside.x) + digamma(inside.y)).mean())
    raise ValueError(f"estimator must be 1 or 2, not {estimator}.")


def mixed(x: npt.ArrayLike, y: npt.ArrayLike, *, k: int = NEIGHBOURS, engine: Engine | None = None) -> float:
    """MI(x; y) in nats of variables that may be continuous, discrete, or a mixture of both.

    <psi(k_i) + ln n - psi(n_x + 1) - psi(n_y + 1)>: k_i is k, and n_x, n_y count what is strictly nearer than the k-th
    neighbour; where k others or more are equal to the point, k_i counts these and the point, n_x and n_y what is equal.
    psi(n_x + 1) is the authors' code, with which continuous variables have Kraskov's estimate but for ln n; their
    algorithm 1 prints ln(n_x + 1).
    """
    a, b = (_scaled(v) for v in _pair(x, y, k))
    near, inside = np.full(len(a), k), counts(a, b, k, shape="cube", engine=engine)
    in_x, in_y, tied = inside.x, inside.y, inside.equal >= k
    if tied.any():
        equal = counts(a, b, k, shape="closed cube", engine=engine)
        of_ties = ((equal.equal + 1, near), (equal.x, in_x), (equal.y, in_y))
        near, in_x, in_y = (np.where(tied, count, other) for count, other in of_ties)
    return float((digamma(near) + math.log(len(a)) - digamma(in_x + 1) - digamma(in_y + 1)).mean())


def ross(
    label: npt.ArrayLike, x: npt.ArrayLike, *, k: int = NEIGHBOURS, seed: int = 0, engine: Engine | None = None
) -> float:
    """MI(label; x) in nats of a discrete label and continuous x; 0 if no label has two points.

    psi(n) + <psi(k_i)> - <psi(n_i)> - <psi(m_i)>: n_i points have the label of point i, k_i is k or n_i - 1 where that
    is less, and m_i points, i among them, are strictly nearer than its k_i-th neighbour of its own label. A label that
    only one point has says nothing and is left out with it.
    """
    codes, a = np.unique(np.asarray(label), return_inverse=True)[1], _columns(x)
    if len(codes) != len(a):
        raise ValueError(f"label and x must be of the same points, not of {len(codes)} and {len(a)}.")
    size = np.bincount(codes)[codes]
    codes, a, size = codes[size > 1], a[size > 1], size[size > 1]
    if len(a) == 0:
        return 0.0
    a = _without_ties(_scaled(a), np.random.default_rng(seed))
    near, reach = np.minimum(k, size - 1), np.empty(len(a))
    for code in np.unique(codes):
        rows = codes == code
        reach[rows] = kth_distance(a[rows], int(near[rows][0]), engine=engine)
    inside = counts_within(a, reach, closed=False, engine=engine) + 1
    return float(digamma(len(a)) + (digamma(near) - digamma(size) - digamma(inside)).mean())


def ross_of_coins(members: npt.ArrayLike, x: npt.ArrayLike, *, k: int = NEIGHBOURS, seed: int = 0) -> Floats:
    """MI [P] of every row of `members` [P, n] with the same numbers x [n], equal to `ross` of each row."""
    coins, a = np.asarray(members, dtype=bool), _without_ties(_scaled(_columns(x)), np.random.default_rng(seed))[:, 0]
    order = np.argsort(a, kind="stable")
    at, coins, estimates = a[order], coins[:, order], np.empty(len(coins))
    heads = coins.sum(axis=1)
    for number in np.unique(heads):
        rows = heads == number
        estimates[rows] = _ross_on_a_line(at, coins[rows], int(number), k)
    return estimates


def _ross_on_a_line(at: Floats, coins: npt.NDArray[np.bool_], heads: int, k: int) -> Floats:
    """`ross` [P] of rows of coins [P, n] that all have so many heads, with the sorted numbers `at` [n]."""
    if min(heads, len(at) - heads) < 2:  # without the label of a single point, all labels are equal
        return np.zeros(len(coins))
    total = np.full(len(coins), digamma(len(at)) * len(at))
    for kind, size in ((coins, heads), (~coins, len(at) - heads)):
        x, near = at[np.nonzero(kind)[1].reshape(len(coins), size)], min(k, size - 1)
        first, last = stretch(at, x, kth_on_a_line(x, near), closed=False)
        total += size * (digamma(near) - digamma(size)) - digamma(last - first).sum(axis=1)
    return total / len(at)


def interval(
    estimate: Callable[[Ints], float],
    n: int,
    *,
    stratum: npt.ArrayLike | None = None,
    unit: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Information:
    """The value of `estimate`, a function of indices of points, for all points 0..n-1, with an interval from halves of
    the points.

    The points are split at random into two halves, HALVINGS times. Estimates from n / 2 points vary twice as much as
    those from n (Holmes and Nemenman 2019, Phys. Rev. E 100:022404), so the variance is the mean of (a - b)² / 4 over
    the halvings. Smaller parts underestimate it, and points drawn with replacement are ties, which nearest neighbours
    take for dependence. Each half has its share of every `stratum` [n]. If `unit` [n] is given, `stratum` is ignored,
    and points of one unit, such as the records of a client, stay together. Coverage: `python -m
    benchmarks.mutual_information coverage`.
    """
    rng = np.random.default_rng(seed)
    unit_codes = np.arange(n) if unit is None else np.unique(np.asarray(unit), return_inverse=True)[1]
    kind = np.zeros(n, dtype=np.intp) if stratum is None or unit is not None else np.asarray(stratum)
    dealt = kind if unit is None else np.zeros(unit_codes.max() + 1)
    spread = []
    for _ in range(HALVINGS):
        first = _halved(dealt, rng)[unit_codes]
        spread.append((estimate(np.flatnonzero(first)) - estimate(np.flatnonzero(~first))) ** 2 / 4)
    value, half = estimate(np.arange(n)), quantile(DOF, confidence) * math.sqrt(np.mean(spread))
    how = f"Student's t, {HALVINGS} halvings{'' if unit is None else ' of the clients'}"
    return Information(value=value, low=value - half, high=value + half, n=n, confidence=confidence, how=how)


def permuted(estimate: Callable[[Ints], float], n: int, *, times: int = 200, seed: int = 0) -> Floats:
    """`estimate(order)` [times] for random orders of the points 0..n-1: its null distribution, if it estimates the
    information between x and y[order]."""
    rng = np.random.default_rng(seed)
    return np.array([estimate(rng.permutation(n)) for _ in range(times)])


def _halved(kind: npt.NDArray[np.generic], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Whether each entry [n] is in the first half: every kind [n] is shuffled, then dealt out in turns."""
    first = np.empty(len(kind), dtype=bool)
    first[np.lexsort((rng.random(len(kind)), kind))] = np.arange(len(kind)) % 2 == 0
    return first


def _pair(x: npt.ArrayLike, y: npt.ArrayLike, k: int) -> tuple[Floats, Floats]:
    """x and y as columns [n, coordinates]. ValueError: not of equal lengths, or not 1 <= k < n."""
    a, b = _columns(x), _columns(y)
    if len(a) != len(b):
        raise ValueError(f"x and y must be of the same points, not of {len(a)} and {len(b)}.")
    if not 1 <= k < len(a):
        raise ValueError(f"k must be at least 1 and below the number of points ({len(a)}), not {k}.")
    return a, b


def _columns(x: npt.ArrayLike) -> Floats:
    """x as [n, coordinates], with infinities replaced by numbers just outside the finite ones. ValueError: NaN."""
    a = np.asarray(x, dtype=np.float64)
    a = a.reshape(len(a), -1)
    if np.isnan(a).any():
        raise ValueError("x must hold numbers, and one of them is NaN.")
    if np.isinf(a).any():
        a = a.copy()
        for column in a.T:
            finite = column[np.isfinite(column)]
            least, most = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
            step = (most - least) or 1.0
            column[column == np.inf], column[column == -np.inf] = most + step, least - step
    return a


def _scaled(a: Floats) -> Floats:
    """Coordinates [n, coordinates] scaled to mean 0 and variance 1; constant ones become 0."""
    spread = a.std(axis=0)
    centred: Floats = a - a.mean(axis=0)
    return np.divide(centred, spread, out=np.zeros_like(a), where=spread > 1e-12 * np.abs(a).max(axis=0))


def _without_ties(a: Floats, rng: np.random.Generator) -> Floats:
    """The points with a jitter if any coordinate has equal values."""
    if all(len(np.unique(column)) == len(column) for column in a.T):
        return a
    return a + _JITTER * rng.normal(size=a.shape)
