"""Whether scores know the coins: an exact permutation test of many scores at once.

Where a fair coin per record decided who is a member, a view from which nothing leaks is independent of *which* of a
client's records were heads, given how many: every exchange of coins within a client was as likely as the one that
happened (Fisher 1935; Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9:39). So the test is exact for any score
of the view, of records and of the adversary's own models, however much records of a client resemble each other, and for
scores of a whole set of records at once. Nothing that was computed from the coins may enter a score.

The statistic is the AUROC within clients, weighted as van Elteren (1960) weighs strata, n1 n0 / (n1 + n0 + 1) for n1
members and n0 others; clients with one side empty have no weight. It is centred and scaled by its own permutations, not
by 0.5: where weights or a score of a set make its mean another one, that is the centre. The largest of many such
statistics, permuted together, corrects each for all (Westfall and Young 1993, single step).

Shapes: `members` [P, n] are the coins of n records, its first row as they fell, the others exchanged; a score of m
entries says by `coin` [m] whose coin each has, so that a record which two clients hold is exchanged once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

PERMUTATIONS = 2000
_TIE = 1e-9  # statistics that differ by less are equal: their sums were rounded in another order


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the same entries: values [m, s] without NaN, the client under whose model each entry was scored [m],
    and the place of its coin among all coins [m]."""

    values: Floats
    client: Ints
    coin: Ints


def exchanged(
    member: npt.ArrayLike, stratum: npt.ArrayLike, *, seed: Sequence[int], times: int = PERMUTATIONS
) -> Bools:
    """The coins [1 + times, n]: as they fell, then exchanged at random within each stratum [n], whose number of members
    never changes. Strata are drawn in the order in which they first appear: later ones move no earlier one."""
    fell, of = np.asarray(member, dtype=bool), np.asarray(stratum)
    rng, found = np.random.default_rng(seed), np.empty((1 + times, len(fell)), dtype=bool)
    found[0] = fell
    for name in dict.fromkeys(of.tolist()):
        own = np.flatnonzero(of == name)
        found[1:, own] = fell[own][rng.random((times, len(own))).argsort(axis=1)]
    return found


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
    """What each coin adds to the statistics [coins, s] when it falls on member."""
    found = np.zeros((coins, scored.values.shape[1]))
    for k in np.unique(scored.client):
        own = scored.client == k
        np.add.at(found, scored.coin[own], rankdata(scored.values[own], axis=0) / (own.sum() + 1) - 0.5)
    return found


def _weight(coins: Floats, scored: Scored) -> Floats:
    """Sum over clients of n1 n0 / (n1 + n0 + 1) under every exchange [P]."""
    clients, at = np.unique(scored.client, return_inverse=True)
    entries = np.zeros((coins.shape[1], len(clients)))
    np.add.at(entries, (scored.coin, at), 1.0)
    inside, both = coins @ entries, entries.sum(axis=0)
    found: Floats = (inside * (both - inside) / (both + 1)).sum(axis=1)
    return found


def standardised(aurocs: Floats) -> Floats:
    """The statistics [P, scores] centred and scaled by their own permutations; 0 where they never change. The coins as
    they fell count among these: the test stays exact."""
    spread = aurocs.std(axis=0)
    changes = spread > _TIE
    return np.where(changes, (aurocs - aurocs.mean(axis=0)) / np.where(changes, spread, 1.0), 0.0)


def p_value(z: npt.ArrayLike, largest: Floats) -> Floats:
    """Two-sided p-values of statistics z (of any shape) by the absolute values `largest` [P] under every exchange, the
    first as the coins fell: its own for a raw p-value, the maximum over a family for one corrected for all of it.

    (1 + how many exchanges reach |z|) / (1 + exchanges).
    """
    rising = np.sort(largest[1:])
    reach = len(rising) - np.searchsorted(rising, np.abs(z) - _TIE, "left")
    found: Floats = (1 + reach) / len(largest)
    return found
