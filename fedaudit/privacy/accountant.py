"""The epsilon that a run's noise proves, and the noise that an epsilon takes: Gaussian mechanisms, by dp_accounting.

A record that takes part in every step of a joint release moves it by mu = sqrt(sum of squared shifts) standard
deviations: the composition is one Gaussian mechanism (Dong, Roth, Su 2022, corollary 3.3), whose epsilon at delta is
exact (Balle and Wang 2018). For Poisson sampling the library's privacy loss distributions are used, which round up.
Only the inverse of a privacy loss is computed here, for all numbers at once, as the library does it one by one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.privacy.ledger import Exposure, Json, Ledger, participations, sampling_rate, strict
from fedaudit.privacy.settings import Privacy

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType

GRID = 1e-4  # of the privacy loss distribution, the library's default; a finer one lowers an epsilon of 0.01 by 1 %
COARSE = 1e-3  # of curves, as a multiple of mu without sampling: they need fewer digits; it rounds up too
# above it epsilon proves nothing, and the gain from sampling is not computed: the library would overflow
LARGEST = 1e6
TOLERANCE = 1e-4  # calibrated noise exceeds the smallest sufficient noise by at most this share


@dataclass(frozen=True)
class Provable:
    """An upper bound of epsilon, and a sentence on what it is based on."""

    epsilon: float
    why: str

    def to_json(self) -> Json:
        """Strict JSON: an infinite epsilon is the string "inf"."""
        return {"epsilon": strict(self.epsilon), "why": self.why}


def nominal_std(*, sensitivity: float, steps: int, epsilon: float, delta: float) -> float:
    """Standard deviation of the noise by DP-FPL's theorem 3.3 with c = 1: S sqrt(T ln(1/delta)) / epsilon, with S =
    `sensitivity` and T = `steps`; 0 for an infinite epsilon."""
    return 0.0 if math.isinf(epsilon) else sensitivity * math.sqrt(steps * math.log(1 / delta)) / epsilon


def noise_stds(
    privacy: Privacy, sensitivities: Mapping[str, float], *, steps: Sequence[int], batch: int, records: Sequence[int]
) -> dict[str, float]:
    """Standard deviation of the noise, {release: std}, that the settings ask for, the same for all clients of a run.

    sensitivities: every release (noised tensor) that one record affects in a step. steps, records: each client's number
    of steps and n_i. Nominal noise takes each release alone, with the largest number of steps as T; calibrated noise, a
    common multiple of the sensitivities, is the smallest that proves epsilon for all releases together, for the most
    exposed client.
    """
    if privacy.sigma == "nominal":
        return {
            name: nominal_std(sensitivity=far, steps=max(steps), epsilon=privacy.epsilon, delta=privacy.delta)
            for name, far in sensitivities.items()
        }
    if privacy.sampler == "poisson":
        taken = {(t, sampling_rate(records=n, batch=batch)) for t, n in zip(steps, records, strict=True)}
    else:
        taken = {(participations(steps=t, records=n, batch=batch), 1.0) for t, n in zip(steps, records, strict=True)}
    worst = [one for one in taken if not any(one != t and one[0] <= t[0] and one[1] <= t[1] for t in taken)]
    n, budget = len(sensitivities), {"epsilon": privacy.epsilon, "delta": privacy.delta}
    largest = max(noise_multiplier(n, times=times, rate=rate, **budget) for times, rate in worst)
    return {name: largest * far for name, far in sensitivities.items()}


def noise_to_signal(*, std: float, dimension: int, signal: float) -> float:
    """Root mean square length of the noise over `signal`, the length of the clipped mean gradient; if that is 0,
    infinite, or 0 without noise."""
    noise = std * math.sqrt(dimension)
    return noise / signal if signal > 0 else (math.inf if noise > 0 else 0.0)


def provable(
    ledger: Ledger,
    *,
    threat_model: str,
    whose: str = "own",
    delta: float,
    relation: str = "zero-out",
    every_step: bool = False,
) -> Provable:
    """Upper bound of epsilon at `delta` per record, for the most exposed client, against the view of `threat_model`: 0
    if no such record reaches the view, infinite if one reaches it without noise.

    whose: "own" for a record of the attacked client, "other" for one of another client. every_step: assume that each
    record was in every step, as DP-FPL's theorem does; otherwise the steps that really ran count. relation: "zero-out"
    or "replace". ValueError: "replace" with Poisson sampling, unless `every_step`.
    """
    observed = ledger.view(threat_model, whose=whose)
    if observed.clear:
        return Provable(math.inf, f"unbounded: {observed.clear}")
    if not ledger.exposures:
        return Provable(0.0, "no client took part")
    if not observed.releases:
        return Provable(0.0, f"no such record reaches this view: {observed.why}")
    sampled = ledger.sampler == "poisson" and not every_step
    if sampled and relation == "replace":
        raise ValueError(
            "relation must be zero-out for Poisson sampling, not replace: no proven worst case is known for replacing "
            "a record there; counting every step (every_step) bounds both"
        )
    shifts = [math.hypot(*(m.shift(relation) for m in step)) for step in ledger.steps]
    each = [_epsilon(ledger, exposure, shifts, delta, sampled, every_step) for exposure in ledger.exposures]
    worst = max(range(len(each)), key=each.__getitem__)
    return Provable(each[worst], f"{observed.why}: {_counted(ledger, ledger.exposures[worst], sampled, every_step)}")


@dataclass(frozen=True)
class PoissonRun:
    """Gaussian steps on Poisson samples, all releases jointly, for the most exposed clients."""

    clients: tuple[tuple[tuple[tuple[float, int], ...], float], ...]  # per client: its steps (mu, count), and its rate

    @classmethod
    def of(cls, ledger: Ledger) -> PoissonRun:
        """The run in a ledger, as steps and sampling rate of its most exposed clients: one with no more steps, and no
        higher rate, than another is left out."""
        shifts = [math.hypot(*(m.shift("zero-out") for m in step)) for step in ledger.steps]
        each = {(e.steps, sampling_rate(records=e.records, batch=ledger.batch)) for e in ledger.exposures}
        worst = sorted(one for one in each if not any(one != other and _covers(other, one) for other in each))
        return cls(tuple((tuple(zip(shifts, steps, strict=True)), rate) for steps, rate in worst))

    @property
    def unsampled(self) -> float:
        """The mu of all steps of a client together, as if its records were in every batch; the largest over the
        clients."""
        return max(math.sqrt(sum(count * mu**2 for mu, count in steps)) for steps, _ in self.clients)

    def scaled(self, factor: float) -> PoissonRun:
        """The run with every shift multiplied by `factor`."""
        return PoissonRun(
            tuple((tuple((factor * mu, count) for mu, count in steps), rate) for steps, rate in self.clients)
        )

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of the most exposed client."""
        return max(_sampled_epsilon(steps, rate, delta) for steps, rate in self.clients)

    def deltas(self, epsilons: Sequence[float]) -> list[float]:
        """Upper bounds of delta at each of `epsilons`, which must increase: the largest over the clients."""
        each = [_sampled_deltas(steps, rate, tuple(epsilons)) for steps, rate in self.clients]
        return [max(deltas) for deltas in zip(*each, strict=True)]


