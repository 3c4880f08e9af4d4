"""Placements of scores (mid-ranks of members among non-members, and the reverse), and the standard error of their mean.

The arguments `scores` [n], `member` [n] and `client` [n] that the ranking metrics share are checked and encoded here.
Groups, such as clients, are codes 0..g-1 in order of first appearance. Inside these modules s [n] are scores, m [n] is
True for members, and codes [n] are clients.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints, Labels
from fedaudit.audits.statistics.intervals import ZERO, Basis, check_confidence


def checked(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, confidence: float
) -> tuple[Floats, Bools, Ints, list[Hashable]]:
    """Scores [n], members [n], client codes [n], and the label of each code. ValueError: not of equal lengths, NaN, no
    member, no non-member, or a confidence outside (0, 1)."""
    check_confidence(confidence)
    s, flags = checked_scores("scores", scores), np.asarray(member)
    labels = client.tolist() if isinstance(client, np.ndarray) else list(client)
    if not s.shape == flags.shape == (len(labels),):
        raise ValueError(f"scores, member and client differ in length: {s.shape}, {flags.shape}, ({len(labels)},).")
    if not np.isin(flags, (0, 1)).all():
        raise ValueError(f"member must be True or False, got {flags[~np.isin(flags, (0, 1))][0]!r}.")
    m = flags.astype(bool)
    if m.all() or not m.any():
        raise ValueError(f"member must hold members and non-members, got {m.sum()} members of {len(m)} records.")
    if any(label != label for label in labels):
        raise ValueError("client must name the client of every record, got NaN.")
    return s, m, codes_of(labels), list(dict.fromkeys(labels))


def checked_scores(name: str, values: npt.ArrayLike) -> Floats:
    """The values as floats [n]. ValueError, with `name`: NaN, or not one axis."""
    s = np.asarray(values, dtype=float)
    if s.ndim != 1 or np.isnan(s).any():
        raise ValueError(
            f"{name} must be a list of numbers without NaN, got {np.isnan(s).sum()} NaN in shape {s.shape}."
        )
    return s


def codes_of(labels: Labels) -> Ints:
    """A code 0..c-1 for each label [n], in the order of first appearance."""
    index: dict[Hashable, int] = {}
    listed = labels.tolist() if isinstance(labels, np.ndarray) else labels
    return np.array([index.setdefault(label, len(index)) for label in listed], dtype=np.intp)


def basis_of(m: Bools, codes: Ints, confidence: float) -> Basis:
    """The counts that an interval over these records repeats."""
    return Basis(members=int(m.sum()), nonmembers=int((~m).sum()), clients=len(np.unique(codes)), confidence=confidence)


def dense_ranks(values: npt.NDArray[np.generic]) -> Ints:
    """Rank of each value [n] among the distinct ones: 0 for the smallest, equal values share a rank."""
    return np.unique(values, return_inverse=True)[1].astype(np.intp)


def has_both_kinds(m: Bools, group: Ints, at_least: int, counted: Bools | None = None) -> Bools:
    """Whether each record's group [n] has at least so many members and non-members among the `counted` [n] records."""
    weight, groups = np.ones(len(m)) if counted is None else counted, int(group.max(initial=0)) + 1
    counts = [np.bincount(group[kind], weight[kind], groups) for kind in (m, ~m)]
    enough: Bools = (np.minimum(*counts) >= at_least)[group]
    return enough


def groups_with_both_kinds(m: Bools, codes: Ints, *, at_least: int) -> tuple[list[int], Bools]:
    """The groups with at least so many members and non-members, and whether each record is in one [n]. ValueError:
    none."""
    kept = has_both_kinds(m, codes, at_least)
    if not kept.any():
        need = f"at least {at_least} members and {at_least} non-members"
        raise ValueError(f"member must hold {need} of one client (of all together, where clients are pooled).")
    return np.unique(codes[kept]).tolist(), kept


def same_order(a: Floats, b: Floats, cell: Ints) -> bool:
    """Whether two scores [n] rank the records of every cell [n] alike, ties included."""
    return all(np.array_equal(dense_ranks(a[cell == c]), dense_ranks(b[cell == c])) for c in np.unique(cell))


