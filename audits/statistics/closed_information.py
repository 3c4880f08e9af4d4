"""Mutual information and entropies that are known exactly, in nats, for comparison with estimates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy
from scipy.stats import norm

from audits.statistics.arrays import Floats

_NODES = 400


def gaussian_information(rho: float, pairs: int = 1) -> float:
    """MI of two Gaussian vectors whose coordinates are correlated by rho pair by pair: -(pairs / 2) ln(1 - rho²)."""
    return -pairs / 2 * math.log1p(-(rho**2))


def gaussian_entropy(d: int, std: float = 1.0) -> float:
    """Differential entropy of N(0, std² I_d): (d / 2) ln(2 pi e std²)."""
    return d / 2 * math.log(2 * math.pi * math.e * std**2)


def flipped_bit(flip: float) -> float:
    """MI of a fair bit with the same bit after it was flipped with probability `flip`: ln 2 - H(flip)."""
    return math.log(2) + float(xlogy(flip, flip) + xlogy(1 - flip, 1 - flip))


def shifted_gaussian(shift: float) -> float:
    """MI of a fair bit with N(0, 1) shifted by bit · shift: the entropy of the mixture of both less that of N(0, 1)."""
    reach = 10.0

    def density(s: Floats) -> Floats:
        mixture: Floats = (norm.pdf(s) + norm.pdf(s - shift)) / 2
        return mixture

    return entropy(density, -reach, shift + reach) - gaussian_entropy(1)


def entropy(density: Callable[[Floats], Floats], low: float, high: float) -> float:
    """-∫ f ln f by Gauss and Legendre's nodes, for a smooth density f that is 0 outside [low, high]."""
    at, weight = nodes(low, high)
    f = density(at)
    return -float(weight @ xlogy(f, f))


def nodes(low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Gauss and Legendre's nodes and weights of an integral from low to high, along a new last axis."""
    x, w = np.polynomial.legendre.leggauss(_NODES)
    a, b = np.asarray(low, dtype=float)[..., None], np.asarray(high, dtype=float)[..., None]
    return a + (b - a) * (x + 1) / 2, (b - a) / 2 * w
