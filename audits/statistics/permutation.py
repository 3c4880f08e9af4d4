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
entries, and `coin` [m] is the index of each entry's coin: a record that two clients hold has one coin. `Exchanges` will
do for `members`: they are read in blocks of rows, so that memory grows with records, not with records times exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints

PERMUTATIONS = 2000
BLOCK = 16 << 20  # bytes of exchanges that are in memory at once
_TIE = 1e-9  # statistics that differ by less are equal: their sums were rounded in another order


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the same entries: values [m, s] without NaN, the client whose model scored each [m], its coin [m]."""

    values: Floats
    client: Ints
    coin: Ints


class Exchanges:
    """Coins as they fell, then exchanged within strata, as bits: slices of rows give arrays [.., n]."""

    def __init__(
        self, member: npt.ArrayLike, stratum: npt.ArrayLike, *, seed: Sequence[int], times: int = PERMUTATIONS
    ) -> None:
        fell, strata = np.asarray(member, dtype=bool), np.asarray(stratum)
        rng, self._times = np.random.default_rng(seed), times
        columns = [np.flatnonzero(strata == name) for name in dict.fromkeys(strata.tolist())]
        self._order = np.argsort(np.concatenate(columns)) if columns else np.empty(0, dtype=np.intp)
        self._bits = [(len(rows), self._exchange(fell[rows], rng)) for rows in columns]  # by stratum

    def _exchange(self, fell: Bools, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        rows = np.packbits(fell)[None]
        drawn = (rng.random((end - start, len(fell))) for start, end in _blocks(self._times, len(fell)))
        return np.concatenate([rows, *(np.packbits(fell[part.argsort(axis=1)], axis=1) for part in drawn)])

    def __len__(self) -> int:
        return 1 + self._times

    def __getitem__(self, rows: slice) -> Bools:
        none = np.empty((len(range(len(self))[rows]), 0), dtype=np.uint8)
        parts = [np.unpackbits(bits[rows], axis=1, count=count) for count, bits in self._bits]
        coins: Bools = np.concatenate([none, *parts], axis=1)[:, self._order].view(np.bool_)
        return coins


def exchanged(
    member: npt.ArrayLike, stratum: npt.ArrayLike, *, seed: Sequence[int], times: int = PERMUTATIONS
) -> Bools:
    """The coins [1 + times, n]: as they fell, then exchanged at random within each stratum [n], whose number of members
    never changes. Strata are drawn in the order of first appearance, so that further strata change none before."""
    return Exchanges(member, stratum, seed=seed, times=times)[:]


def _blocks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """(start, end) of blocks of rows, of at most BLOCK bytes in float64."""
    most = max(1, BLOCK // (8 * max(1, columns)))
    return ((start, min(start + most, rows)) for start in range(0, rows, most))


def in_blocks(members: Bools | Exchanges, coin: Ints) -> Iterator[Floats]:
    """The coins of entries `coin` [m] as 0 and 1 in blocks of exchanges [.., m], one after the other."""
    for start, end in _blocks(len(members), len(coin)):
        yield members[start:end][:, coin].astype(np.float64)


def weighted_auroc(members: Bools | Exchanges, scored: Sequence[Scored]) -> Floats:
    """Weighted AUROC within clients [P, scores] under every exchange of the coins, the scores in order; 0.5 where
    nothing can be compared.

    With the midranks r of client k's n_k entries, w_k (AUROC_k - 1/2) = sum of r / (n_k + 1) - 1/2 over its members:
    linear in the coins, so one matrix product serves all scores of the same entries.
    """
    return np.concatenate([_weighted_auroc(members, one) for one in scored], axis=1)


def _weighted_auroc(members: Bools | Exchanges, scored: Scored) -> Floats:
    clients, at = np.unique(scored.client, return_inverse=True)
    owners = np.eye(len(clients))[at]  # [m, clients]
    both, scores = owners.sum(axis=0), scored.values.shape[1]
    linear = np.concatenate([_linear(scored), owners], axis=1)
    sums = np.concatenate([block @ linear for block in in_blocks(members, scored.coin)])
    above, inside = sums[:, :scores], sums[:, scores:]
    # the statistic's weight, a sum over clients of n1 n0 / (n1 + n0 + 1): n1 members and n0 others
    weight = (inside * (both - inside) / (both + 1)).sum(axis=1)[:, None]
    return 0.5 + np.divide(above, weight, out=np.zeros_like(above), where=weight > 0)


def _linear(scored: Scored) -> Floats:
    """The amount that each entry adds to each score's statistic if it is a member's [m, s]."""
    summands = np.empty(scored.values.shape)
    for k in np.unique(scored.client):
        rows = scored.client == k
        summands[rows] = rankdata(scored.values[rows], axis=0) / (rows.sum() + 1) - 0.5
    return summands


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
