"""Mutual information and entropies that are known exactly or by simulation, in nats, for comparison with estimates."""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import xlogy
from scipy.stats import chi2, ncx2, norm

from fedaudit.audits.statistics.arrays import Floats
from fedaudit.audits.statistics.secfpp_distance import draws, gaussian_entropy, nodes

__all__ = ["by_simulation", "entropy", "flipped_bit", "gaussian_entropy", "gaussian_information", "shifted_gaussian"]


def gaussian_information(rho: float, pairs: int = 1) -> float:
    """MI of two Gaussian vectors whose coordinates are correlated by rho pair by pair: -(pairs / 2) ln(1 - rho²)."""
    return -pairs / 2 * math.log1p(-(rho**2))


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


def by_simulation(n: int, d: int, size: int, rng: np.random.Generator, *, inside: bool = True) -> tuple[float, float]:
    """MI(P; D²) as the mean of ln f(D² | P) - ln f(D²) over `size` draws of exact densities, and its standard error."""
    m, one = (n - 1 if inside else n), draws(n, d, size, rng, inside=inside)
    scaled = one.squared * (n**2 / (n - 1) if inside else n)  # a non-central chi-square given P
    conditional = ncx2.logpdf(scaled, d, m * (one.prompts**2).sum(axis=1))
    overall = chi2.logpdf(scaled / (m + 1), d) - math.log(m + 1)
    gains = conditional - overall
    return float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(size))
