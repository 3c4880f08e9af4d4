"""Is a number that of a model with the record, or of one without it: likelihoods by few models, of many records.

Each record i has values x under the shadow models with it and under those without it, each kind normal with a mean and
a variance of its own. Few models say little of these, but there are many records. So both have a conjugate prior,
fitted to all records (empirical Bayes):

    sigma_i^2 ~ InvGamma(d/2, d s^2/2)        d, s^2 by the moments of log of the records' sample variances (Smyth 2004,
                                              Linear models and empirical Bayes, section 6.2): their mean, and what they
                                              vary by beyond what chi-squared explains; d = inf where that is nothing
    mu_i | sigma_i^2 ~ N(c_i, sigma_i^2/k_i)  without the record flat, k = 0; with it c_i = mean without it + shift, the
                                              mean shift of all records, and sigma^2/k is how much shifts vary between
                                              records beyond what the means' errors explain, with the error of c_i

Of m values with mean x and squared deviations Q the posterior predictive is Student's t: with f degrees of freedom,
location l and scale w,

    f = d + m - [k = 0],    l = (k c + m x)/(k + m)
    w^2 = (d s^2 + Q + (x - c)^2 k m/(k + m))/f * (k + m + 1)/(k + m)

(Murphy 2007, Conjugate Bayesian analysis of the Gaussian distribution, eqs. 85-88 and 110, with alpha = d/2 and
beta = d s^2/2; a flat mean takes one degree of freedom). That replaces a switch from one variance to many (Brännvall
2026, arXiv:2603.11799): where records are alike d is large and all have one variance, and many values leave each its
own. k is one number in that paper; here c is of each record, because records differ more in how hard they are than in
what training on them changes.

A model is surer or less sure of all records than the shadows are, and strays further from them or less, by whom it was
trained among: no sign of membership, but enough that a threshold of the shadows' fits it badly. Known non-members under
the same model tell how much, and `on_one_scale` takes it away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import polygamma, psi
from scipy.stats import norm, t

from attacks.knowledge import Floats

SMALLEST = 1e-6  # scale: less is not known from float32, and equal values shall give a large finite score
LARGEST_FREEDOM = 1e4  # of a prior: with more all records have one variance
STEPS = 50  # of Newton's method, which doubles the digits
FEWEST = 20  # known non-members whose spread is taken for that of a model: it is off by a sixth


def likelihood_ratios(
    target: Floats, shadows: Floats, member: NDArray[np.bool_], *, variance: str = "prior"
) -> tuple[Floats, Floats]:
    """Log-likelihood ratio, and standardised distance from the values without the record, [n] each, of values [n] under
    the attacked model and [S, n] under the shadows, of which some had the record [S, n].

    `variance`: "prior" as above; normal and without any prior "fixed", one variance of the deviations from each
    record's own mean, or "per-record" (one with a single value takes the fixed one), both unbiased.
    """
    inside, outside = (Values.of(shadows, used) for used in (member, ~member))
    if variance == "prior":
        without = outside.predictive(*outside.variances())
        within = inside.predictive(*inside.variances(), outside)
        return t.logpdf(target, *within) - t.logpdf(target, *without), (target - without[1]) / without[2]
    own = variance == "per-record"
    (mean_in, std_in), (mean_out, std_out) = ((one.mean, one.deviation(per_record=own)) for one in (inside, outside))
    online = norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out)
    return online, (target - mean_out) / std_out


def on_one_scale(
    target: Floats, shadows: Floats, member: NDArray[np.bool_], known: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Values [n] and [S, n] with each model's own level and spread taken out.

    A value is what the shadows without the record have on average, plus what this model is off by. Of the offs of every
    model the mean over the known non-members [n] becomes 0, their standard deviation that of the shadows on average.
    Records that all shadows had are nan. With fewer than FEWEST known non-members nothing is changed.
    """
    expected = Values.of(shadows, ~member).mean
    off = np.vstack([target, shadows]) - expected
    usable = known & np.isfinite(off).all(0)
    if usable.sum() < FEWEST:
        return target, shadows
    level, spread = off[:, usable].mean(1, keepdims=True), off[:, usable].std(1, keepdims=True)
    usual = max(float(spread[1:].mean()), SMALLEST)
    moved = expected + (off - level) * usual / np.maximum(spread, SMALLEST)
    return moved[0], moved[1:]


