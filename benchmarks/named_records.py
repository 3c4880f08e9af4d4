"""How often the permutation test notices a few records that are named almost surely, and what that costs elsewhere.

    python -m benchmarks.named_records            500 trials of each shape alone, as one of eight rows, and as the named
                                                  row; 300 nulls; about 15 minutes of one core
    python -m benchmarks.named_records alone      the first column only, about 4 minutes

Each client has 56 candidates and a coin for each. A score is noise; *named* members have the highest scores of all.
*Ranking* is the AUROC within clients, which was the whole test before (`audits.statistics.permutation`); *alone* is the
statistic of `audits.statistics.highest` and that together, at 5 %; *one of eight* is a row among eight that share the
primary family's part of the error, and *named row* the one that has half of it for itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from fedaudit.audits.statistics.highest import of_each
from fedaudit.audits.statistics.permutation import Scored, exchanged, p_value, standardised, weighted_auroc
from fedaudit.audits.verdicts import corrected

LEVEL = 0.05
LOSES = 0.04  # power that the test may lose where all members leak a little
SURPRISING = 0.001
TRIALS, NULLS, EXCHANGES, CANDIDATES, ROWS = 500, 300, 2000, 56, 8
APART = 10.0  # standard deviations by which named members stand out

Floats = np.ndarray


@dataclass(frozen=True)
class Shape:
    """What leaks: in `of` of so many clients `each` members are named; or all members' scores have an AUROC."""

    name: str
    clients: int
    of: int = 0
    each: int = 0
    auroc: float = 0.5
    at_least: float | None = None  # promised power alone
    at_most: int | None = None  # of NULLS nulls that are called a leak
    loses: bool = False  # whether the ranking alone may have a power larger by LOSES

    def drawn(self, rng: np.random.Generator) -> tuple[np.ndarray, Floats, np.ndarray]:
        """Coins, scores and clients of all candidates."""
        client = np.repeat(np.arange(self.clients), CANDIDATES)
        member = rng.random(len(client)) < 0.5
        values = rng.normal(size=len(client)) + np.sqrt(2) * ndtri(self.auroc) * member
        for k in rng.choice(self.clients, self.of, replace=False):
            own = np.flatnonzero(member & (client == k))
            values[rng.choice(own, min(self.each, len(own)), replace=False)] += APART
        return member, values, client


SHAPES = (
    Shape("8 of each of 2 clients", 2, 2, 8, at_least=0.95),
    Shape("1 of each of 12 clients", 12, 12, 1, at_least=0.95),
    Shape("4 of each of 2 clients", 2, 2, 4, at_least=0.72),
    Shape("8 of one of 12 clients", 12, 1, 8, at_least=0.64),
    Shape("8 of each of 2 of 12 clients", 12, 2, 8, at_least=0.95),
    Shape("4 of each of 2 of 12 clients", 12, 2, 4),
    Shape("all, AUROC .57", 12, auroc=0.57, loses=True),
    Shape("all, AUROC .60", 12, auroc=0.60, loses=True),
    Shape("nothing, 2 clients", 2, at_most=28),
    Shape("nothing, 12 clients", 12, at_most=28),
)


def statistics(members: np.ndarray, values: Floats, client: np.ndarray) -> tuple[Floats, Floats]:
    """|AUROC|, standardised, and the test's statistic [1 + exchanges, rows] of scores of all records [n, rows]."""
    scored = Scored(values, client, np.arange(len(client)))
    z = np.abs(standardised(weighted_auroc(members, [scored])))
    tops = np.stack([np.maximum(one.statistic, other.statistic) for one, other in of_each(members, scored)], axis=1)
    return z, np.maximum(z, tops)


def share_found(shape: Shape, *, trials: int, exchanges: int, seed: int) -> tuple[float, float]:
    """The shares of trials with p at most LEVEL, of the test and of the ranking alone."""
    found, rng = np.zeros(2), np.random.default_rng(seed)
    for trial in range(trials):
        member, values, client = shape.drawn(rng)
        z, t = statistics(exchanged(member, client, seed=(seed, trial), times=exchanges), values[:, None], client)
        found += [p_value(one[0, 0], one[:, 0]) <= LEVEL for one in (t, z)]
    return float(found[0] / trials), float(found[1] / trials)


def as_verdicts(shape: Shape, *, trials: int, exchanges: int, seed: int) -> tuple[float, float]:
    """The shares of trials in which a row is called a leak: as one of ROWS primary ones beside noise, and as the row
    that is named beforehand."""
    found, rng = np.zeros(2), np.random.default_rng(seed)
    for trial in range(trials):
        member, values, client = shape.drawn(rng)
        rows = np.column_stack([values, rng.normal(size=(len(client), ROWS - 1))])
        _, t = statistics(exchanged(member, client, seed=(seed, trial), times=exchanges), rows, client)
        largest = {"primary": t.max(axis=1), "named": t[:, 0]}
        found += [corrected(t[0, 0], family, largest) <= LEVEL for family in ("primary", "named")]
    return float(found[0] / trials), float(found[1] / trials)


def level_limit(trials: int) -> int:
    """The largest number of correct tests that are called a leak, but for a surprise."""
    return int(binom.isf(SURPRISING, trials, LEVEL))


def power(trials: int, share: float) -> int:
    """The least number of trials in which something is found that is found in a share of them, but for a surprise."""
    return int(binom.ppf(SURPRISING, trials, share))


def main() -> None:
    every = sys.argv[1:] != ["alone"]
    print(f"{'':<32}{'ranking':>9}{'alone':>9}{'promised':>10}{'one of eight':>14}{'named row':>11}")
    for seed, shape in enumerate(SHAPES):
        trials = NULLS if shape.at_most is not None else TRIALS
        found, of_ranking = share_found(shape, trials=trials, exchanges=EXCHANGES, seed=seed)
        promise = "" if shape.at_least is None else f">= {shape.at_least:.2f}"
        if shape.at_most is not None:
            promise = f"<= {shape.at_most / NULLS:.3f}"
        elif shape.loses:
            promise = f">= {of_ranking - LOSES:.2f}"
        line = f"{shape.name:<32}{of_ranking:>9.3f}{found:>9.3f}{promise:>10}"
        if every:
            one, named = as_verdicts(shape, trials=trials, exchanges=EXCHANGES, seed=100 + seed)
            line += f"{one:>14.3f}{named:>11.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
