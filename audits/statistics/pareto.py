"""Pareto fronts of utility (higher is better) against leakage (lower is better), and how sure a point is on one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

DRAWS = 2000


def on_front(utility: Floats, leakage: Floats) -> Bools:
    """Whether no other point is at least as good in both and better in one; arrays [..., P], the last axis the
    points."""
    u, leak = np.asarray(utility, dtype=float), np.asarray(leakage, dtype=float)
    found = np.empty(u.shape, dtype=bool)
    for i in range(u.shape[-1]):
        one_u, one_l = u[..., i : i + 1], leak[..., i : i + 1]
        better = (u >= one_u) & (leak <= one_l) & ((u > one_u) | (leak < one_l))
        found[..., i] = ~better.any(axis=-1)
    return found


def front_probability(
    utility: Floats, utility_se: Floats, leakage: Floats, leakage_se: Floats, *, seed: int = 0, draws: int = DRAWS
) -> Floats:
    """The share [P] of draws in which each point is on the front: a parametric bootstrap of normal errors, independent
    between points. Points that share their records err alike, so that the true front is surer than this says."""
    rng = np.random.default_rng(seed)
    u = np.asarray(utility) + np.asarray(utility_se) * rng.standard_normal((draws, len(utility)))
    leak = np.asarray(leakage) + np.asarray(leakage_se) * rng.standard_normal((draws, len(leakage)))
    share: Floats = on_front(u, leak).mean(axis=0)
    return share
