"""The server's part of SecPC: which users form a cluster, from distances to centres alone (SecFPP, Algorithm 1).

The paper gives no rule. Here a centre is the mean of at least m users. If a cluster could be split, its users are
compared with the means of two halves. Users then change to the nearer half: 2-means, one step a round. The distances
also tell how far the halves are apart: F is the scatter between their means over the scatter within them per degree of
freedom (Calinski and Harabasz 1974; about 1 for a division unrelated to the vectors). A round ends with the first of
these that applies:

- split:  a cluster whose halves are at least `split` apart becomes two;
- merge:  the two clusters that are the least apart, if less than `merge`, become one;
- move:   users go to the cluster whose scatter they increase least, the largest gain first, while m are left.

A user adds |g| / (|g| - 1) times its squared distance to the centre of its own group, or |g| / (|g| + 1) times that to
another's, to the scatter (Hartigan and Wong 1979). For unrelated users both are equal on average; plain distances
would favour a user's own group, as the user is part of that centre.
Only the surest half of the users that would change halves do so in a round: unrelated vectors have hardly a preference,
and if all changed at once they might go back and forth.
Two domains that lie symmetric about the first centre are equally far from it; random halves are not symmetric, and
2-means pulls them apart. If it converges without a split, the halves are drawn again.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Part = tuple[Numbers, Floats]  # a group, and the squared distances [n] of all users to its mean


@dataclass(frozen=True, eq=False)
class Clusters:
    """For every user, its cluster [n], numbered from 0, and its half [n] of the cluster, 0 or 1."""

    cluster: Numbers
    half: Numbers

    def groups(self, least: int) -> list[Numbers]:
        """The users of every centre: both halves of a cluster if each has `least` users, else all of it."""
        return [group for parts in self.parts(least) for group in parts]

    def parts(self, least: int) -> list[list[Numbers]]:
        """The groups of users of each cluster, [cluster][one or two groups]: its halves if each has `least` members,
        else the whole."""
        parts = []
        for members in self.members:
            halves = [members[self.half[members] == side] for side in (0, 1)]
            parts.append(halves if min(map(len, halves)) >= least else [members])
        return parts

    @property
    def members(self) -> list[Numbers]:
        """The users of every cluster."""
        return [np.flatnonzero(self.cluster == s) for s in range(self.cluster.max() + 1)]


@dataclass(frozen=True)
class Rule:
    """Thresholds for how clusters change."""

    least: int  # m: fewest users of a cluster, and of a group that distances are measured to
    split: float
    merge: float

    def first(self, users: int, rng: np.random.Generator) -> Clusters:
        """All users in one cluster, with random halves."""
        return self.with_random_halves(np.zeros(users, np.int64), rng)

    def with_random_halves(self, cluster: Numbers, rng: np.random.Generator) -> Clusters:
        """These clusters, given as the number of each user's [n], each split into halves at random."""
        half = np.zeros_like(cluster)
        for s in range(cluster.max() + 1):
            members = rng.permutation(np.flatnonzero(cluster == s))
            half[members[: len(members) // 2]] = 1
        return Clusters(cluster, half)

    def revise(self, clusters: Clusters, distances: Floats, rng: np.random.Generator) -> Clusters:
        """The clusters after a round, by squared distances [n, G] of n users to the centres of
        `clusters.groups(least)`: at most one cluster is split, or else two are merged, or else users move."""
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
                return self.with_random_halves(cluster, rng)
        pairs = itertools.combinations(range(len(centres)), 2)
        apart = {(s, other): _apart(centres[s], centres[other]) for s, other in pairs}
        if apart and apart[nearest := min(apart, key=apart.__getitem__)] < self.merge:
            return self.with_random_halves(_merge(clusters.cluster, *nearest), rng)
        moved = self._move(clusters.cluster, centres)
        # halves may change names
        settled = all(len(set(half[group] ^ clusters.half[group])) == 1 for group in clusters.members)
        if settled or (moved != clusters.cluster).any():
            return self.with_random_halves(moved, rng)
        return Clusters(moved, half)

    def _halve(self, half: Numbers, first: Part, second: Part) -> None:
        """Change `half` in place: users of a cluster whose halves are `first` and `second` go to the other half if they
        add less scatter there. Only the surest half of these users go, and `least` stay in each half: if all went at
        once they might go back and forth for ever."""
        members = np.concatenate([first[0], second[0]])
        gain = ((_cost(first) - _cost(second)) * (1 - 2 * half))[members]
        surest = members[np.argsort(-gain, kind="stable")]
        for user in surest[: (int((gain > 0).sum()) + 1) // 2]:
            if (half[members] == half[user]).sum() > self.least:
                half[user] = 1 - half[user]

    def _move(self, cluster: Numbers, centres: list[Part]) -> Numbers:
        costs = np.stack([_cost(part) for part in centres], axis=1)
        gain = costs[np.arange(len(cluster)), cluster] - costs.min(axis=1)
        moved = cluster.copy()
        for user in np.argsort(-gain, kind="stable"):
            if gain[user] > 0 and (moved == moved[user]).sum() > self.least:
                moved[user] = costs[user].argmin()
        return moved


def _cost(part: Part) -> Floats:
    """The scatter [n] that every user adds to a group: members as they are there, others if they joined."""
    group, distances = part
    size = len(group)
    costs = distances * size / (size + 1)
    costs[group] = distances[group] * size / max(1, size - 1)
    return costs


def _gap(first: Part, second: Part) -> float:
    """The squared distance between two means, from how much farther one group's users are from the other mean."""
    there = (second[1] - first[1])[first[0]].mean()
    back = (first[1] - second[1])[second[0]].mean()
    return float(there + back) / 2


def _centre(part: list[Part]) -> Part:
    """A cluster, given as one or two halves, as (its users, their squared distances [n] to its mean), computed from
    those to the means of its halves."""
    if len(part) == 1:
        return part[0]
    (a, to_a), (b, to_b) = part
    n = len(a) + len(b)
    mean = (len(a) * to_a + len(b) * to_b) / n - len(a) * len(b) / n**2 * _gap(*part)
    return np.sort(np.concatenate([a, b])), mean


def _apart(first: Part, second: Part) -> float:
    """How far two groups are apart, as F: scatter between their means over that within per degree of freedom. Without
    scatter within, infinite, or 0 if the means do not differ."""
    n = len(first[0]) + len(second[0])
    between = len(first[0]) * len(second[0]) / n * _gap(first, second)
    within = float(first[1][first[0]].sum() + second[1][second[0]].sum())
    if within <= 0:
        return float("inf") if between > 0 else 0.0
    return between * (n - 2) / within


def _merge(cluster: Numbers, s: int, other: int) -> Numbers:
    """The cluster of each user [n] once cluster `other` has become part of cluster s < other, renumbered without a
    gap."""
    merged = np.where(cluster == other, s, cluster)
    return merged - (merged > other)
