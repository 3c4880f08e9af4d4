"""An exact permutation test of many scores at once: do scores tell how the coins fell?

Before training, a fair coin per record decides whether it is used. A view from which nothing leaks is independent of
*which* of a client's records were heads, given how many: every exchange of coins within a client was as likely as the
one that happened (Fisher 1935; Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9:39). So the test is exact for
any score computed from the view, records and the adversary's own models, however much records of a client resemble each
other, and for scores of a whole set of records at once. A score may use nothing that was computed from the coins.

The statistic is the AUROC within clients, weighted as van Elteren (1960) weighs strata, n1 n0 / (n1 + n0 + 1) for n1
members and n0 others; clients without members, or without others, have no weight. It is centred and scaled by its own
permutations, since weights or scores of a whole set may move its mean from 0.5. The largest of many such statistics,
permuted together, corrects each for all (Westfall and Young 1993, single step).

Shapes: `members` [P, n] are the coins of n records, its first row as they fell, the others exchanged. A score has m
entries, and `coin` [m] is the index of each entry's coin: a record that two clients hold has one coin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints

PERMUTATIONS = 2000
_TIE = 1e-9  # statistics that differ by less are equal: their sums were rounded in another order


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the same entries: values [m, s] without NaN, the client whose model scored each [m], its coin [m]."""

    values: Floats
    client: Ints
    coin: Ints


def exchanged(
    member: npt.ArrayLike, stratum: npt.ArrayLike, *, seed: Sequence[int], times: int = PERMUTATIONS
) -> Bools:
    """The coins [1 + times, n]: as they fell, then exchanged at random within each stratum [n], whose number of members
    never changes. Strata are drawn in the order of first appearance, so that further strata change none before."""
    fell, strata = np.asarray(member, dtype=bool), np.asarray(stratum)
    rng, coins = np.random.default_rng(seed), np.empty((1 + times, len(fell)), dtype=bool)
    coins[0] = fell
    for name in dict.fromkeys(strata.tolist()):
        rows = np.flatnonzero(strata == name)
        coins[1:, rows] = fell[rows][rng.random((times, len(rows))).argsort(axis=1)]
    return coins


def weighted_auroc(members: npt.ArrayLike, scored: Sequence[Scored]) -> Floats:
    """Weighted AUROC within clients [P, scores] under every exchange of the coins, the scores in order; 0.5 where
    nothing can be compared.

    With the midranks r of client k's n_k entries, w_k (AUROC_k - 1/2) = sum of r / (n_k + 1) - 1/2 over its members:
    linear in the coins, so one matrix product serves all scores.
    """
    coins = np.asarray(members).astype(np.float64)
    linear = np.concatenate([_linear(one, coins.shape[1]) for one in scored], axis=1)
    weight = np.concatenate([np.tile(_weight(coins, one)[:, None], one.values.shape[1]) for one in scored], axis=1)
    above = coins @ linear
    return 0.5 + np.divide(above, weight, out=np.zeros_like(above), where=weight > 0)


def _linear(scored: Scored, coins: int) -> Floats:
    """The amount that each coin adds to each score's statistic if it makes its record a member [coins, s]."""
    summands = np.zeros((coins, scored.values.shape[1]))
    for k in np.unique(scored.client):
        rows = scored.client == k
        np.add.at(summands, scored.coin[rows], rankdata(scored.values[rows], axis=0) / (rows.sum() + 1) - 0.5)
    return summands


def _weight(coins: Floats, scored: Scored) -> Floats:
    """The statistic's weight under every exchange [P]: sum over clients of n1 n0 / (n1 + n0 + 1), n1 members and n0
    non-members."""
    clients, at = np.unique(scored.client, return_inverse=True)
    entries = np.zeros((coins.shape[1], len(clients)))
    np.add.at(entries, (scored.coin, at), 1.0)
    inside, both = coins @ entries, entries.sum(axis=0)
    weight: Floats = (inside * (both - inside) / (both + 1)).sum(axis=1)
    return weight


def standardised(aurocs: Floats) -> Floats:
    """The statistics [P, scores] centred and scaled by their own permutations, among which the coins as they fell
    count: the test stays exact. 0 for a score whose statistic never changes."""
    spread = aurocs.std(axis=0)
    changes = spread > _TIE
    return np.where(changes, (aurocs - aurocs.mean(axis=0)) / np.where(changes, spread, 1.0), 0.0)


def critical(largest: Floats, level: float) -> float:
    """The value that a statistic must exceed for a p-value of at most `level` by the largest statistics [P] (see
    `p_value`); infinite if so few exchanges allow no such p-value."""
    allowed = int(level * len(largest) * (1 + _TIE)) - 1  # exchanges that may reach it
    return float(np.sort(largest[1:])[::-1][allowed]) if 0 <= allowed < len(largest) - 1 else np.inf


def p_value(z: npt.ArrayLike, largest: Floats) -> Floats:
    """Two-sided p-values of statistics z (any shape): (1 + number of exchanges that reach |z|) / (1 + exchanges).

    `largest` [P] are the absolute values under every exchange, the first as the coins fell: of the statistic itself for
    a raw p-value, of the largest one of a family for a p-value corrected for all of the family.
    """
    rising = np.sort(largest[1:])
    reach = len(rising) - np.searchsorted(rising, np.abs(z) - _TIE, "left")
    p: Floats = (1 + reach) / len(largest)
    return p
