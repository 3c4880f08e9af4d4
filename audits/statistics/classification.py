"""Rates of a score that is cut at a threshold: true positive rate at a false positive rate, balanced accuracy.

A record is called a member when its score is above the threshold (not on it). A threshold owes nothing to the records
whose rates are counted. Arguments as in `audits.statistics.ranking`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints, Labels
from fedaudit.audits.statistics.intervals import (
    CONSTANT,
    Interval,
    clopper_pearson,
    point_interval,
    proportion,
    wald_interval,
)
from fedaudit.audits.statistics.placements import (
    basis_of,
    checked,
    checked_scores,
    clustered_error,
    groups_with_both_kinds,
)

_FOLD_SEED = 20_240_229  # folds are a fixed function of the order of the records, so that a report can be regenerated
_SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996


@dataclass(frozen=True)
class TprAtFpr:
    """The true positive rate at a nominal FPR, and the FPR that the threshold really had on the non-members."""

    fpr: float
    value: float
    low: float
    high: float
    realised_fpr: float
    realised_low: float
    realised_high: float
    status: str  # "ok", "coarse" or "not measurable (n)": n non-members set the threshold


def tpr_at_fpr(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    fpr: float,
    *,
    reference: npt.ArrayLike | Mapping[Any, npt.ArrayLike] | None = None,
    confidence: float = 0.95,
    independent: bool = False,
) -> TprAtFpr:
    """TPR at a threshold set by *other* non-members: the smallest that at most floor(fpr · n) of their n scores exceed.

    The others are `reference` [n], scores of records of the same distribution that are neither members nor among the
    evaluated ones; a mapping from client to such scores when every client has its own model and threshold; without it,
    the other half of the non-members, members being compared with both halves' thresholds. With k = floor(fpr · n) the
    expected realised FPR is (k + 1) / (n + 1). n below 1/fpr: not measurable, all values nan; below 10/fpr: coarse;
    with several thresholds the smallest n counts. Both rates have Korn and Graubard's interval (see `proportion`),
    given the threshold; `independent`: records, not clients, are its units, which is Clopper and Pearson's.
    """
    s, m, codes, labels = checked(scores, member, client, confidence)
    if not 0.0 < fpr < 1.0:
        raise ValueError(f"fpr must lie strictly between 0 and 1, got {fpr}.")
    sets, use = _reference_sets(s, m, codes, labels, reference)
    n = min(map(len, sets))
    if n * fpr < 1 - _SLACK:
        nothing = (math.nan, math.nan, math.nan)
        return TprAtFpr(fpr, *nothing, *nothing, f"not measurable ({n})")
    thresholds = np.array([threshold(one, fpr) for one in sets])
    called = ((s[:, None] > thresholds) * use).sum(axis=1)
    units = np.zeros_like(codes) if independent else codes
    rate, realised = (proportion(called[kind], units[kind], confidence) for kind in (m, ~m))
    return TprAtFpr(fpr, *rate, *realised, "coarse" if n * fpr < 10 - _SLACK else "ok")


def balanced_accuracy(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    confidence: float = 0.95,
    per_client: bool = False,
    independent: bool = False,
) -> Interval:
    """(TPR + TNR) / 2 at the threshold that is best on the other half of the records (two folds).

    `per_client` fits thresholds within each client (scores of different models) and leaves out clients with fewer than
    two members or two non-members. Interval: cluster-robust t over clients, exact binomial where there is no variance;
    `independent`: records, not clients, are the units of its standard error.
    """
    s, m, codes, _ = checked(scores, member, client, confidence)
    if s.min() == s.max():
        return point_interval(0.5, basis_of(m, codes, confidence), CONSTANT)
    model = codes if per_client else np.zeros_like(codes)
    models, kept = groups_with_both_kinds(m, model, at_least=2)
    s, m, codes, model = s[kept], m[kept], codes[kept], model[kept]
    right = np.empty(len(s))
    for one in models:
        right[model == one] = _cross_fit(s[model == one], m[model == one], codes[model == one])
    x, y = right[m] / 2, right[~m] / 2
    units = np.zeros_like(codes) if independent else codes
    se, dof = clustered_error(x, y, units[m], units[~m])
    how = "cross-fitted" if dof is None else "cross-fitted, clustered"
    return wald_interval(float(x.mean() + y.mean()), se, dof, basis_of(m, codes, confidence), how)


def accuracy_at(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    thresholds: Mapping[Any, float],
    *,
    confidence: float = 0.95,
) -> Interval:
    """Mean over clients of (TPR + TNR) / 2 at each client's threshold, fixed before these records were looked at.

    Every rate of every client is a binomial proportion: Clopper and Pearson's intervals of all of them are joined by
    square-and-add (Zou and Donner 2008). Clients without both kinds are left out; ValueError: another has no threshold.
    """
    s, m, codes, labels = checked(scores, member, client, confidence)
    clients, kept = groups_with_both_kinds(m, codes, at_least=1)
    if missing := [labels[c] for c in clients if labels[c] not in thresholds]:
        raise ValueError(f"thresholds must hold one of every client, there is none of {missing[0]!r}.")
    right = (s > np.array([thresholds.get(label, math.nan) for label in labels])[codes]) == m
    rates = [right[(codes == c) & kind] for c in clients for kind in (m, ~m)]
    p = np.array([rate.mean() for rate in rates])
    n = np.array([len(rate) for rate in rates])
    low, high = np.array([clopper_pearson(k, size, confidence) for k, size in zip(p * n, n, strict=True)]).T
    down, up, se = (float(np.linalg.norm(reach)) / len(p) for reach in (p - low, high - p, np.sqrt(p * (1 - p) / n)))
    value = float(p.mean())
    basis = basis_of(m[kept], codes[kept], confidence)
    how = "exact binomial of each rate, square-and-add"
    return Interval(value=value, low=value - down, high=value + up, how=how, se=se, dof=None, **basis)


def best_threshold(scores: npt.ArrayLike, member: npt.ArrayLike) -> float:
    """The threshold with the best balanced accuracy on these records, for use on others: a midpoint of neighbouring
    scores, or ±inf; of several equally good ones the middle one."""
    s, m, *_ = checked(scores, member, [0] * len(np.asarray(member)), 0.95)
    return _best_threshold(s, m)


def _best_threshold(s: Floats, m: Bools) -> float:
    """The threshold on scores s [n] above which calling records members is right most often, members and non-members (m
    [n]) weighing the same; the middle one of several. One kind may be lacking."""
    values = np.unique(np.nan_to_num(s))
    cuts = np.concatenate([[-np.inf], 0.5 * values[:-1] + 0.5 * values[1:], [np.inf]])
    above = [len(x) - np.searchsorted(np.sort(x), cuts, "right") for x in (s[m], s[~m])]
    gain = above[0] * (~m).sum() - above[1] * m.sum()  # integers, so that ties are exact
    best = np.flatnonzero(gain == gain.max())
    return float(cuts[best[(len(best) - 1) // 2]])


def _halves(codes: Ints) -> Ints:
    """The half, 0 or 1, of each record [n]: alternating within each client in a fixed pseudo-random order."""
    order = np.random.default_rng(_FOLD_SEED).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    half = np.empty(len(codes), dtype=np.intp)
    half[order] = np.arange(len(codes)) % 2
    return half


def _reference_sets(
    s: Floats,
    m: Bools,
    codes: Ints,
    labels: list[Hashable],
    reference: npt.ArrayLike | Mapping[Any, npt.ArrayLike] | None,
) -> tuple[list[Floats], Floats]:
    """The r sets of scores that set the thresholds, and how much each of these counts for each record, [n, r] with rows
    of sum 1: by client, one for all, or the halves of the non-members (`reference` None). ValueError: a client has no
    scores."""
    if isinstance(reference, Mapping):
        missing = [label for label in labels if label not in reference]
        if missing:
            raise ValueError(f"reference must have scores for every client, it has none for {missing[0]!r}.")
        return [checked_scores("reference", reference[label]) for label in labels], np.eye(len(labels))[codes]
    if reference is not None:
        return [checked_scores("reference", reference)], np.ones((len(s), 1))
    half = _halves(codes[~m])
    use = np.full((len(s), 2), 0.5)
    use[~m] = np.eye(2)[1 - half]
    return [s[~m][half == h] for h in (0, 1)], use


def threshold(reference: Floats, fpr: float) -> float:
    """The smallest t with at most floor(fpr · n) of the n reference scores [n] above it."""
    allowed = math.floor(fpr * len(reference) + _SLACK)
    return float(np.sort(reference)[len(reference) - 1 - allowed])


def _cross_fit(s: Floats, m: Bools, codes: Ints) -> Bools:
    """Whether each record [n] is classified rightly by the threshold that is best on the other half of the records;
    halves are dealt within client and membership."""
    half = np.empty(len(s), dtype=np.intp)
    half[m], half[~m] = _halves(codes[m]), _halves(codes[~m])
    cuts = np.array([_best_threshold(s[half != h], m[half != h]) for h in (0, 1)])
    right: Bools = (s > cuts[half]) == m
    return right
