"""Ranking metrics of few clients with a model each: clients are strata, records the units.

Intervals over clients need several of them; where two are attacked there is nothing to take a spread from. Given the
models, however, a fair coin per record made members and non-members independent of each other: every client gives a
variance of its own, and these add up. Such an interval is about the trainings that were attacked, not about further
clients. Arguments and sign rule as in `audits.statistics.ranking`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from audits.statistics.ranking import (
    _ZERO,
    Bools,
    Floats,
    Interval,
    Ints,
    Labels,
    _About,
    _about,
    _bootstrap_weights,
    _certain,
    _checked,
    _clopper_pearson,
    _codes,
    _interval,
    _ranks,
    _square_and_add,
    _tprs_on,
    _with_both,
)


def comparable(member: npt.ArrayLike, client: Labels, within: Labels | None = None) -> Bools:
    """The records [n] that `stratified_auroc` compares: those whose client (and label `within` it) has both kinds, of
    clients that have two members and two non-members such, without which there is no variance. All False: nothing can
    be measured."""
    codes = _codes(client)
    return _comparable(np.asarray(member, dtype=bool), codes, _cells(codes, within))


def stratified_auroc(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    within: Labels | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Mean over clients of each one's AUROC under its own model, the records being the units: their number may be
    small.

    Given the models, a fair coin per record made members and non-members independent: the variance is the sum of the
    clients' DeLong variances over K², the quantile normal; one client is plain DeLong. `within` [n] compares only
    records of a client that share that label. A client's AUROC is then the share of *such pairs* that are ranked
    rightly, ties one half, so a label weighs as its pairs do: AUROC = sum_k m_k n_k AUROC_k / sum_k m_k n_k, and the
    variance is that of the placements about it, for labels of any size. Records that have nothing to compare with are
    left out (`comparable`). Degenerate cases as in `auroc`.
    """
    s, m, codes, cell = _strata(scores, member, client, within, confidence)
    about, pairs = _about(m, codes, confidence), _pairs(m, cell)
    x, y = _placements_within(s, m, cell)
    if (x == 0.5).all() and (y == 0.5).all():
        return replace(_certain(0.5, about, "constant score"), pairs=pairs)
    value, se = _stratified_mean(x, y, m, codes, cell)
    return _interval(value, se, None, about, _stratified_how("DeLong", about, within), pairs=pairs)


def stratified_auroc_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    within: Labels | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Difference of the stratified AUROCs of two scores of the same records; degenerate cases as in
    `auroc_difference`."""
    sa, m, codes, cell = _strata(a, member, client, within, confidence)
    sb = _strata(b, member, client, within, confidence)[0]
    about, pairs = _about(m, codes, confidence), _pairs(m, cell)
    if all(np.array_equal(_ranks(sa[cell == c]), _ranks(sb[cell == c])) for c in range(int(cell.max()) + 1)):
        return replace(_certain(0.0, about, "identical rankings"), pairs=pairs)
    (xa, ya), (xb, yb) = _placements_within(sa, m, cell), _placements_within(sb, m, cell)
    value, se = _stratified_mean(xa - xb, ya - yb, m, codes, cell)
    if se == 0.0:
        both = (stratified_auroc(s, member, client, within=within, confidence=confidence) for s in (a, b))
        return _square_and_add(*both)
    how = _stratified_how("paired DeLong", about, within)
    return _interval(value, se, None, about, how, lowest=-1.0, pairs=pairs)


def accuracy_at(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    thresholds: Mapping[Any, float],
    *,
    confidence: float = 0.95,
) -> Interval:
    """Mean over clients of (TPR + TNR) / 2 at each one's threshold, which was fixed before these records were looked
    at.

    A score above the threshold is called a member. Every rate of every client is a binomial proportion: Clopper and
    Pearson's intervals of all of them are joined by square-and-add (Zou and Donner 2008). Clients without both kinds
    are left out.
    """
    s, m, codes, labels = _checked(scores, member, client, confidence)
    own = _with_both(m, codes, at_least=1)
    if missing := [labels[c] for c in own if labels[c] not in thresholds]:
        raise ValueError(f"thresholds must hold one of every client, there is none of {missing[0]!r}.")
    kept = np.isin(codes, own)
    right = (s > np.array([thresholds.get(label, math.nan) for label in labels])[codes]) == m
    rates = [right[(codes == c) & kind] for c in own for kind in (m, ~m)]
    p = np.array([rate.mean() for rate in rates])
    n = np.array([len(rate) for rate in rates])
    low, high = np.array([_clopper_pearson(k, size, confidence) for k, size in zip(p * n, n, strict=True)]).T
    down, up, se = (float(np.linalg.norm(reach)) / len(p) for reach in (p - low, high - p, np.sqrt(p * (1 - p) / n)))
    value = float(p.mean())
    about = _about(m[kept], codes[kept], confidence)
    how = "exact binomial of each rate, square-and-add"
    return Interval(value=value, low=value - down, high=value + up, how=how, se=se, dof=None, **about)


def client_roc_band(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    fpr_grid: npt.ArrayLike,
    resamples: int = 100,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[Floats, Floats, Floats]:
    """Mean over clients of their own curves (see `roc_band`), and its band: a bootstrap over the records within client
    and kind."""
    s, m, codes, _ = _checked(scores, member, client, confidence)
    grid, rng = np.asarray(fpr_grid, dtype=float), np.random.default_rng(seed)
    curves, drawn = [], []
    for c in _with_both(m, codes, at_least=1):
        values, kind = _ranks(s[codes == c]), m[codes == c]
        weights = _bootstrap_weights(kind, np.zeros(len(kind), dtype=np.intp), resamples, rng)
        plain, *resampled = _tprs_on(grid, values, kind, [np.ones(len(kind)), *weights])
        curves.append(plain)
        drawn.append(resampled)
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return np.mean(curves, axis=0), low, high


def _cells(codes: Ints, within: Labels | None) -> Ints:
    """What is compared with each other: 0..g-1 for every client, or every label of a client."""
    if within is None:
        return codes
    label = _codes(within)
    return _dense(codes * (label.max(initial=0) + 1) + label)


def _dense(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.intp)


def _comparable(m: Bools, codes: Ints, cell: Ints) -> Bools:
    kept = _both(m, cell, np.ones(len(m)), at_least=1)
    return kept & _both(m, codes, kept, at_least=2)


def _both(m: Bools, group: Ints, counted: npt.NDArray[Any], *, at_least: int) -> Bools:
    """Whether each record's group [n] has so many members and so many non-members among the `counted` [n]."""
    top = int(group.max(initial=0)) + 1
    kinds = np.bincount(group[m], counted[m], top), np.bincount(group[~m], counted[~m], top)
    found: Bools = (np.minimum(*kinds) >= at_least)[group]
    return found


