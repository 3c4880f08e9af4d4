"""Likelihood of a value under models trained with a record, and without it, from few models of many records.

Each record i has values x under the shadow models with it and under those without it, both normal with a mean and a
variance of their own. A few models tell little about these, but there are many records. So mean and variance have a
conjugate prior, fitted to all records (empirical Bayes):

    sigma_i^2 ~ InvGamma(d/2, d s^2/2)        d, s^2 by the moments of the log sample variances of all records (Smyth
                                              2004, Linear models and empirical Bayes, section 6.2): their mean, and
                                              their variance beyond what chi-squared explains; d = inf if there is none
    mu_i | sigma_i^2 ~ N(c_i, sigma_i^2/k_i)  without the record flat, k = 0; with it c_i = mean without it + mean shift
                                              of all records, and sigma^2/k is the variance of shifts between records
                                              beyond what errors of the means explain, plus the error of c_i

For m values with mean x and squared deviations Q the posterior predictive is Student's t with f degrees of freedom,
location l and scale w:

    f = d + m - [k = 0],    l = (k c + m x)/(k + m)
    w^2 = (d s^2 + Q + (x - c)^2 k m/(k + m))/f * (k + m + 1)/(k + m)

(Murphy 2007, Conjugate Bayesian analysis of the Gaussian distribution, eqs. 85-88 and 110, with alpha = d/2 and
beta = d s^2/2; a flat mean costs one degree of freedom). This replaces a switch from one variance to many (Brännvall
2026, arXiv:2603.11799): if records are alike, d is large and all share one variance; with many values each has its own.
That paper has one k and one c; here each record has its own c, because records differ more in difficulty than in what
training on them changes.

The other clients of its federation make a model more or less sure of all records than the shadows are, and let it
deviate more or less from them. That is no sign of membership, but thresholds set on shadows then fit it badly. Known
non-members under the same model tell how much, and `on_one_scale` corrects it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import polygamma, psi
from scipy.stats import norm, t

from fedaudit.attacks.knowledge import Floats

SMALLEST = 1e-6  # least standard deviation: the precision of float32; equal values get a large finite score
LARGEST_FREEDOM = 1e4  # degrees of freedom of the prior above which all records share one variance
STEPS = 50  # most steps of Newton's method, each of which doubles the digits
FEWEST = 20  # known non-members from which a model's spread is estimated, with a relative error of a sixth


def likelihood_ratios(
    target: Floats, shadows: Floats, member: NDArray[np.bool_], *, variance: str = "prior"
) -> tuple[Floats, Floats]:
    """Log-likelihood ratio [n] (with the record against without it), and standardised distance [n] from the shadows
    without the record. `target` [n] are values under the attacked model, `shadows` [S, n] those under the shadows,
    `member` [S, n] tells which shadows were trained on a record.

    `variance`: "prior" as in the module's docstring. The others are normal, without a prior, and unbiased: "fixed" has
    one variance for all records, "per-record" one for each (the fixed one for a record with a single value).
    """
    inside, outside = (Values.of(shadows, used) for used in (member, ~member))
    if variance == "prior":
        without = outside.predictive(*outside.variances())
        within = inside.predictive(*inside.variances(), outside)
        return t.logpdf(target, *within) - t.logpdf(target, *without), (target - without[1]) / without[2]
    each = variance == "per-record"
    (mean_in, std_in), (mean_out, std_out) = ((one.mean, one.deviation(per_record=each)) for one in (inside, outside))
    online = norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out)
    return online, (target - mean_out) / std_out


def on_one_scale(
    target: Floats, shadows: Floats, member: NDArray[np.bool_], nonmember: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """`target` [n] and `shadows` [S, n], values under the attacked model and under shadow models, centred and scaled
    model by model, by the records that are known non-members, `nonmember` [n].

    Each value is split into the mean of the shadows without the record and this model's deviation from it. A model's
    deviations are shifted to mean 0 over the known non-members, and scaled to the shadows' average standard deviation.
    NaN for records that all shadows were trained on. With fewer than FEWEST known non-members nothing is changed.
    """
    expected = Values.of(shadows, ~member).mean
    deviation = np.vstack([target, shadows]) - expected
    usable = nonmember & np.isfinite(deviation).all(0)
    if usable.sum() < FEWEST:
        return target, shadows
    level, spread = deviation[:, usable].mean(1, keepdims=True), deviation[:, usable].std(1, keepdims=True)
    common = max(float(spread[1:].mean()), SMALLEST)
    scaled = expected + (deviation - level) * common / np.maximum(spread, SMALLEST)
    return scaled[0], scaled[1:]


@dataclass(frozen=True, eq=False)
class Values:
    """Count, mean and squared deviations of the values of each of n records; symbols as in the module's docstring."""

    count: NDArray[np.int64]  # m, [n]
    mean: Floats  # x, [n], NaN without values
    squares: Floats  # Q, [n], sum of the squared deviations from the mean

    @staticmethod
    def of(values: Floats, used: NDArray[np.bool_]) -> Values:
        """Count, mean and squared deviations over S of values [S, n] of n records, only those where `used` [S, n] is
        true and that are not NaN; a mean of none is NaN."""
        used = used & ~np.isnan(values)
        count = used.sum(0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            mean = np.where(used, values, 0.0).sum(0) / count
            return Values(count, mean, np.where(used, (values - mean) ** 2, 0.0).sum(0))

    def deviation(self, *, per_record: bool) -> Floats:
        """Standard deviations [n] without a prior, the common one n times or, if `per_record`, each record's own (the
        common one if it has a single value); NaN if no record has two values."""
        freedom = np.maximum(self.count - 1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0
            common = self.squares.sum() / freedom.sum()
            each = np.where(freedom > 0, self.squares / freedom, common)
        return np.maximum(np.sqrt(each if per_record else np.full(len(each), common)), SMALLEST)

    def variances(self) -> tuple[float, float]:
        """Degrees of freedom d and scale s^2 of the prior of the records' variances, fitted to these values; d = inf:
        one variance for all records; (inf, NaN) if no record has two values."""
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

    def shrunk_variances(self, d: float, s2: float) -> Floats:
        """Posterior variance [n] of each record, given the prior (d, s^2) of variances."""
        freedom = np.maximum(self.count - 1, 0)
        return np.full(len(freedom), s2) if np.isinf(d) else (d * s2 + self.squares) / (d + freedom)

    def predictive(self, d: float, s2: float, without: Values | None = None) -> tuple[Floats, Floats, Floats]:
        """Degrees of freedom, location and scale, [n] each, of the predictive distribution of a further value.
        `without`: values of the models without the record, around whose mean the prior of the means is centred; None:
        flat. The location is NaN for records without values."""
        m = self.count
        c, k = (self.mean, np.zeros(len(m))) if without is None else self._centre(self.shrunk_variances(d, s2), without)
        with np.errstate(invalid="ignore", divide="ignore"):  # records without values
            location = (k * c + m * self.mean) / (k + m)
            squares = self.squares + (self.mean - c) ** 2 * k * m / (k + m)
            freedom = d + m - (k == 0)
            variance = np.full(len(m), s2) if np.isinf(d) else (d * s2 + squares) / freedom
            scale = np.sqrt(variance * (k + m + 1) / (k + m))
        return freedom, location, np.maximum(scale, SMALLEST)

    def _centre(self, variance: Floats, without: Values) -> tuple[Floats, Floats]:
        """The centre c [n] and the weight k [n], in values, of the prior of the means, given each record's posterior
        `variance` [n]. k is 0 if no record has values of both kinds of models."""
        shift, both = self.mean - without.mean, (self.count > 0) & (without.count > 0)
        if not both.any():
            return self.mean, np.zeros(len(both))
        error = np.full(len(both), np.nan)
        error[both] = without.shrunk_variances(*without.variances())[both] / without.count[both]
        spread = shift[both].var(ddof=1) if both.sum() > 1 else 0.0
        between = max(0.0, float(spread - (variance[both] / self.count[both] + error[both]).mean()))
        k = np.maximum(variance, SMALLEST**2) / np.maximum(between + error, SMALLEST**2)
        return without.mean + shift[both].mean(), k


def _trigamma_inverse(y: float) -> float:
    """Solve trigamma(x) = y for x > 0, y > 0, by Newton's method on the reciprocal, which is convex (Smyth 2004)."""
    x = 0.5 + 1 / y
    for _ in range(STEPS):
        value = float(polygamma(1, x))
        step = value * (1 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-12 * x:
            break
    return x
