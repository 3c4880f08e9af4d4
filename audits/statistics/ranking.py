"""How well a score ranks members above non-members, with intervals that respect clients.

One sign rule: a higher score means more likely a member. Records of one client are correlated, so the unit of every
standard error here is the client; records are the units only of a kind (members, non-members) that a single client, or
one common pool, has alone, and on request (`independent`, see `audits.statistics.stratified`). `how` in each result
names the method that gave it.

The arguments that all functions share: `scores` [n] numbers (infinite ones are allowed, NaN is not), `member` [n] bool,
`client` [n] labels (any hashable). Whatever lacks members or non-members, or differs in length, is a ValueError.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Labels = Sequence[Hashable] | npt.NDArray[Any]

_FOLD_SEED = 20_240_229  # folds are a fixed function of the order of the records, so that a report can be regenerated
_ZERO = 1e-10  # a smaller standard error is rounding
_SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval; `dof` is None when records, not clients, were the units."""

    value: float
    low: float
    high: float
    members: int
    nonmembers: int
    clients: int
    confidence: float = 0.95
    how: str
    se: float
    dof: float | None  # effective ones, where clients differ in size
    pairs: int | None = None  # as many records can be paired up, where not all are compared with all

    @property
    def units(self) -> float:
        """Independent comparisons of a member with a non-member: one per client, or one per pair of records."""
        if self.dof is not None:
            return self.dof + 1
        return min(self.members, self.nonmembers) if self.pairs is None else self.pairs


class _About(TypedDict):
    members: int
    nonmembers: int
    clients: int
    confidence: float


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


def auroc(scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95) -> Interval:
    """AUROC (ties count one half) with the clustered DeLong interval of Obuchowski (1997, Biometrics 53:567).

    A single client gives plain DeLong (1988) with the normal quantile. Where the variance is zero (AUROC 0 or 1) the
    interval is the exact binomial one of that share of successes among `units` trials. A constant score says nothing
    about membership: 0.5 with the interval [0.5, 0.5].
    """
    s, m, codes, _ = _checked(scores, member, client, confidence)
    about = _about(m, codes, confidence)
    if s.min() == s.max():
        return _certain(0.5, about, "constant score")
    x, y = _placements(s, m)
    se, dof = _standard_error(x, y, codes[m], codes[~m])
    return _interval(float(x.mean()), se, dof, about, "DeLong" if dof is None else "clustered DeLong")


def auroc_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> Interval:
    """AUROC(a) - AUROC(b) of two scores of the same records: the same variance, of the difference of the placements.

    Scores that rank the records alike differ by 0, interval [0, 0]. Any other difference without variance gets the
    square-and-add interval (Zou and Donner 2008, Statistics in Medicine 27:1693) of the two single ones.
    """
    sa, m, codes, _ = _checked(a, member, client, confidence)
    sb = _checked(b, member, client, confidence)[0]
    about = _about(m, codes, confidence)
    if np.array_equal(_ranks(sa), _ranks(sb)):
        return _certain(0.0, about, "identical rankings")
    (xa, ya), (xb, yb) = _placements(sa, m), _placements(sb, m)
    se, dof = _standard_error(xa - xb, ya - yb, codes[m], codes[~m])
    if se == 0.0:
        return _square_and_add(*(auroc(s, m, codes, confidence=confidence) for s in (sa, sb)))
    how = "paired DeLong" if dof is None else "clustered paired DeLong"
    return _interval(float(xa.mean() - xb.mean()), se, dof, about, how, lowest=-1.0)