def _covers(one: tuple[tuple[int, ...], float], other: tuple[tuple[int, ...], float]) -> bool:
    return one[1] >= other[1] and all(a >= b for a, b in zip(one[0], other[0], strict=True))


def _epsilon(
    ledger: Ledger, exposure: Exposure, shifts: Sequence[float], delta: float, sampled: bool, every_step: bool
) -> float:
    if sampled:
        rate = sampling_rate(records=exposure.records, batch=ledger.batch)
        return _sampled_epsilon(tuple(zip(shifts, exposure.steps, strict=True)), rate, delta)
    # the steps of a record are unknown: take those that shift most
    left = sum(exposure.steps) if every_step else exposure.times
    square = 0.0
    for shift, count in sorted(zip(shifts, exposure.steps, strict=True), reverse=True):
        square += min(left, count) * shift**2
        left -= min(left, count)
    return gaussian_epsilon(math.sqrt(square), delta)


def _counted(ledger: Ledger, exposure: Exposure, sampled: bool, every_step: bool) -> str:
    total = sum(exposure.steps)
    if sampled:
        rate = sampling_rate(records=exposure.records, batch=ledger.batch)
        return f"in each of {total} steps with probability {rate:.3g} (Poisson sampling)"
    return f"in each of {total} steps" if every_step else f"in at most {exposure.times} of {total} steps"


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon, at `delta`, of one Gaussian mechanism that a record shifts by mu standard deviations; 0 for a mu of
    0."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0