@dataclass(frozen=True, eq=False)
class Values:
    """Some values of each of n records."""

    count: NDArray[np.int64]  # [n], m
    mean: Floats  # [n], nan without any
    squares: Floats  # [n], of the deviations from it, Q

    @staticmethod
    def of(values: Floats, used: NDArray[np.bool_]) -> Values:
        """The used ones of values [S, n] that are numbers."""
        used = used & ~np.isnan(values)
        count = used.sum(0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            mean = np.where(used, values, 0.0).sum(0) / count
            return Values(count, mean, np.where(used, (values - mean) ** 2, 0.0).sum(0))

    def deviation(self, *, per_record: bool) -> Floats:
        """Standard deviations [n] without a prior; nan where nothing is known of any."""
        freedom = np.maximum(self.count - 1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0
            common = self.squares.sum() / freedom.sum()
            own = np.where(freedom > 0, self.squares / freedom, common)
        return np.maximum(np.sqrt(own if per_record else np.full(len(own), common)), SMALLEST)

    def variances(self) -> tuple[float, float]:
        """d and s^2 of the prior of the variances; inf and nan where no record has two values."""
        freedom, squares = (each[self.count > 1] for each in (self.count - 1.0, self.squares))
        if not len(freedom):
            return np.inf, np.nan
        common = max(float(squares.sum() / freedom.sum()), SMALLEST**2)
        logs = np.log(np.maximum(squares / freedom, SMALLEST**2)) - psi(freedom / 2) + np.log(freedom / 2)
        if len(logs) < 2 or (beyond := float(logs.var(ddof=1) - polygamma(1, freedom / 2).mean())) <= 0:
            return np.inf, common
        half = _trigamma_inverse(beyond)
        if 2 * half > LARGEST_FREEDOM:
            return np.inf, common
        return 2 * half, float(np.exp(logs.mean() + psi(half) - np.log(half)))

    def shrunk(self, d: float, s2: float) -> Floats:
        """Each record's variance [n] by its values and the prior of the variances."""
        freedom = np.maximum(self.count - 1, 0)
        return np.full(len(freedom), s2) if np.isinf(d) else (d * s2 + self.squares) / (d + freedom)

    def predictive(self, d: float, s2: float, without: Values | None = None) -> tuple[Floats, Floats, Floats]:
        """Degrees of freedom, location and scale [n] of what a further value is like; `without`: the values of models
        without the record, near whose mean theirs is."""
        m = self.count
        c, k = (self.mean, np.zeros(len(m))) if without is None else self._centre(self.shrunk(d, s2), without)
        with np.errstate(invalid="ignore", divide="ignore"):  # of records without values
            location = (k * c + m * self.mean) / (k + m)
            own = self.squares + (self.mean - c) ** 2 * k * m / (k + m)
            freedom = d + m - (k == 0)
            variance = np.full(len(m), s2) if np.isinf(d) else (d * s2 + own) / freedom
            scale = np.sqrt(variance * (k + m + 1) / (k + m))
        return freedom, location, np.maximum(scale, SMALLEST)

    def _centre(self, variance: Floats, without: Values) -> tuple[Floats, Floats]:
        """c and k [n] of the prior of means; `variance` [n] is of each record's values."""
        shift, both = self.mean - without.mean, (self.count > 0) & (without.count > 0)
        if not both.any():
            return self.mean, np.zeros(len(both))
        error = np.full(len(both), np.nan)
        error[both] = without.shrunk(*without.variances())[both] / without.count[both]
        spread = shift[both].var(ddof=1) if both.sum() > 1 else 0.0
        between = max(0.0, float(spread - (variance[both] / self.count[both] + error[both]).mean()))
        k = np.maximum(variance, SMALLEST**2) / np.maximum(between + error, SMALLEST**2)
        return without.mean + shift[both].mean(), k


def _trigamma_inverse(y: float) -> float:
    """The x > 0 whose trigamma is y > 0, by Newton's method on its reciprocal, a convex function (Smyth 2004)."""
    x = 0.5 + 1 / y
    for _ in range(STEPS):
        value = float(polygamma(1, x))
        step = value * (1 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-12 * x:
            break
    return x
