"""ROC curves on a grid of false positive rates, with pointwise bands. Arguments as in `audits.statistics.ranking`.

A curve is a step function: the largest TPR whose FPR is not above the grid's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints, Labels
from fedaudit.audits.statistics.intervals import quantile
from fedaudit.audits.statistics.placements import checked, dense_ranks, groups_with_both_kinds

_SLACK = 1e-9  # a rate of the grid may be rounded

Band = tuple[Floats, Floats, Floats]  # TPR, low and high, each [g]


def roc_band(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    fpr_grid: npt.ArrayLike,
    resamples: int = 200,
    seed: int = 0,
    confidence: float = 0.95,
) -> Band:
    """(TPR, its lower end, its upper end), each [g], of all records at each FPR of the grid [g]; the ends are a
    percentile bootstrap over clients, then over records within client and membership.

    Resamples that drew no member or no non-member (possible only where clients have one kind) are left out.
    """
    s, m, codes, _ = checked(scores, member, client, confidence)
    grid = np.asarray(fpr_grid, dtype=float)
    if not ((grid >= 0) & (grid <= 1)).all() or resamples < 1:
        raise ValueError(f"fpr_grid must lie in [0, 1] and resamples be at least 1, got {grid.tolist()}, {resamples}.")
    return _percentiles(_resampled(grid, s, m, codes, resamples, np.random.default_rng(seed)), confidence)


def client_roc_band(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    fpr_grid: npt.ArrayLike,
    resamples: int = 100,
    seed: int = 0,
    confidence: float = 0.95,
) -> Band:
    """(TPR, lower end, upper end), each [g]: mean over clients of their own curves, and its bootstrap over the records
    within client and membership. Clients without both kinds are left out."""
    s, m, codes, _ = checked(scores, member, client, confidence)
    grid, rng = np.asarray(fpr_grid, dtype=float), np.random.default_rng(seed)
    tprs = []
    for c in groups_with_both_kinds(m, codes, at_least=1)[0]:
        rows = codes == c
        tprs.append(_resampled(grid, s[rows], m[rows], np.zeros(rows.sum(), dtype=np.intp), resamples, rng))
    return _percentiles(np.mean(tprs, axis=0), confidence)


def mean_roc_band(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, fpr_grid: npt.ArrayLike, confidence: float = 0.95
) -> Band:
    """(TPR, lower end, upper end), each [g]: mean over clients of their own curves, and its t interval over clients;
    the ends are NaN for a single client. ValueError: a client lacks one of the kinds."""
    values, kinds, names = np.asarray(scores, dtype=float), np.asarray(member), np.asarray(client)
    tprs = []
    for name in np.unique(names):
        s, m, *_ = checked(values[names == name], kinds[names == name], names[names == name], confidence)
        tprs.append(tprs_on(np.asarray(fpr_grid, dtype=float), dense_ranks(s), m, np.ones((1, len(s))))[0])
    tpr = np.mean(tprs, axis=0)
    half = 0 * tpr + np.nan
    if len(tprs) > 1:
        half = quantile(len(tprs) - 1, confidence) * np.std(tprs, axis=0, ddof=1) / len(tprs) ** 0.5
    return tpr, np.clip(tpr - half, 0, 1), np.clip(tpr + half, 0, 1)


def _resampled(grid: Floats, s: Floats, m: Bools, codes: Ints, resamples: int, rng: np.random.Generator) -> Floats:
    """TPR [1 + r, g] on the grid [g]: of the records as they are, then of each resample that has both kinds."""
    weights = _bootstrap_weights(m, codes, resamples, rng)
    weights = weights[(weights[:, m].sum(axis=1) > 0) & (weights[:, ~m].sum(axis=1) > 0)]
    return tprs_on(grid, dense_ranks(s), m, np.concatenate([np.ones((1, len(s))), weights]))


def _percentiles(tprs: Floats, confidence: float) -> Band:
    """The first of the curves [1 + r, g], and the percentile interval of the others."""
    low, high = np.quantile(tprs[1:], [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return tprs[0], low, high


def _bootstrap_weights(m: Bools, codes: Ints, resamples: int, rng: np.random.Generator) -> Floats:
    """How often each record is drawn [r, n]: clients with replacement, then each client's members and non-members."""
    clients = codes.max() + 1
    drawn = rng.multinomial(clients, np.full(clients, 1 / clients), size=resamples)
    weights = np.zeros((resamples, len(m)))
    for kind in (m, ~m):
        for c in range(clients):
            group = np.flatnonzero((codes == c) & kind)
            if len(group):
                weights[:, group] = rng.multinomial(drawn[:, c] * len(group), np.full(len(group), 1 / len(group)))
    return weights


def tprs_on(grid: Floats, ranks: Ints, m: Bools, weights: Floats) -> Floats:
    """TPR [r, g] on the grid [g] under each of r weights [r, n] of the records, which are sorted only once."""
    order = np.argsort(-ranks, kind="stable")
    last = np.flatnonzero(np.diff(ranks[order], append=-1))  # of every group of ties
    tprs = []
    for weight in weights:
        counts = (np.cumsum(np.where(kind, weight, 0.0)[order])[last] for kind in (m, ~m))
        tpr, fpr = (np.append(0.0, count / count[-1]) for count in counts)
        tprs.append(tpr[np.searchsorted(fpr, grid + _SLACK, "right") - 1])
    return np.array(tprs)
