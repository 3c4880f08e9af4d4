"""How often 95 % intervals over clients cover the truth, for equal and unequal clients: a table of 600 draws a cell.

    python -m benchmarks.coverage        about two minutes on one core

A client's candidates are members by a fair coin. A score is a normal number, moved by an offset of its client and, for
members, by the client's own leak, whose mean and spread over clients are given. The truth is the pooled AUROC of pairs
of records of such clients, and the mean over clients of their own. A correct interval covers at least 552 of 600 (but
for once in 1,000).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from fedaudit.audits.statistics.ranking import auroc, client_auroc

DRAWS = 600
SIZES = {
    "12 of 56": [56] * 12,
    "4 of 20": [20] * 4,
    "3 each of 5, 10, 20, 80": [5, 10, 20, 80] * 3,
    "12 of 6 to 56": [6, 8, 10, 14, 18, 22, 28, 34, 40, 46, 52, 56],
    "8, 16, 24, 32": [8, 16, 24, 32],
    "10 of 10, 2 of 100": [10] * 10 + [100] * 2,
    "4 of 10, 2 of 100": [10] * 4 + [100] * 2,
}
LEAKS = {
    "none": (0.0, 0.0, 0.0),
    "none, offsets": (0.65, 0.0, 0.0),
    "of some": (0.3, 0.7, 0.3),
    "of all": (0.0, 0.5, 1.0),
}

Floats = np.ndarray


def draw(
    sizes: Sequence[int], offset: float, spread: float, mean: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Scores, members and clients [n]; every client has both kinds."""
    scores, member = [], []
    for n in sizes:
        kind = rng.random(n) < 0.5
        while kind.all() or not kind.any():
            kind = rng.random(n) < 0.5
        scores.append(rng.normal(size=n) + offset * rng.normal() + kind * (mean + spread * rng.normal()))
        member.append(kind)
    return np.concatenate(scores), np.concatenate(member), np.repeat(np.arange(len(sizes)), sizes)


def truths(sizes: Sequence[int], offset: float, spread: float, mean: float) -> tuple[float, float]:
    """The pooled AUROC, and the mean over clients."""
    own = norm.cdf(mean / np.sqrt(2 + spread**2))
    others = norm.cdf(mean / np.sqrt(2 + spread**2 + 2 * offset**2))
    same = (np.square(sizes) / np.sum(sizes) ** 2).sum()
    return float(same * own + (1 - same) * others), float(own)


def covered(sizes: Sequence[int], leak: tuple[float, float, float], seed: int, draws: int = DRAWS) -> tuple[int, int]:
    """How many intervals cover: of the pooled AUROC, and of the mean over clients."""
    rng, truth, found = np.random.default_rng(seed), truths(sizes, *leak), [0, 0]
    for _ in range(draws):
        scores, member, client = draw(sizes, *leak, rng)
        for i, interval in enumerate((auroc(scores, member, client), client_auroc(scores, member, client)[0])):
            found[i] += interval.low <= truth[i] <= interval.high
    return found[0], found[1]


def main() -> None:
    print(f"{'clients':<26}{'leak':<15}{'pooled':>10}{'mean over clients':>20}   of {DRAWS}")
    for name, sizes in SIZES.items():
        for seed, (leak, given) in enumerate(LEAKS.items()):
            pooled, mean = covered(sizes, given, seed)
            print(f"{name:<26}{leak:<15}{pooled:>10}{mean:>20}", flush=True)


if __name__ == "__main__":
    main()
