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
from fedaudit.audits.statistics.permutation import BLOCK, Exchanges, Scored, in_blocks, standardised

FEWEST = 4  # smallest number of highest scores that is looked at
AT_ONCE = 16  # scores of one matrix product at most, whose counts stay in the processor's cache


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
    inside: Floats = np.asarray(k, dtype=np.float64)[:, None] - above
    inside /= same
    return np.clip(inside, 0.0, 1.0, out=inside)


def highest(members: Bools | Exchanges, values: Floats, coin: Ints | None = None) -> Iterator[Highest]:
    """Members among the highest of each score in values [m, s], by coins [P, n], as they fell and exchanged; `coin` [m]
    is the index of each entry's coin, by default its own."""
    coin, k = np.arange(len(values)) if coin is None else coin, np.array(sizes(len(values)), dtype=np.intp)
    fell = members[:1][0, coin].astype(np.float64)
    total = sum((block.sum(axis=0) for block in in_blocks(members, coin)), np.zeros(len(values)))
    at_once = min(AT_ONCE, max(1, 2 * BLOCK // (8 * max(1, len(values) * len(k)))))
    for first in range(0, values.shape[1], at_once):
        named = shares(values[:, first : first + at_once], k)
        flat = named.reshape(-1, len(values))
        counts = np.concatenate([flat @ block.T for block in in_blocks(members, coin)], axis=1)
        of_scores = zip(named, counts.reshape(*named.shape[:2], len(members)), strict=True)
        yield from (_of_counts(fell, total, k, *of_score) for of_score in of_scores)


def _of_counts(fell: Floats, total: Floats, k: Ints, named: Floats, counts: Floats) -> Highest:
    """The statistic of a score from the shares `named` [K, m] of its entries among the k [K] highest, and how many of
    these are members [K, P]. `fell` [m] are the coins as they fell, `total` [m] their sums over all exchanges."""
    exchanges = counts.shape[1]
    if not len(k):
        return Highest(np.zeros(exchanges), 0, 0, 0.0, {})
    z = standardised(counts.T)
    largest = z.max(axis=1)
    statistic, top = standardised(largest[:, None])[:, 0], named[z[0].argmax()] > 0
    possible = z.any(axis=0) & (k <= fell.sum()) & (named % 1 == 0).all(axis=1) & statistic.any()
    most = (k - counts.mean(axis=1))[possible] / counts.std(axis=1)[possible]
    full = dict(zip(k[possible].tolist(), (most - largest.mean()) / (largest.std() or 1.0), strict=True))
    expected = float(top @ total) / exchanges
    return Highest(statistic, int(top.sum()), int(top @ fell), expected, full)


def of_each(members: Bools | Exchanges, scored: Scored) -> list[tuple[Highest, Highest]]:
    """For each score of some entries, members among its highest within clients (`within`) and among its highest of
    all, by coins [P, n]."""
    places = within(scored.values, scored.client)
    inside, whole = (highest(members, values, scored.coin) for values in (places, scored.values))
    return list(zip(inside, whole, strict=True))
