"""Second accountants: for Gaussian mechanisms in 60 digits, for Poisson samples of them by convolving the privacy loss."""

import functools

import mpmath
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

CELLS = 2**16  # of the grid that a privacy loss is convolved on


def gaussian_epsilon(mu: float, delta: float = 1e-5) -> float:
    """Epsilon at `delta` of a Gaussian mechanism that a record moves by mu standard deviations (Balle and Wang 2018, theorem 8)."""

    def over(epsilon: float) -> float:
        with mpmath.workdps(60):
            found = mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)
            return float(mpmath.log(found) - mpmath.log(delta))

    return float(brentq(over, 1e-6, 1e5))


@functools.cache
def sampled_epsilon(mu: float, rate: float, steps: int, delta: float = 1e-5) -> float:
    """Epsilon at `delta` of Gaussian steps that move by mu with probability `rate`, the larger of both directions; 0 if
    delta alone is enough."""
    losses = [_composed(mu, rate, steps, present) for present in (True, False)]

    def over(epsilon: float) -> float:
        """E[(1 - exp(epsilon - L))+] - delta over the privacy loss L."""
        return max(float(np.sum(-np.expm1(np.minimum(0, epsilon - at)) * mass)) for at, mass in losses) - delta

    top = float(losses[0][0][-1])
    return float(brentq(over, 0, top, rtol=1e-9)) if over(0) > 0 else 0.0


def _composed(mu: float, rate: float, steps: int, present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of the privacy loss of all steps, under trainings with the record or without it.

    One step draws x from (1 - q) N(0, 1) + q N(mu, 1) or from N(0, 1); their log-ratio grows with x, so that the
    probability of a cell of the grid is a difference of normal distribution functions. The sum of the steps' losses is
    a power of the Fourier transform.
    """
    far = mu * np.sqrt(steps)
    reach = far**2 / 2 + 12 * far - steps * np.log1p(-min(rate, 0.999))
    width = 2 * reach / CELLS
    at = (np.arange(CELLS) - CELLS // 2) * width
    edges = np.append(at - width / 2, np.inf) * (1 if present else -1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = (edges + np.log1p(-(1 - rate) * np.exp(-edges)) - np.log(rate)) / mu + mu / 2  # nan: no x has less
    x = np.where(edges == np.inf, np.inf, np.where(np.isnan(x), -np.inf, x))
    below = (1 - rate) * norm.cdf(x) + rate * norm.cdf(x - mu) if present else norm.cdf(x)
    once = np.abs(np.diff(below))
    return at, np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(once)) ** steps, CELLS))
