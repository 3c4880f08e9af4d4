"""Mutual information of a prompt and its distance to a cluster's centre: SecFPP's Theorem 1, as printed and exactly.

Hou et al. 2025, section 4.3 and Figure 2, with the paper's N(0, I_d) prompts, n of them in a cluster. All in nats.

`inside`: the prompt is one of the n. Given the prompt P the squared distance D² is a scaled non-central chi-square with
d degrees of freedom, whose non-centrality depends on P by |P|² alone: |P|² is sufficient, and the information is an
integral over one number.

The printed equation (3) takes the expected logarithm E[ln X] of a chi-square (Moser 2020, theorem 1) where the
conditional entropy is -E[ln f(X)]. It grows with d and hardly depends on n; the exact value hardly depends on d and
grows with n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammaln
from scipy.stats import chi, ncx2

from fedaudit.audits.statistics.arrays import Floats

_NODES = 400
_REACH = 10.0  # a density is 0 so many standard deviations from its mean


class Draws(NamedTuple):
    """Prompts [m, d], the centre of each one's own cluster [m, d], and the squared distances between them [m]."""

    prompts: Floats
    centres: Floats
    squared: Floats


def exact(n: int, d: int, *, inside: bool = True) -> float:
    """MI(P; D²) = ln(r) + h(chi²_d) - E h(chi²_d(m |P|²)), the expectation over |P|² ~ chi²_d.

    Inside D² = ((n-1)/n)² |P - Q|² for the mean Q of the n - 1 others: m = n - 1, r = n; outside Q is the centre of all
    n: m = n, r = n + 1.
    """
    m = n - 1 if inside else n
    lengths, weight = nodes(*_within(chi.mean(d), chi.std(d)))
    conditional = _entropy_of_squares(d, m * lengths**2)
    return math.log(m + 1) + chi2_entropy(d) - float((weight * chi.pdf(lengths, d)) @ conditional)


def centre(n: int, d: int, *, inside: bool = True) -> float:
    """MI(P; centre): (d/2) ln(n/(n-1)) inside, 0 outside."""
    return d / 2 * math.log(n / (n - 1)) if inside else 0.0


def printed(n: int, d: int, *, inside: bool = True) -> float:
    """The paper's equation (3) as it stands, c = 2 ln((n-1)/n); outside (appendix B) without c.

    The integral of ln 2 + g_{d/2}(|p|²/2), or h_d for odd d, is E[ln |P + X|²] for independent P, X ~ N(0, I_d), which
    is ln 4 + psi(d/2).
    """
    logarithm = math.log(4) + float(digamma(d / 2))
    return chi2_entropy(d) + logarithm + (2 * math.log((n - 1) / n) if inside else 0.0)


def chi2_entropy(d: int) -> float:
    """Entropy of a chi-square with d degrees of freedom, equation (5)."""
    return float(math.log(2) + gammaln(d / 2) + (1 - d / 2) * digamma(d / 2) + d / 2)


def gaussian_entropy(d: int, std: float = 1.0) -> float:
    """Differential entropy of N(0, std² I_d): (d / 2) ln(2 pi e std²)."""
    return d / 2 * math.log(2 * math.pi * math.e * std**2)


def draws(n: int, d: int, size: int, rng: np.random.Generator, *, inside: bool = True) -> Draws:
    """`size` independent prompts, each with the centre of an own cluster of n. The other n - 1 prompts of a cluster
    (`inside` False: n others, without the prompt) are drawn as their mean."""
    prompts, others = rng.normal(size=(size, d)), rng.normal(size=(size, d))
    centres = prompts / n + others * (math.sqrt(n - 1) / n) if inside else others / math.sqrt(n)
    return Draws(prompts, centres, ((prompts - centres) ** 2).sum(axis=1))


def _entropy_of_squares(d: int, noncentrality: Floats) -> Floats:
    """Entropies [m] in nats of chi-squares X with d degrees of freedom and these noncentralities [m], computed by the
    root U, whose density 2 u f(u²) is smooth at 0: h(X) = -∫ of it times ln f(u²)."""
    mean = np.sqrt(noncentrality + d)
    roots, weight = nodes(*_within(mean, 1.0))  # no root of a non-central chi-square varies more than N(0, 1)
    log_f = ncx2.logpdf(roots**2, d, noncentrality[:, None])
    inside = np.isfinite(log_f)
    terms = np.where(inside, 2 * roots * np.exp(np.where(inside, log_f, 0)) * np.where(inside, log_f, 0), 0.0)
    entropies: Floats = -(weight * terms).sum(axis=-1)
    return entropies


def _within(mean: npt.ArrayLike, std: float) -> tuple[Floats, Floats]:
    """The ends between which a density of a positive number is integrated."""
    middle = np.asarray(mean, dtype=float)
    return np.maximum(middle - _REACH * std, 0.0), middle + _REACH * std


def nodes(low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Gauss and Legendre's nodes and weights of an integral from low to high, along a new last axis."""
    x, w = np.polynomial.legendre.leggauss(_NODES)
    a, b = np.asarray(low, dtype=float)[..., None], np.asarray(high, dtype=float)[..., None]
    return a + (b - a) * (x + 1) / 2, (b - a) / 2 * w