def placements(s: Floats, m: Bools, cell: Ints) -> tuple[Floats, Floats]:
    """For each member the share of non-members of its cell [n] that score below it, and for each non-member the share
    of members of its cell that score above it; ties count one half. DeLong's V10 and V01.

    Every cell must have both kinds; its AUROC is the mean of either. Sorted by cell, then score, a cell is a stretch.
    """
    n, key = len(s), cell * len(s) + dense_ranks(s)

    def share_below(own: Ints, others: Ints) -> Floats:
        others = np.sort(others)
        first, end = (np.searchsorted(others, (own // n + step) * n) for step in (0, 1))
        twice = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right") - 2 * first
        share: Floats = twice / (2 * (end - first))
        return share

    return share_below(key[m], key[~m]), 1 - share_below(key[~m], key[m])


def clustered_error(x: Floats, y: Floats, client_x: Ints, client_y: Ints) -> tuple[float, float | None]:
    """Standard error of mean(x) + mean(y), x [m] and y [n] being correlated within a client, and its degrees of freedom
    (None: all are of a single client, and records are the units). (0, None) if members or non-members are a single
    record.

    Obuchowski (1997): S10 / m + S01 / n + 2 S11 / (m n). Degrees of freedom: the smaller number of either kind; clients
    - 1 if all are of one size and have both kinds. Where all records of a kind are of one client, each of them is a
    cluster of its own, which is plain DeLong.
    """
    clustered = max(len(np.unique(client_x)), len(np.unique(client_y))) > 1
    top = max(client_x.max(), client_y.max()) + 1
    client_x, client_y = _split_single(client_x, start=top), _split_single(client_y, start=top + len(x))
    groups_x, groups_y = len(np.unique(client_x)), len(np.unique(client_y))
    if min(groups_x, groups_y) < 2:
        return 0.0, None
    every = np.concatenate([client_x, client_y])
    a = np.bincount(client_x, x - x.mean(), every.max() + 1) / len(x)
    b = np.bincount(client_y, y - y.mean(), every.max() + 1) / len(y)
    groups = len(np.unique(every))
    variance = sum(k / (k - 1) * u @ v for k, u, v in ((groups_x, a, a), (groups_y, b, b), (groups, 2 * a, b)))
    se = math.sqrt(max(variance, 0.0))
    size = np.bincount(every)
    dof = min(_degrees_of_freedom(v - v.mean(), of, size) for v, of in ((x, client_x), (y, client_y)))
    return (se if se > ZERO else 0.0), (dof if clustered else None)


def _split_single(client: Ints, *, start: int) -> Ints:
    """The client of each record [n]; if that is one client for all, a new code from `start` on for each record."""
    return client if len(np.unique(client)) > 1 else start + np.arange(len(client))


def _degrees_of_freedom(deviations: Floats, client: Ints, size: Ints) -> float:
    """Effective degrees of freedom of a mean's variance, which is estimated as the sum over clients of the squared sums
    of their `deviations` [m] from it; `size` by client is how many records it has of both kinds.

    Satterthwaite's (1946) for a mean of unequal clusters (Bell and McCaffrey 2002, Survey Methodology 28:169), under a
    model of equally correlated records whose correlation is estimated, at least 0 (Imbens and Kolesar 2016, Rev. Econ.
    Stat. 98:701). With h_k the share of client k and v_k = h_k (1 + (expected records of k - 1) correlation), the
    clients' sums about the common mean have the covariance S = (I - h 1') diag(v) (I - 1 h'), each of them divided by 1
    - h_k, and (trace S)^2 / trace S^2 degrees of freedom. Clients of one size: their number - 1.
    """
    clients, at = np.unique(client, return_inverse=True)
    h = size[clients] / size[clients].sum()
    v = h * (1 + np.maximum(h * len(client) - 1, 0.0) * _correlation(deviations, at))
    d, all_v = 1 / (1 - h), v.sum()
    shared = h * (all_v * h - 2 * v)  # S is diag(v) and all_v h h' - h v' - v h'
    hh, hv, vv = (d * h) @ h, (d * h) @ v, (d * v) @ v
    squares = (d**2) @ (v * (v + 2 * shared)) + all_v**2 * hh**2 - 4 * all_v * hh * hv + 2 * hh * vv + 2 * hv**2
    return round(float((d @ (v + shared)) ** 2 / squares), 9)  # clients of one size have a whole number


def _correlation(deviations: Floats, client: Ints) -> float:
    """Correlation of two records of a client: the mean product of their deviations [m] over the mean square of all, cut
    to [0, 1]; 0 if no client has two records."""
    total = deviations @ deviations
    pairs = (np.bincount(client) * (np.bincount(client) - 1.0)).sum()
    if total <= ZERO**2 or not pairs:
        return 0.0
    products = (np.bincount(client, deviations) ** 2).sum() - total
    return float(np.clip(products / pairs * len(deviations) / total, 0.0, 1.0))
