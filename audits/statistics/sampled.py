"""Trade-off curves of Gaussian steps on Poisson samples, which are no Gaussian mechanism's.

The family that a test of a curve searches is a run as its ledger has it with another noise: the same samples and steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from audits.statistics.trade_off import Inverse, of_profile
from fedaudit.privacy.accountant import PoissonRun
from fedaudit.privacy.ledger import Ledger

TOLERANCE = 1e-3  # of mu: a curve takes some tens of milliseconds
EPSILONS = tuple(np.linspace(0, 30, 601).tolist())  # a curve is the supremum of so many pairs (epsilon, delta)


@dataclass(frozen=True)
class PoissonSampled:
    """`run` with every shift times mu. Of a ledger, mu is how far a record would move all steps if no sample left it
    out, as of a Gaussian mechanism."""

    run: PoissonRun
    words = "Gaussian on Poisson samples"
    tolerance = TOLERANCE

    @classmethod
    def of(cls, ledger: Ledger) -> PoissonSampled:
        run = PoissonRun.of(ledger)
        return cls(run.scaled(1 / run.unsampled))

    def curve(self, mu: float) -> Inverse:
        return _curve(self.run, mu)

    def epsilon(self, mu: float, delta: float) -> float:
        return self.run.scaled(mu).epsilon(delta) if mu else 0.0

    def mu(self, epsilon: float, delta: float) -> float:
        """On the grid of the curves, which is a thousandth off; inf for an epsilon beyond all that guesses can show."""
        if epsilon > EPSILONS[-1]:
            return math.inf
        return _crossing(lambda mu: self.run.scaled(mu).deltas((epsilon,))[0] - delta)


@functools.cache  # adversaries with as many right guesses ask for the same
def _curve(run: PoissonRun, mu: float) -> Inverse:
    if math.isinf(mu):
        return lambda _: 0.0  # nothing is promised
    return of_profile(EPSILONS, run.scaled(mu).deltas(EPSILONS))


def _crossing(over: Callable[[float], float]) -> float:
    """Where a growing function of a positive number becomes positive, `TOLERANCE` off at most."""
    high = 1.0
    while over(high) < 0:
        high *= 2
    return float(brentq(over, 0.0, high, rtol=TOLERANCE))
