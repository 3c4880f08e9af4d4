"""AUROCs of few clients with a model each: clients are strata, records the units.

Intervals over clients need several of them; where two are attacked there is nothing to take a spread from. Given the
models, however, a fair coin per record made members and non-members independent of each other: every client gives a
variance of its own, and these add up. Such an interval is about the trainings that were attacked, not about further
clients. Arguments and sign rule as in `audits.statistics.ranking`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints, Labels
from fedaudit.audits.statistics.intervals import (
    CONSTANT,
    ZERO,
    Basis,
    Interval,
    point_interval,
    square_and_add,
    wald_interval,
)
from fedaudit.audits.statistics.placements import (
    basis_of,
    checked,
    codes_of,
    dense_ranks,
    has_both_kinds,
    placements,
    same_order,
)


def comparable(member: npt.ArrayLike, client: Labels, within: Labels | None = None) -> Bools:
    """Whether `stratified_auroc` compares each record [n]: its client (and label `within` it) has members and
    non-members, and the client has at least two of each such. All False: nothing can be measured."""
    m, codes = np.asarray(member, dtype=bool), codes_of(client)
    kept = has_both_kinds(m, _cells(codes, within), 1)
    return kept & has_both_kinds(m, codes, 2, kept)


def stratified_auroc(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    within: Labels | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Mean over clients of each one's AUROC under its own model, for few clients: records are the units.

    Given the models, a fair coin per record made members and non-members independent: the variance is the sum of the
    clients' DeLong variances over K², the quantile normal; one client is plain DeLong. `within` [n] compares only
    records of a client that share that label. A client's AUROC is then the share of *such pairs* that are ranked
    rightly, ties one half, so a label weighs as its pairs do: AUROC = sum_k m_k n_k AUROC_k / sum_k m_k n_k, and the
    variance is that of the placements about it, for labels of any size. Records that have nothing to compare with are
    left out (`comparable`). Degenerate cases as in `auroc`.
    """
    s, m, codes, cell = _strata(scores, member, client, within, confidence)
    basis, pairs = basis_of(m, codes, confidence), _pairs(m, cell)
    x, y = placements(s, m, cell)
    if (x == 0.5).all() and (y == 0.5).all():
        return point_interval(0.5, basis, CONSTANT, pairs)
    value, se = _stratified_mean(x, y, m, codes, cell)
    return wald_interval(value, se, None, basis, _how("DeLong", basis, within), pairs=pairs)


def stratified_auroc_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    within: Labels | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Stratified AUROC of `a` less that of `b` on the same records; degenerate cases as in `auroc_difference`."""
    sa, m, codes, cell = _strata(a, member, client, within, confidence)
    sb = _strata(b, member, client, within, confidence)[0]
    basis, pairs = basis_of(m, codes, confidence), _pairs(m, cell)
    if same_order(sa, sb, cell):
        return point_interval(0.0, basis, "identical rankings", pairs)
    (xa, ya), (xb, yb) = placements(sa, m, cell), placements(sb, m, cell)
    value, se = _stratified_mean(xa - xb, ya - yb, m, codes, cell)
    if se == 0.0:
        return square_and_add(
            *(stratified_auroc(s, member, client, within=within, confidence=confidence) for s in (a, b))
        )
    how = _how("paired DeLong", basis, within)
    return wald_interval(value, se, None, basis, how, lowest=-1.0, pairs=pairs)


def _cells(codes: Ints, within: Labels | None) -> Ints:
    """The number 0..g-1 of each record's cell [n], within which records are compared: a client or, with `within`, the
    records of a client that share a label."""
    if within is None:
        return codes
    label = codes_of(within)
    return dense_ranks(codes * (label.max(initial=0) + 1) + label)


def _strata(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, within: Labels | None, confidence: float
) -> tuple[Floats, Bools, Ints, Ints]:
    """Scores, members, clients 0..K-1 and cells of the comparable records, all [n]. ValueError: there are none."""
    s, m, codes, _ = checked(scores, member, client, confidence)
    cell, kept = _cells(codes, within), comparable(m, codes, within)
    if not kept.any():
        raise ValueError("member must hold at least 2 members and 2 non-members of one client to compare.")
    return s[kept], m[kept], dense_ranks(codes[kept]), dense_ranks(cell[kept])


def _pairs(m: Bools, cell: Ints) -> int:
    """The largest number of disjoint pairs of a member and a non-member of one cell."""
    top = int(cell.max()) + 1
    return int(np.minimum(np.bincount(cell[m], minlength=top), np.bincount(cell[~m], minlength=top)).sum())


def _stratified_mean(x: Floats, y: Floats, m: Bools, codes: Ints, cell: Ints) -> tuple[float, float]:
    """Mean over clients of the mean over pairs, and its standard error, from placements x [m] and y [n].

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
    return float(theta.mean()), (se if se > ZERO else 0.0)


def _how(method: str, basis: Basis, within: Labels | None) -> str:
    """The method of an interval with what its mean is over, as `Interval.how` begins."""
    mean = f", mean over {basis['clients']} clients" if basis["clients"] > 1 else ""
    return f"{method}{' within class' if within is not None else ''}{mean}"