def _strata(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, within: Labels | None, confidence: float
) -> tuple[Floats, Bools, Ints, Ints]:
    """Scores, members, clients 0..K-1 and cells of the records that have something to compare with, all [n]."""
    s, m, codes, _ = _checked(scores, member, client, confidence)
    cell = _cells(codes, within)
    kept = _comparable(m, codes, cell)
    if not kept.any():
        raise ValueError("member must hold at least 2 members and 2 non-members of one client to compare.")
    return s[kept], m[kept], _dense(codes[kept]), _dense(cell[kept])


def _pairs(m: Bools, cell: Ints) -> int:
    """As many disjoint pairs of a member and a non-member of one cell there are."""
    top = int(cell.max()) + 1
    return int(np.minimum(np.bincount(cell[m], minlength=top), np.bincount(cell[~m], minlength=top)).sum())


def _placements_within(s: Floats, m: Bools, cell: Ints) -> tuple[Floats, Floats]:
    """`_placements` among the records of the same cell: sorted by cell, then by score, every cell is a stretch."""
    n, key = len(s), cell * len(s) + _ranks(s)

    def below(own: Ints, others: Ints) -> Floats:
        others = np.sort(others)
        first, end = (np.searchsorted(others, (own // n + step) * n) for step in (0, 1))
        twice = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right") - 2 * first
        found: Floats = twice / (2 * (end - first))
        return found

    return below(key[m], key[~m]), 1 - below(key[~m], key[m])


def _stratified_mean(x: Floats, y: Floats, m: Bools, codes: Ints, cell: Ints) -> tuple[float, float]:
    """Mean over clients of the mean over pairs, and its standard error, from placements x of members and y of
    non-members.

    theta_c = sum_i w_i x_i, w_i = (non-members of i's cell) / (pairs of c), likewise for y;
    variance_c = M / (M - 1) sum_i w_i² (x_i - theta_c)² + N / (N - 1) sum_j w_j² (y_j - theta_c)²:
    with one cell DeLong's.
    """
    size, clients = np.bincount(cell, ~m), int(codes.max()) + 1
    pairs = np.bincount(codes[m], size[cell[m]], clients)
    theta = np.bincount(codes[m], size[cell[m]] * x, clients) / pairs  # in this order 1 stays 1
    variance = np.zeros(clients)
    for values, kind in ((x, m), (y, ~m)):
        weight = np.bincount(cell[~kind])[cell[kind]] / pairs[codes[kind]]
        count = np.bincount(codes[kind], minlength=clients)
        variance += (
            count / (count - 1) * np.bincount(codes[kind], (weight * (values - theta[codes[kind]])) ** 2, clients)
        )
    se = math.sqrt(variance.sum()) / clients
    return float(theta.mean()), (se if se > _ZERO else 0.0)


def _stratified_how(kind: str, about: _About, within: Labels | None) -> str:
    mean = f", mean over {about['clients']} clients" if about["clients"] > 1 else ""
    return f"{kind}{' within class' if within is not None else ''}{mean}"
