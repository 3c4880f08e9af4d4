"""Measured epsilon where the truth is known: how often the bounds exceed it, what they reach, and what they cost.

    python benchmarks/measured_epsilon.py [number of runs, default 500] [canaries, default 1000]

A run flips the coins anew. Randomised response tells each coin truly with probability e^epsilon / (1 + e^epsilon); the
Gaussian mechanism releases each coin with the noise that proves epsilon at delta 1e-5, and at epsilon 0 the noise
alone. With Poisson sampling each of 20 steps releases a coin with probability 0.1, 0 otherwise, and guesses are by the
likelihood ratio. A bound of 95 % exceeds the truth in at most 41 of 500 runs (the binomial's 0.999).
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from fedaudit.audits.statistics import one_run, trade_off
from fedaudit.audits.statistics.guesses import number_of_guesses, right_guesses
from fedaudit.audits.statistics.sampled import PoissonSampled
from fedaudit.privacy.accountant import PoissonRun

DELTA = 1e-5
EPSILONS = (0.0, 0.5, 2.0, 8.0)
RATE, STEPS = 0.1, 20
SAMPLED = PoissonSampled(PoissonRun(((((STEPS**-0.5, STEPS),), RATE),)))
Bound = Callable[..., float]
BOUNDS: dict[str, Bound] = {
    "Steinke": one_run.epsilon_lower_bound,
    "Gaussian": trade_off.epsilon_lower_bound,
    "Poisson": functools.partial(trade_off.epsilon_lower_bound, family=SAMPLED),
}
MECHANISMS = {
    "randomised response": ("Steinke",),
    "Gaussian": ("Steinke", "Gaussian"),
    "Poisson samples": ("Steinke", "Poisson"),
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    canaries = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rng = np.random.default_rng(0)
    print(f"{runs} runs, {canaries} canaries, {number_of_guesses(canaries)} guesses, delta {DELTA:g}")
    print(f"{'mechanism':<21}{'epsilon':>8}{'bound':>10}{'mean':>7}{'largest':>9}{'above the truth':>17}{'ms':>6}")
    for mechanism, names in MECHANISMS.items():
        for epsilon in EPSILONS:
            right = [guessed(rng, mechanism, epsilon, canaries) for _ in range(runs)]
            for name in names:
                began = time.process_time()
                lower = {c: lower_bound(BOUNDS[name], c, canaries) for c in set(right)}
                took = 1000 * (time.process_time() - began) / len(lower)
                found = [lower[c] for c in right]
                above = f"{sum(one > epsilon for one in found)} of {runs}"
                print(f"{mechanism:<21}{epsilon:>8g}{name:>10}{np.mean(found):>7.2f}{max(found):>9.2f}"
                      f"{above:>17}{took:>6.0f}", flush=True)  # fmt: skip


def guessed(rng: np.random.Generator, mechanism: str, epsilon: float, canaries: int) -> int:
    """Right guesses in one run."""
    coins = rng.random(canaries) < 0.5
    if mechanism == "Gaussian":
        mu = trade_off.GAUSSIAN.mu(epsilon, DELTA) if epsilon else 0.0
        scores = mu * coins + rng.standard_normal(canaries)
    elif mechanism == "Poisson samples":
        mu = sampled_mu(epsilon)
        taken = (rng.random((canaries, STEPS)) < RATE) & coins[:, None]
        x = mu * taken + rng.standard_normal((canaries, STEPS))
        scores = np.log1p(RATE * np.expm1(mu * x - mu**2 / 2)).sum(1) + 1e-9 * rng.random(canaries)  # no ties
    else:
        scores = np.where(rng.random(canaries) < expit(epsilon), coins, ~coins).astype(float)
    return right_guesses(scores, coins, np.full(canaries, ""))


@functools.cache
def sampled_mu(epsilon: float) -> float:
    """Of one step."""
    return SAMPLED.mu(epsilon, DELTA) * STEPS**-0.5 if epsilon else 0.0


def lower_bound(bound: Bound, correct: int, canaries: int) -> float:
    return bound(correct=correct, guesses=number_of_guesses(canaries), canaries=canaries, delta=DELTA)


if __name__ == "__main__":
    main()
