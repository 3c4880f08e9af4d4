"""How well a score ranks members above non-members, with intervals that respect clients.

One sign rule: a higher score means more likely a member. Records of one client are correlated, so the unit of every
standard error here is the client; records are the units only of a kind (members, non-members) that a single client, or
one common pool, has alone, and on request (`independent`, `stratified`). `how` in each result names its method.

The arguments that all functions share, there and in `classification` and `roc_curves` too: `scores` [n] numbers
(infinite ones are allowed, NaN is not), `member` [n] bool, `client` [n] labels (any hashable). ValueError: there are no
members or no non-members, or lengths differ.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from fedaudit.audits.statistics.arrays import Labels
from fedaudit.audits.statistics.intervals import (
    CONSTANT,
    Interval,
    mean_with_error,
    point_interval,
    square_and_add,
    wald_interval,
)
from fedaudit.audits.statistics.placements import (
    basis_of,
    checked,
    clustered_error,
    groups_with_both_kinds,
    placements,
    same_order,
)


def auroc(scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95) -> Interval:
    """AUROC (ties count one half) with the clustered DeLong interval of Obuchowski (1997, Biometrics 53:567).

    A single client gives plain DeLong (1988) with the normal quantile. Where the variance is zero (AUROC 0 or 1) the
    interval is the exact binomial one of that share of successes among `units` trials. A constant score says nothing
    about membership: 0.5 with the interval [0.5, 0.5].
    """
    s, m, codes, _ = checked(scores, member, client, confidence)
    basis = basis_of(m, codes, confidence)
    if s.min() == s.max():
        return point_interval(0.5, basis, CONSTANT)
    x, y = placements(s, m, np.zeros_like(codes))
    se, dof = clustered_error(x, y, codes[m], codes[~m])
    return wald_interval(float(x.mean()), se, dof, basis, "DeLong" if dof is None else "clustered DeLong")


def auroc_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> Interval:
    """AUROC(a) - AUROC(b) of two scores of the same records: the same variance, of the difference of the placements.

    Scores that rank the records alike differ by 0, interval [0, 0]. Any other difference without variance gets the
    square-and-add interval (Zou and Donner 2008, Statistics in Medicine 27:1693) of the two single ones.
    """
    sa, m, codes, _ = checked(a, member, client, confidence)
    sb = checked(b, member, client, confidence)[0]
    basis, whole = basis_of(m, codes, confidence), np.zeros_like(codes)
    if same_order(sa, sb, whole):
        return point_interval(0.0, basis, "identical rankings")
    (xa, ya), (xb, yb) = placements(sa, m, whole), placements(sb, m, whole)
    se, dof = clustered_error(xa - xb, ya - yb, codes[m], codes[~m])
    if se == 0.0:
        return square_and_add(*(auroc(s, m, codes, confidence=confidence) for s in (sa, sb)))
    how = "paired DeLong" if dof is None else "clustered paired DeLong"
    return wald_interval(float(xa.mean() - xb.mean()), se, dof, basis, how, lowest=-1.0)


def client_auroc(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> tuple[Interval, dict[Hashable, float]]:
    """Mean over clients of each client's own AUROC, and the AUROC by client. Scores are never pooled.

    t interval over clients. Clients without both kinds are left out of the result and of its counts; a single client
    left has its own DeLong interval. Equal AUROCs in all clients give the exact binomial interval, with as many trials
    as there are clients, or pairs of records in the client with the fewest if that is more.
    """
    s, m, codes, labels = checked(scores, member, client, confidence)
    clients, kept = groups_with_both_kinds(m, codes, at_least=1)
    s, m, codes = s[kept], m[kept], codes[kept]
    x, y = placements(s, m, codes)
    auroc_by_client = {c: float(x[codes[m] == c].mean()) for c in clients}
    basis = basis_of(m, codes, confidence)
    if len(clients) == 1:
        mean = auroc(s, m, codes, confidence=confidence)
    elif (x == 0.5).all() and (y == 0.5).all():
        mean = point_interval(0.5, basis, CONSTANT)
    else:
        value, se, dof = mean_with_error(list(auroc_by_client.values()))
        if se == 0.0:  # nothing varies between clients: the bound is that of the records of the client with the fewest
            dof = max(dof, min(min((codes[m] == c).sum(), (codes[~m] == c).sum()) for c in clients) - 1)
        mean = wald_interval(value, se, dof, basis, "mean over clients")
    return mean, {labels[c]: value for c, value in auroc_by_client.items()}


def client_auroc_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> Interval:
    """Mean over clients of AUROC(a) - AUROC(b) within the client; degenerate cases as in `auroc_difference`."""
    sa, m, codes, _ = checked(a, member, client, confidence)
    sb = checked(b, member, client, confidence)[0]
    clients, kept = groups_with_both_kinds(m, codes, at_least=1)
    sa, sb, m, codes = sa[kept], sb[kept], m[kept], codes[kept]
    if len(clients) == 1:
        return auroc_difference(sa, sb, m, codes, confidence=confidence)
    basis = basis_of(m, codes, confidence)
    if same_order(sa, sb, codes):
        return point_interval(0.0, basis, "identical rankings")
    (mean_a, by_client_a), (mean_b, by_client_b) = (client_auroc(s, m, codes, confidence=confidence) for s in (sa, sb))
    value, se, dof = mean_with_error([by_client_a[c] - by_client_b[c] for c in by_client_a])
    if se == 0.0:
        return square_and_add(mean_a, mean_b)
    return wald_interval(value, se, dof, basis, "paired mean over clients", lowest=-1.0)
