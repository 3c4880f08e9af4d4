"""Members among the highest scores: a statistic that notices a few records that are named almost surely.

An AUROC is about whole rankings: eight members at the top of 672 records move it by .01. How many of the k highest
scores are members moves by eight. k is not known beforehand, so all sizes 4, 6, 8, 12, 16, 24, ... up to half of the
records are looked at, each in standard deviations of its own exchanges, and the largest counts, standardised likewise.
The exchanges of `audits.statistics.permutation` make this exact, as they do any function of coins and scores. It is
one-sided: members have the highest scores.

Records with equal scores at the border share what is left of the k places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints
from fedaudit.audits.statistics.permutation import Scored, standardised

FEWEST = 4  # smallest number of highest scores that is looked at
AT_ONCE = 16  # scores of one matrix product, whose counts stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Highest:
    """Members among the highest of one score, at the size where most are, in standard deviations."""

    statistic: Floats  # [P], the largest standardised count under every exchange, itself standardised
    records: int  # so many highest, all with the score at the border among them; 0 for too few records
    members: int  # among them, by the coins as they fell
    expected: float  # mean of that over all exchanges
    full: Mapping[int, float]  # by size, the statistic if all of so many highest were members, where no score is shared

    def words(self, *, within: bool) -> str:
        """How many of the highest are members; `within`: where scores were compared within clients."""
        highest = f"{self.records} highest{' within clients' if within else ''}"
        return f"of the {highest}, {self.members} were members, where {self.expected:.1f} are expected"


def within(values: Floats, client: npt.ArrayLike) -> Floats:
    """The place of each value [m, s] among those of its client [m], (midrank - 1/2) / n: between 0 and 1, alike for all
    clients."""
    clients, places = np.asarray(client), np.empty(values.shape)
    for k in np.unique(clients):
        rows = clients == k
        places[rows] = (rankdata(values[rows], axis=0) - 0.5) / rows.sum()
    return places


def sizes(records: int) -> list[int]:
    """The numbers of highest scores that are looked at among so many records: 4, 6, 8, 12, 16, 24, ... below half of
    them, and half of them."""
    steps = [first << i for i in range(1, records.bit_length()) for first in (2, 3)]
    return [k for k in (*(k for k in steps if k < records // 2), records // 2) if k >= FEWEST]


def shares(values: Floats, k: npt.ArrayLike) -> Floats:
    """The share of each record that is among the k [K] highest of values [m, s]: 1 or 0, between them for equal values
    at the border, [s, K, m]."""
    last = rankdata(values, "max", axis=0).T[:, None]
    above, same = len(values) - last, last - rankdata(values, "min", axis=0).T[:, None] + 1
    inside: Floats = np.clip((np.asarray(k)[:, None] - above) / same, 0.0, 1.0)
    return inside


def highest(member: Bools, values: Floats) -> Iterator[Highest]:
    """Members among the highest of each score in values [m, s], by the coins [P, m] of their records, as they fell and
    exchanged."""
    coins, k = np.asarray(member, dtype=np.float64).T, np.array(sizes(len(values)), dtype=np.intp)
    for first in range(0, values.shape[1], AT_ONCE):
        named = shares(values[:, first : first + AT_ONCE], k)
        counts = (named.reshape(-1, len(values)) @ coins).reshape(*named.shape[:2], len(member))
        yield from (_of_counts(coins, k, *of_score) for of_score in zip(named, counts, strict=True))


def _of_counts(coins: Floats, k: Ints, named: Floats, counts: Floats) -> Highest:
    """The statistic of a score from the shares `named` [K, m] of its records among the k [K] highest, and how many of
    these are members [K, P]. `coins` are [m, P]."""
    if not len(k):
        return Highest(np.zeros(coins.shape[1]), 0, 0, 0.0, {})
    z = standardised(counts.T)
    largest = z.max(axis=1)
    statistic, top = standardised(largest[:, None])[:, 0], named[z[0].argmax()] > 0
    possible = z.any(axis=0) & (k <= coins[:, 0].sum()) & (named % 1 == 0).all(axis=1) & statistic.any()
    most = (k - counts.mean(axis=1))[possible] / counts.std(axis=1)[possible]
    full = dict(zip(k[possible].tolist(), (most - largest.mean()) / (largest.std() or 1.0), strict=True))
    members = top @ coins
    return Highest(statistic, int(top.sum()), int(members[0]), float(members.mean()), full)


def of_each(members: Bools, scored: Scored) -> list[tuple[Highest, Highest]]:
    """For each score of some entries, members among its highest within clients (`within`) and among its highest of
    all, by coins [P, n]."""
    member = members[:, scored.coin]
    inside, whole = (highest(member, values) for values in (within(scored.values, scored.client), scored.values))
    return list(zip(inside, whole, strict=True))
