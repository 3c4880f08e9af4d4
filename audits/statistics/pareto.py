"""Pareto fronts of utility (higher is better) against leakage (lower is better), and the probability to be on one."""

from __future__ import annotations

import numpy as np

from fedaudit.audits.statistics.arrays import Bools, Floats

DRAWS = 2000


def on_front(utility: Floats, leakage: Floats) -> Bools:
    """Whether each point is on the Pareto front [..., P]: no other one is at least as good in both and better in one.
    Arrays are [..., P] for P points."""
    u, leak = np.asarray(utility, dtype=float), np.asarray(leakage, dtype=float)
    front = np.empty(u.shape, dtype=bool)
    for i in range(u.shape[-1]):
        one_u, one_l = u[..., i : i + 1], leak[..., i : i + 1]
        better = (u >= one_u) & (leak <= one_l) & ((u > one_u) | (leak < one_l))
        front[..., i] = ~better.any(axis=-1)
    return front


def front_probability(
    utility: Floats, utility_se: Floats, leakage: Floats, leakage_se: Floats, *, seed: int = 0, draws: int = DRAWS
) -> Floats:
    """Share of draws [P] in which each point is on the front: a parametric bootstrap with normal errors that are
    independent between points. Points that share records err alike, so the true front is surer than this says."""
    rng = np.random.default_rng(seed)
    u = np.asarray(utility) + np.asarray(utility_se) * rng.standard_normal((draws, len(utility)))
    leak = np.asarray(leakage) + np.asarray(leakage_se) * rng.standard_normal((draws, len(leakage)))
    share: Floats = on_front(u, leak).mean(axis=0)
    return share
