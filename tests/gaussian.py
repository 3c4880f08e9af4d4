"""A second accountant for Gaussian mechanisms, in 60 digits."""

import mpmath
from scipy.optimize import brentq


def gaussian_epsilon(mu: float, delta: float = 1e-5) -> float:
    """Epsilon at `delta` of a Gaussian mechanism that a record moves by mu standard deviations (Balle and Wang 2018, theorem 8)."""

    def over(epsilon: float) -> float:
        with mpmath.workdps(60):
            found = mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)
            return float(mpmath.log(found) - mpmath.log(delta))

    return float(brentq(over, 1e-6, 1e5))