@functools.cache  # the views of all threat models have the same clients
def _sampled_epsilon(steps: tuple[tuple[float, int], ...], rate: float, delta: float) -> float:
    """Epsilon, at `delta`, of Gaussian steps (mu, count) together, each on a Poisson sample of `rate`.

    At most that without sampling, as the divergence is jointly convex. If that is large, the grid is coarser in
    proportion, because the library's memory grows with epsilon / grid.
    """
    always = gaussian_epsilon(math.sqrt(sum(count * mu**2 for mu, count in steps)), delta)
    if rate == 1 or not 0 < always <= LARGEST:
        return always
    losses = _sampled(steps, rate, grid=GRID * max(1.0, always / 10))
    if losses.get_delta_for_epsilon(0.0) <= delta:  # the library would overflow here
        return 0.0
    return min(always, float(losses.get_epsilon_for_delta(delta)))


def _sampled(steps: tuple[tuple[float, int], ...], rate: float, *, grid: float) -> PrivacyLossDistribution:
    """The privacy loss distribution, on a grid of that step, of Gaussian steps (mu, count), each on a Poisson sample of
    `rate`; both for the training with the record and without it."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, identity
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType

    losses = identity(grid)
    for mu, count in steps:
        if mu > 0 and count:
            once = [_loss(mu, rate, adjacency, grid) for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD)]
            losses = losses.compose(PrivacyLossDistribution(*once).self_compose(count))
    return losses


def _loss(mu: float, rate: float, adjacency: AdjacencyType, grid: float) -> PLDPmf:
    """The privacy loss, on a grid of that step, of one Gaussian step on a Poisson sample of `rate`, as
    `from_gaussian_mechanism` computes it: connected dots (Doroshenko et al. 2022)."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    step = GaussianPrivacyLoss(1 / mu, sampling_prob=rate, adjacency_type=adjacency)
    ends = step.connect_dots_bounds()
    low, high = math.floor(ends.epsilon_lower / grid), math.ceil(ends.epsilon_upper / grid)
    epsilon = np.arange(low, high + 1) * grid
    # x whose loss is epsilon: where +-epsilon = log(1 - q + q exp(l)), the loss without sampling is +-l; none is enough
    # for an epsilon beyond +-log(1 - q)
    sign, q = (-1, rate) if adjacency is AdjacencyType.ADD else (1, rate)
    exponent = sign * epsilon - np.log(q)
    with np.errstate(divide="ignore"):
        unsampled = sign * (exponent + np.log1p(-np.exp(np.minimum(np.log1p(-q) - np.log(q) - exponent, 0))))
    x = (0.5 if adjacency is AdjacencyType.ADD else -0.5) - unsampled / mu**2
    delta = np.clip(step.mu_upper_cdf(x) - np.exp(epsilon + step.mu_lower_log_cdf(x)), 0, 1)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, delta)


@functools.cache
def _sampled_deltas(steps: tuple[tuple[float, int], ...], rate: float, epsilons: tuple[float, ...]) -> list[float]:
    """Deltas at the given epsilons, which grow, of Gaussian steps (mu, count) together, each on a Poisson sample of
    `rate`."""
    always = math.sqrt(sum(count * mu**2 for mu, count in steps))
    if not always:
        return [0.0] * len(epsilons)
    losses = _sampled(steps, rate, grid=COARSE * always)
    return [float(delta) for delta in losses.get_delta_for_epsilon(epsilons)]


@functools.cache
def noise_multiplier(releases: int, *, epsilon: float, delta: float, times: int, rate: float) -> float:
    """The smallest standard deviation of the noise over sensitivity, the same for each of a step's releases, of which
    there are `releases`, that proves (epsilon, delta); 0 for an infinite epsilon or no steps.

    times: steps that a record takes part in; with `rate` below 1, steps in each of which it takes part with that
    probability (Poisson).
    """
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    if math.isinf(epsilon) or not times:
        return 0.0
    high = math.sqrt(releases * times) * float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)  # 1e-8: rounding
    if rate == 1:
        return high
    low = 0.0
    while high - low > TOLERANCE * high:  # high always proves epsilon, with the noise of no sampling to start from
        middle = (low + high) / 2
        enough = _sampled_epsilon(((math.sqrt(releases) / middle, times),), rate, delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high
