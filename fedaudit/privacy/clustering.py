"""The server's part of SecPC: which users belong together, from distances to centres alone (SecFPP, Algorithm 1).

The paper names no rule. Here a centre is the mean of at least m users, and a cluster that could be divided is asked
about by the means of two halves. Distances to these say on which side of them a user lies, so that users change halves
from round to round: 2-means, one step a round. They also give the gap between the halves, and with it how far apart
these are: between their means lies F times the scatter that one degree of freedom has within them (Calinski and
Harabasz 1974; about 1 where a division has nothing to do with the vectors). A round ends with the first of these that
applies:

- split:  a cluster whose halves are at least `split` apart becomes two;
- merge:  the two clusters that are the least apart, if less than `merge`, become one;
- move:   users go to the cluster that they add less scatter to than to their own, the farthest first, while m are left.

A user moves where it adds least to the scatter: |g| / (|g| - 1) of its squared distance to the centre of its own group,
|g| / (|g| + 1) of that to another's (Hartigan and Wong 1979). Of unrelated users both are alike on average, while mere
distances prefer a user's own group, whose centre it is a part of.
Only the surest half of those that would change halves do so in a round: unrelated vectors have hardly a preference,
and all at once may change back and forth.
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
            if len(part) == 2 and _apart(part[0], part[1]) >= self.split:
                members = centres[s][0]
                cluster = clusters.cluster.copy()
                cluster[members[half[members] == 1]] = cluster.max() + 1
                return self.divided(cluster, rng)
        pairs = itertools.combinations(range(len(centres)), 2)
        apart = {(s, other): _apart(centres[s], centres[other]) for s, other in pairs}
        if apart and apart[nearest := min(apart, key=apart.__getitem__)] < self.merge:
            return self.divided(_joined(clusters.cluster, *nearest), rng)
        moved = self._moved(clusters.cluster, centres)
        # halves may change names
        settled = all(len(set(half[group] ^ clusters.half[group])) == 1 for group in clusters.members)
        if settled or (moved != clusters.cluster).any():
            return self.divided(moved, rng)
        return Clusters(moved, half)

    def _halve(self, half: Numbers, first: Part, second: Part) -> None:
        """Of the users that add less scatter to the other half the surest go there, half of them, while m are left: all
        at once may go back and forth for ever."""
        members = np.concatenate([first[0], second[0]])
        gain = ((_cost(first) - _cost(second)) * (1 - 2 * half))[members]
        surest = members[np.argsort(-gain, kind="stable")]
        for user in surest[: (int((gain > 0).sum()) + 1) // 2]:
            if (half[members] == half[user]).sum() > self.least:
                half[user] = 1 - half[user]

    def _moved(self, cluster: Numbers, centres: list[Part]) -> Numbers:
        costs = np.stack([_cost(part) for part in centres], axis=1)
        gain = costs[np.arange(len(cluster)), cluster] - costs.min(axis=1)
        moved = cluster.copy()
        for user in np.argsort(-gain, kind="stable"):
            if gain[user] > 0 and (moved == moved[user]).sum() > self.least:
                moved[user] = costs[user].argmin()
        return moved


def _cost(part: Part) -> Floats:
    """What every user adds to the scatter of a group: of its members as they are there, of others if they came."""
    group, distances = part
    size = len(group)
    found = distances * size / (size + 1)
    found[group] = distances[group] * size / max(1, size - 1)
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


def _apart(first: Part, second: Part) -> float:
    """F of two groups: the scatter between their means over that within them by degree of freedom; 0 where there is
    none."""
    n = len(first[0]) + len(second[0])
    between = len(first[0]) * len(second[0]) / n * _gap(first, second)
    within = float(first[1][first[0]].sum() + second[1][second[0]].sum())
    if within <= 0:
        return float("inf") if between > 0 else 0.0
    return between * (n - 2) / within


def _joined(cluster: Numbers, s: int, other: int) -> Numbers:
    """Clusters s < other as one, the others numbered on without a gap."""
    found = np.where(cluster == other, s, cluster)
    return found - (found > other)