def client_auroc(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> tuple[Interval, dict[Hashable, float]]:
    """Mean over clients of each client's own AUROC, and these: scores of different models are never pooled.

    t interval over clients. Clients without both kinds are left out of the result and of its counts; a single client
    left has its own DeLong interval. Equal AUROCs in all clients give the exact binomial interval, with as many trials
    as there are clients, or pairs of records in the client with the fewest if that is more.
    """
    s, m, codes, labels = _checked(scores, member, client, confidence)
    own = _with_both(m, codes, at_least=1)
    rows = {c: codes == c for c in own}
    each = {c: float(_below(s[r & m], s[r & ~m]).mean()) for c, r in rows.items()}
    kept = np.isin(codes, own)
    about = _about(m[kept], codes[kept], confidence)
    if len(own) == 1:
        mean = auroc(s[kept], m[kept], codes[kept], confidence=confidence)
    elif all(s[r].min() == s[r].max() for r in rows.values()):
        mean = _certain(0.5, about, "constant score")
    else:
        value, se, dof = _mean(list(each.values()))
        if se == 0.0:  # nothing varies between clients: the bound is that of the records of the client with the fewest
            dof = max(dof, min(min((r & m).sum(), (r & ~m).sum()) for r in rows.values()) - 1)
        mean = _interval(value, se, dof, about, "mean over clients")
    return mean, {labels[c]: value for c, value in each.items()}


def client_auroc_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, member: npt.ArrayLike, client: Labels, *, confidence: float = 0.95
) -> Interval:
    """Mean over clients of AUROC(a) - AUROC(b) within the client; degenerate cases as in `auroc_difference`."""
    sa, m, codes, _ = _checked(a, member, client, confidence)
    sb = _checked(b, member, client, confidence)[0]
    own = _with_both(m, codes, at_least=1)
    kept = np.isin(codes, own)
    if len(own) == 1:
        return auroc_difference(sa[kept], sb[kept], m[kept], codes[kept], confidence=confidence)
    about = _about(m[kept], codes[kept], confidence)
    if all(np.array_equal(_ranks(sa[codes == c]), _ranks(sb[codes == c])) for c in own):
        return _certain(0.0, about, "identical rankings")
    (all_a, of_a), (all_b, of_b) = (client_auroc(s, m, codes, confidence=confidence) for s in (sa, sb))
    value, se, dof = _mean([of_a[c] - of_b[c] for c in of_a])
    if se == 0.0:
        return _square_and_add(all_a, all_b)
    return _interval(value, se, dof, about, "paired mean over clients", lowest=-1.0)


def detectable(members: int, nonmembers: int, clients: int = 1, *, confidence: float = 0.95) -> float:
    """The smallest AUROC whose interval would clear 0.5 at this size, at most 1.

    0.5 + quantile · sqrt((m + n + 1) / (12 m n)), the null variance of the rank-sum statistic (Mann and Whitney 1947);
    t quantile with clients - 1 degrees of freedom, normal for `clients` below 2 (clients ignored).
    """
    if members < 1 or nonmembers < 1:
        raise ValueError(f"members and nonmembers must be at least 1, got {members} and {nonmembers}.")
    _check_confidence(confidence)
    se = math.sqrt((members + nonmembers + 1) / (12 * members * nonmembers))
    return min(1.0, 0.5 + _quantile(clients - 1 if clients > 1 else None, confidence) * se)


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

    A record is called a member when its score is above the threshold (ties are not). The others are `reference` [n],
    scores of records of the same distribution that are neither members nor among the evaluated ones; a mapping from
    client to such scores when every client has its own model and threshold; without it, the other half of the
    non-members, members being held against both halves' thresholds. With k = floor(fpr · n) the expected realised FPR
    is (k + 1) / (n + 1). n below 1/fpr: not measurable, all values nan; below 10/fpr: coarse; with several thresholds
    the smallest n counts. Both rates have Korn and Graubard's interval (see `_proportion`), given the threshold;
    `independent` records, not clients, are its units: Clopper and Pearson's.
    """
    s, m, codes, labels = _checked(scores, member, client, confidence)
    if not 0.0 < fpr < 1.0:
        raise ValueError(f"fpr must lie strictly between 0 and 1, got {fpr}.")
    sets, use = _reference_sets(s, m, codes, labels, reference)
    n = min(map(len, sets))
    if n * fpr < 1 - _SLACK:
        nothing = (math.nan, math.nan, math.nan)
        return TprAtFpr(fpr, *nothing, *nothing, f"not measurable ({n})")
    thresholds = np.array([_threshold(one, fpr) for one in sets])
    called = ((s[:, None] > thresholds) * use).sum(axis=1)
    units = np.zeros_like(codes) if independent else codes
    rate, realised = (_proportion(called[kind], units[kind], confidence) for kind in (m, ~m))
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
    `independent` records, not clients, are the units of its standard error.
    """
    s, m, codes, _ = _checked(scores, member, client, confidence)
    if s.min() == s.max():
        return _certain(0.5, _about(m, codes, confidence), "constant score")
    model = codes if per_client else np.zeros_like(codes)
    own = _with_both(m, model, at_least=2)
    kept = np.isin(model, own)
    s, m, codes, model = s[kept], m[kept], codes[kept], model[kept]
    right = np.empty(len(s))
    for one in own:
        right[model == one] = _crossfit(s[model == one], m[model == one], codes[model == one])
    x, y = right[m] / 2, right[~m] / 2
    units = np.zeros_like(codes) if independent else codes
    se, dof = _standard_error(x, y, units[m], units[~m])
    how = "cross-fitted" if dof is None else "cross-fitted, clustered"
    return _interval(float(x.mean() + y.mean()), se, dof, _about(m, codes, confidence), how)


