"""Trade-off curves of Gaussian steps on Poisson samples, which differ from those of a Gaussian mechanism.

The family of mechanisms is the run of a ledger under any noise: the same samples and steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from fedaudit.audits.statistics.trade_off import Inverse, of_profile
from fedaudit.privacy.accountant import PoissonRun
from fedaudit.privacy.ledger import Ledger

TOLERANCE = 1e-3  # relative, of mu: a curve takes some tens of milliseconds
EPSILONS = tuple(np.linspace(0, 30, 601).tolist())  # a curve is the supremum over these epsilons, each with its delta


@dataclass(frozen=True)
class PoissonSampled:
    """The family of mechanisms (`trade_off.Family`) that are `run` with every shift times mu. For a ledger, mu is how
    far a record would move all steps together, in standard deviations, if every sample had it."""

    run: PoissonRun
    words = "Gaussian on Poisson samples"
    tolerance = TOLERANCE

    @classmethod
    def of(cls, ledger: Ledger) -> PoissonSampled:
        """The family of a ledger's run."""
        run = PoissonRun.of(ledger)
        return cls(run.scaled(1 / run.unsampled))

    def curve(self, mu: float) -> Inverse:
        return _curve(self.run, mu)

    def epsilon(self, mu: float, delta: float) -> float:
        return self.run.scaled(mu).epsilon(delta) if mu else 0.0

    def mu(self, epsilon: float, delta: float) -> float:
        """The mu of the mechanism that is (epsilon, delta)-DP and no better, up to `tolerance`; inf for an epsilon
        above the largest of EPSILONS."""
        if epsilon > EPSILONS[-1]:
            return math.inf
        return _crossing(lambda mu: self.run.scaled(mu).deltas((epsilon,))[0] - delta)


@functools.cache  # adversaries with equally many right guesses need the same curves
def _curve(run: PoissonRun, mu: float) -> Inverse:
    """The inverse trade-off curve (see `trade_off.Inverse`) of `run` with every shift times mu; 0 everywhere if mu is
    infinite."""
    if math.isinf(mu):
        return lambda _: 0.0  # nothing is promised
    return of_profile(EPSILONS, run.scaled(mu).deltas(EPSILONS))


def _crossing(over: Callable[[float], float]) -> float:
    """The positive number at which a growing function changes its sign, up to TOLERANCE."""
    high = 1.0
    while over(high) < 0:
        high *= 2
    return float(brentq(over, 0.0, high, rtol=TOLERANCE))
