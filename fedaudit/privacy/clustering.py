"""The server's part of SecPC: which users belong together, from distances to centres alone (SecFPP, Algorithm 1).

The paper names no rule. Here a centre is the mean of at least m users, and a cluster that could be divided is asked
about by the means of two halves. Distances to these say on which side of them a user lies, so that users change halves
from round to round: 2-means, one step a round. They also give the gap between the halves, and with it the share of the
cluster's scatter that this division explains. A round ends with the first of these that applies:

- split:  a cluster whose halves explain at least `split` of its scatter becomes two;
- merge:  the two clusters that explain the least of their common scatter, if less than `merge`, become one;
- move:   users go to the cluster whose centre is nearer than their own, the farthest first, while m are left.

A user's own weight in a centre is taken out of its distance, |g| / (|g| - 1) (x - mean) = x - the mean of the others.
Two domains that lie symmetric about the first centre are equally far from it; halves drawn at random are not symmetric,
and 2-means pulls them apart. Halves at which it comes to rest without a split are drawn anew.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Part = tuple[Numbers, Floats]  # a group, and the squared distances [n] of all users to its mean


@dataclass(frozen=True, eq=False)
class Clusters:
    """The cluster [n] of every user, from 0 on, and the half [n] of it that the user is in, 0 or 1."""

    cluster: Numbers
    half: Numbers

    def groups(self, least: int) -> list[Numbers]:
        """The users of every centre that is asked about: the halves of a cluster that can be divided, else all of
        it."""
        return [group for parts in self.parts(least) for group in parts]

    def parts(self, least: int) -> list[list[Numbers]]:
        """The groups of every cluster."""
        found = []
        for members in self.members:
            halves = [members[self.half[members] == side] for side in (0, 1)]
            found.append(halves if min(map(len, halves)) >= least else [members])
        return found

    @property
    def members(self) -> list[Numbers]:
        """The users of every cluster."""
        return [np.flatnonzero(self.cluster == s) for s in range(self.cluster.max() + 1)]


@dataclass(frozen=True)
class Rule:
    """How clusters change."""

    least: int  # m: users of a cluster, and of a group whose mean is asked about
    split: float
    merge: float

    def first(self, users: int, rng: np.random.Generator) -> Clusters:
        """All users together, in halves drawn at random."""
        return self.divided(np.zeros(users, np.int64), rng)

    def divided(self, cluster: Numbers, rng: np.random.Generator) -> Clusters:
        """The clusters with halves drawn at random."""
        half = np.zeros_like(cluster)
        for s in range(cluster.max() + 1):
            members = rng.permutation(np.flatnonzero(cluster == s))
            half[members[: len(members) // 2]] = 1
        return Clusters(cluster, half)

    def revised(self, clusters: Clusters, distances: Floats, rng: np.random.Generator) -> Clusters:
        """The clusters after a round: `distances` [n, G] are the squared ones of all users to the centres of
        `clusters.groups(least)`."""
        columns = iter(distances.T)
        parts = [[(group, next(columns)) for group in part] for part in clusters.parts(self.least)]
        half = clusters.half.copy()
        for part in parts:
            if len(part) == 2:
                self._halve(half, *part)
        centres = [_centre(part) for part in parts]
        for s, part in enumerate(parts):
            if len(part) == 2 and _explained(part[0], part[1]) >= self.split:
                members = centres[s][0]
                cluster = clusters.cluster.copy()
                cluster[members[half[members] == 1]] = cluster.max() + 1
                return self.divided(cluster, rng)
        pairs = itertools.combinations(range(len(centres)), 2)
        apart = {(s, other): _explained(centres[s], centres[other]) for s, other in pairs}
        if apart and apart[nearest := min(apart, key=apart.__getitem__)] < self.merge:
            return self.divided(_joined(clusters.cluster, *nearest), rng)
        moved = self._moved(clusters.cluster, centres)
        # balanced halves only change names: a user's own half lacks its weight, so that it prefers the other
        settled = all(len(set(half[group] ^ clusters.half[group])) == 1 for group in clusters.members)
        if settled or (moved != clusters.cluster).any():
            return self.divided(moved, rng)
        return Clusters(moved, half)

    def _halve(self, half: Numbers, first: Part, second: Part) -> None:
        """Every user to the half that is nearer, at least m to each."""
        members = np.concatenate([first[0], second[0]])
        ahead = (_without_own(first) - _without_own(second))[members]  # negative: nearer to the first
        order = members[np.argsort(ahead, kind="stable")]
        cut = min(max(int((ahead < 0).sum()), self.least), len(members) - self.least)
        half[order[:cut]], half[order[cut:]] = 0, 1

    def _moved(self, cluster: Numbers, centres: list[Part]) -> Numbers:
        away = np.stack([_without_own(part) for part in centres], axis=1)
        gain = away[np.arange(len(cluster)), cluster] - away.min(axis=1)
        moved = cluster.copy()
        for user in np.argsort(-gain, kind="stable"):
            if gain[user] > 0 and (moved == moved[user]).sum() > self.least:
                moved[user] = away[user].argmin()
        return moved


def _without_own(part: Part) -> Floats:
    """Squared distances to the mean of a group's other users."""
    group, distances = part
    found = distances.copy()
    found[group] *= (len(group) / max(1, len(group) - 1)) ** 2
    return found


def _gap(first: Part, second: Part) -> float:
    """The squared distance of two means: how much farther the one's users are from the other's, on average."""
    there = (second[1] - first[1])[first[0]].mean()
    back = (first[1] - second[1])[second[0]].mean()
    return float(there + back) / 2


def _centre(part: list[Part]) -> Part:
    """A cluster and the distances to its mean, from those to the means of its halves."""
    if len(part) == 1:
        return part[0]
    (a, to_a), (b, to_b) = part
    n = len(a) + len(b)
    mean = (len(a) * to_a + len(b) * to_b) / n - len(a) * len(b) / n**2 * _gap(*part)
    return np.sort(np.concatenate([a, b])), mean


def _explained(first: Part, second: Part) -> float:
    """The share of the scatter of two groups' users that lies between their means; 0 where there is none."""
    between = len(first[0]) * len(second[0]) / (len(first[0]) + len(second[0])) * _gap(first, second)
    within = first[1][first[0]].sum() + second[1][second[0]].sum()
    return float(between / (between + within)) if between + within > 0 else 0.0


def _joined(cluster: Numbers, s: int, other: int) -> Numbers:
    """Clusters s < other as one, the others numbered on without a gap."""
    found = np.where(cluster == other, s, cluster)
    return found - (found > other)