def best_threshold(scores: npt.ArrayLike, member: npt.ArrayLike) -> float:
    """The best cut for balanced accuracy: a midpoint of neighbouring scores or an end; of several the middle one.

    It is for other records than these: what is above it is called a member.
    """
    s, m, *_ = _checked(scores, member, [0] * len(np.asarray(member)), 0.95)
    return _best_threshold(s, m)


def roc_band(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    client: Labels,
    *,
    fpr_grid: npt.ArrayLike,
    resamples: int = 200,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[Floats, Floats, Floats]:
    """TPR [g] at each FPR of the grid [g], and its pointwise band, low [g] and high [g].

    The curve is a step function: the largest TPR whose FPR is not above the grid's. Percentile bootstrap over clients,
    then over records within client and kind. Resamples that drew no member or no non-member (possible only where
    clients have one kind) are left out.
    """
    s, m, codes, _ = _checked(scores, member, client, confidence)
    grid = np.asarray(fpr_grid, dtype=float)
    if not ((grid >= 0) & (grid <= 1)).all() or resamples < 1:
        raise ValueError(f"fpr_grid must lie in [0, 1] and resamples be at least 1, got {grid.tolist()}, {resamples}.")
    weights = _bootstrap_weights(m, codes, resamples, np.random.default_rng(seed))
    weights = weights[(weights[:, m].sum(axis=1) > 0) & (weights[:, ~m].sum(axis=1) > 0)]
    plain, *resampled = _tprs_on(grid, _ranks(s), m, [np.ones(len(s)), *weights])
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return plain, low, high


def holm(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values [n] (Holm 1979, Scand. J. Statist. 6:65): the family-wise error is bounded, in input order."""
    p = np.asarray(p_values, dtype=float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values must lie in [0, 1], got {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def auroc_p_value(interval: Interval) -> float:
    """Two-sided p-value of an AUROC (or balanced accuracy) of 0.5, from the law that its interval comes from."""
    if interval.se > 0:
        t = -abs(interval.value - 0.5) / interval.se
        return float(2 * (special.ndtr(t) if interval.dof is None else special.stdtr(interval.dof, t)))
    n, k = interval.units, interval.value * interval.units
    at_least = special.betainc(k, n - k + 1, 0.5) if k > 0 else 1.0
    at_most = special.betainc(n - k, k + 1, 0.5) if k < n else 1.0
    return float(min(1.0, 2 * min(at_least, at_most)))


def _checked(
    scores: npt.ArrayLike, member: npt.ArrayLike, client: Labels, confidence: float
) -> tuple[Floats, Bools, Ints, list[Hashable]]:
    """The scores, members, client codes 0..c-1 (all [n]) and the label of each code."""
    _check_confidence(confidence)
    s, flags = _scores("scores", scores), np.asarray(member)
    of = client.tolist() if isinstance(client, np.ndarray) else list(client)
    if not s.shape == flags.shape == (len(of),):
        raise ValueError(f"scores, member and client differ in length: {s.shape}, {flags.shape}, ({len(of)},).")
    if not np.isin(flags, (0, 1)).all():
        raise ValueError(f"member must be True or False, got {flags[~np.isin(flags, (0, 1))][0]!r}.")
    m = flags.astype(bool)
    if m.all() or not m.any():
        raise ValueError(f"member must hold members and non-members, got {m.sum()} members of {len(m)} records.")
    if any(label != label for label in of):
        raise ValueError("client must name the client of every record, got NaN.")
    return s, m, _codes(of), list(dict.fromkeys(of))


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}.")


def _scores(name: str, values: npt.ArrayLike) -> Floats:
    s = np.asarray(values, dtype=float)
    if s.ndim != 1 or np.isnan(s).any():
        raise ValueError(
            f"{name} must be a list of numbers without NaN, got {np.isnan(s).sum()} NaN in shape {s.shape}."
        )
    return s


def _about(m: Bools, codes: Ints, confidence: float) -> _About:
    clients = len(np.unique(codes))
    return _About(members=int(m.sum()), nonmembers=int((~m).sum()), clients=clients, confidence=confidence)


def _with_both(m: Bools, codes: Ints, *, at_least: int) -> list[int]:
    """The clients with so many members and so many non-members."""
    kinds = np.bincount(codes[m], minlength=codes.max() + 1), np.bincount(codes[~m], minlength=codes.max() + 1)
    own = np.flatnonzero(np.minimum(*kinds) >= at_least).tolist()
    if not own:
        need = f"at least {at_least} members and {at_least} non-members"
        raise ValueError(f"member must hold {need} of one client (of all together, where clients are pooled).")
    return own


def _codes(labels: Labels) -> Ints:
    """0..c-1 in the order of first appearance."""
    index: dict[Hashable, int] = {}
    listed = labels.tolist() if isinstance(labels, np.ndarray) else labels
    return np.array([index.setdefault(label, len(index)) for label in listed], dtype=np.intp)


def _placements(s: Floats, m: Bools) -> tuple[Floats, Floats]:
    """V10 of each member: the share of non-members below it; V01 of each non-member: the share of members above it."""
    return _below(s[m], s[~m]), 1 - _below(s[~m], s[m])


def _below(values: Floats, others: Floats) -> Floats:
    """The share of `others` below each value, ties counted one half."""
    others = np.sort(others)
    twice = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
    return twice / (2 * len(others))


def _standard_error(x: Floats, y: Floats, client_x: Ints, client_y: Ints) -> tuple[float, float | None]:
    """Standard error of mean(x) + mean(y), x [m] and y [n] being correlated within a client, and degrees of freedom.

    Obuchowski (1997): S10 / m + S01 / n + 2 S11 / (m n). Degrees of freedom: the smaller number of either kind; clients
    - 1 if all are of one size and have both kinds.
    """
    clustered = max(len(np.unique(client_x)), len(np.unique(client_y))) > 1
    top = max(client_x.max(), client_y.max()) + 1
    client_x, client_y = _records_of_one(client_x, start=top), _records_of_one(client_y, start=top + len(x))
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
    return (se if se > _ZERO else 0.0), (dof if clustered else None)


def _degrees_of_freedom(deviations: Floats, client: Ints, size: Ints) -> float:
    """Effective degrees of freedom of the sum over clients of the squared sums of their `deviations` [m] from the mean;
    `size` by client is how many records it has of both kinds.

    Satterthwaite's (1946) for a mean of unequal clusters (Bell and McCaffrey 2002, Survey Methodology 28:169), under a
    model of equally correlated records whose correlation is estimated, at least 0 (Imbens and Kolesar 2016, Rev. Econ.
    Stat. 98:701). With h_k the share of client k and v_k = h_k (1 + (expected records of k - 1) correlation), the
    clients' sums about the common mean have the covariance S = (I - h 1') diag(v) (I - 1 h'), each of them divided by
    1 - h_k, and (trace S)^2 / trace S^2 degrees of freedom. Clients of one size: their number - 1.
    """
    own, at = np.unique(client, return_inverse=True)
    h = size[own] / size[own].sum()
    v = h * (1 + np.maximum(h * len(client) - 1, 0.0) * _correlation(deviations, at))
    d, all_v = 1 / (1 - h), v.sum()
    shared = h * (all_v * h - 2 * v)  # S is diag(v) and all_v h h' - h v' - v h'
    hh, hv, vv = (d * h) @ h, (d * h) @ v, (d * v) @ v
    squares = (d**2) @ (v * (v + 2 * shared)) + all_v**2 * hh**2 - 4 * all_v * hh * hv + 2 * hh * vv + 2 * hv**2
    return round(float((d @ (v + shared)) ** 2 / squares), 9)  # clients of one size have a whole number


def _correlation(deviations: Floats, client: Ints) -> float:
    """Mean product of the deviations [m] of two records of a client over their mean square, between 0 and 1."""
    total = deviations @ deviations
    pairs = (np.bincount(client) * (np.bincount(client) - 1.0)).sum()
    if total <= _ZERO**2 or not pairs:
        return 0.0
    products = (np.bincount(client, deviations) ** 2).sum() - total
    return float(np.clip(products / pairs * len(deviations) / total, 0.0, 1.0))


def _records_of_one(client: Ints, *, start: int) -> Ints:
    """Where all records are one client's, each is its own group, which is plain DeLong."""
    return client if len(np.unique(client)) > 1 else start + np.arange(len(client))


def _mean(values: list[float]) -> tuple[float, float, int]:
    """Mean, its standard error and degrees of freedom."""
    se = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), (se if se > _ZERO else 0.0), len(values) - 1


def _quantile(dof: float | None, confidence: float) -> float:
    p = (1 + confidence) / 2
    return float(special.ndtri(p) if dof is None else special.stdtrit(dof, p))


def _interval(
    value: float,
    se: float,
    dof: float | None,
    about: _About,
    how: str,
    *,
    lowest: float = 0.0,
    pairs: int | None = None,
) -> Interval:
    """The Wald interval clipped to [lowest, 1], or the exact binomial one where the standard error is zero."""
    reach = _quantile(dof, about["confidence"]) * se
    law = "normal" if dof is None else f"t({dof:.3g})"
    wald = Interval(
        value=value,
        low=max(lowest, value - reach),
        high=min(1.0, value + reach),
        how=f"{how}, {law}",
        se=se,
        dof=dof,
        pairs=pairs,
        **about,
    )
    if se > 0.0:
        return wald
    low, high = _clopper_pearson(value * wald.units, wald.units, wald.confidence)
    return replace(wald, low=low, high=high, how=f"exact binomial({wald.units:.3g})")


def cross_fitted(interval: Interval, folds: int, *, control: Interval | None = None) -> Interval:
    """An interval of scores that a classifier gave each fold after learning from the others: wider, because the folds
    depend on each other.

    Nadeau and Bengio (2003, Machine Learning 52:239): the variance is 1 + k / (k - 1) times the one of independent
    folds. Where the interval is of a difference to such a score, `control` is that score's own, and only its part
    grows.
    """
    if interval.se == 0.0:
        return interval
    more = folds / (folds - 1) * (interval if control is None else control).se ** 2
    se = math.sqrt(interval.se**2 + more)
    reach = _quantile(interval.dof, interval.confidence) * se
    lowest = 0.0 if control is None else -1.0
    low, high = max(lowest, interval.value - reach), min(1.0, interval.value + reach)
    return replace(interval, low=low, high=high, se=se, how=f"{interval.how}, cross-fitted")


def _clopper_pearson(k: float, n: float, confidence: float) -> tuple[float, float]:
    """Exact binomial interval for k of n successes (Clopper and Pearson 1934); neither needs to be an integer."""
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return low, high


def _certain(value: float, about: _About, how: str) -> Interval:
    """An interval of length zero, for what holds whatever the records are."""
    return replace(_interval(value, 0.0, None, about, how), low=value, high=value, how=how)


def _ranks(s: Floats) -> Ints:
    return np.unique(s, return_inverse=True)[1].astype(np.intp)


def _square_and_add(a: Interval, b: Interval) -> Interval:
    """Interval of a - b from the intervals of a and b; conservative when they are positively correlated."""
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return replace(a, value=value, low=low, high=high, how="square-and-add", se=0.0)


def _proportion(hits: Floats, codes: Ints, confidence: float) -> tuple[float, float, float]:
    """Share of hits [n] (each in [0, 1]) and its interval by Korn and Graubard (1998, Survey Methodology 24:193).

    Clopper-Pearson at the effective sample size p (1 - p) / variance, the variance being that of the ratio estimator
    over clients, corrected for its degrees of freedom. At a rate of 2 %, 12 clients of 25 records and a correlation of
    0.05 it covers 98 times of 100, the plain t interval 86 times. One client or no variance: n as it is.
    """
    p, n, clients = float(hits.mean()), len(hits), len(np.unique(codes))
    residual = np.bincount(codes, hits - p) / n
    variance = float(residual @ residual) * clients / (clients - 1) if clients > 1 else 0.0
    effective = float(n)
    if variance > _ZERO**2:
        correction = _quantile(n - 1, confidence) / _quantile(clients - 1, confidence)
        effective = min(n, p * (1 - p) / variance * correction**2)
    return p, *_clopper_pearson(p * effective, effective, confidence)


def _halves(codes: Ints) -> Ints:
    """0 or 1 for each record [n]: alternating within each client in a fixed pseudo-random order."""
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
    """The r sets of scores that set the thresholds, and how much each record uses each of them [n, r]."""
    if isinstance(reference, Mapping):
        missing = [label for label in labels if label not in reference]
        if missing:
            raise ValueError(f"reference must have scores for every client, it has none for {missing[0]!r}.")
        return [_scores("reference", reference[label]) for label in labels], np.eye(len(labels))[codes]
    if reference is not None:
        return [_scores("reference", reference)], np.ones((len(s), 1))
    half = _halves(codes[~m])
    use = np.full((len(s), 2), 0.5)
    use[~m] = np.eye(2)[1 - half]
    return [s[~m][half == h] for h in (0, 1)], use


def _threshold(reference: Floats, fpr: float) -> float:
    """The smallest t with at most floor(fpr · n) of the n reference scores above it."""
    allowed = math.floor(fpr * len(reference) + _SLACK)
    return float(np.sort(reference)[len(reference) - 1 - allowed])


def _crossfit(s: Floats, m: Bools, codes: Ints) -> Bools:
    """Whether each record [n] is classified rightly by the threshold that is best on the other half."""
    half = np.empty(len(s), dtype=np.intp)
    half[m], half[~m] = _halves(codes[m]), _halves(codes[~m])
    cuts = np.array([_best_threshold(s[half != h], m[half != h]) for h in (0, 1)])
    right: Bools = (s > cuts[half]) == m
    return right


def _best_threshold(s: Floats, m: Bools) -> float:
    """The best cut for balanced accuracy: a midpoint of neighbouring scores or an end; of several the middle one."""
    values = np.unique(np.nan_to_num(s))
    cuts = np.concatenate([[-np.inf], 0.5 * values[:-1] + 0.5 * values[1:], [np.inf]])
    above = [len(x) - np.searchsorted(np.sort(x), cuts, "right") for x in (s[m], s[~m])]
    gain = above[0] * (~m).sum() - above[1] * m.sum()  # integers, so that ties are exact
    best = np.flatnonzero(gain == gain.max())
    return float(cuts[best[(len(best) - 1) // 2]])


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


def _tprs_on(grid: Floats, ranks: Ints, m: Bools, weights: Iterable[Floats]) -> Floats:
    """TPR [r, g] on the grid [g] under each of r weights [n] of the records: scikit-learn's roc_curve, which would sort
    anew for each."""
    order = np.argsort(-ranks, kind="stable")
    last = np.flatnonzero(np.diff(ranks[order], append=-1))  # of every group of ties
    found = []
    for weight in weights:
        counts = (np.cumsum(np.where(kind, weight, 0.0)[order])[last] for kind in (m, ~m))
        tpr, fpr = (np.append(0.0, count / count[-1]) for count in counts)
        found.append(tpr[np.searchsorted(fpr, grid + _SLACK, "right") - 1])
    return np.array(found)
