"""The server's part of SecPC: which users form a cluster, from distances to centres alone (SecFPP, Algorithm 1).

The paper gives no rule; it cites one that keeps the number of clusters constant. Halves and thresholds are ours. Here
a centre is the mean of at least m users. If a cluster could be split, its users are compared with the means of two
halves. Users then change to the nearer half: 2-means, one step a round. The distances also tell how far the halves are
apart (F, `two_means.py`). A round ends with the first of these that applies:

- split:  a cluster whose halves are at least `split` apart becomes two;
- merge:  the two clusters that are the least apart, if less than `merge`, become one;
- move:   users go to the cluster whose scatter they increase least, the largest gain first, while m are left.

By default both thresholds are quantiles of F of the best division of normal vectors, as many as the users that are
asked about, in the effective dimension of theirs: of `SPLIT` of these divisions F is smaller, and so is that of `MERGE`
of them for users of one cluster that fell in two. A split needs `WIDER` times the quantile.

A user adds |g| / (|g| - 1) times its squared distance to the centre of its own group, or |g| / (|g| + 1) times that to
another's, to the scatter (Hartigan and Wong 1979). For unrelated users both are equal on average; plain distances
would favour a user's own group, as the user is part of that centre.
Only the surest half of the users that would change halves do so in a round: unrelated vectors have hardly a preference,
and if all changed at once they might go back and forth.
Two domains that lie symmetric about the first centre are equally far from it; random halves are not symmetric, and
2-means pulls them apart. If it converges without a split, the halves are drawn again.
"""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedaudit.privacy.two_means import apart, best_divisions, effective_dimension, gap, turned

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Part = tuple[Numbers, Floats]  # a group, and the squared distances [n] of all users to its mean

SPLIT = 0.99
WIDER = 1.05  # of that: real vectors vary more in some directions, and their best division is further apart
MERGE = 0.5
WIDEST = 1000  # dimension from which on F of the best division hardly falls


@dataclass(frozen=True, eq=False)
class Clusters:
    """For every user, its cluster [n], numbered from 0, and its half [n] of the cluster, 0 or 1. `looks` [k, 2, n] are
    what distances to the means of halves have told: for each pair its contrast w, and K w up to a constant, where K are
    the inner products of the users' vectors."""

    cluster: Numbers
    half: Numbers
    looks: Floats = field(default_factory=lambda: np.zeros((0, 2, 0)))

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

    def with_looks(self, parts: list[list[Part]]) -> "Clusters":
        """These clusters, with the looks added at those of `parts` that are halves."""
        new = [_look(*part) for part in parts if len(part) == 2]
        return replace(self, looks=np.stack([*self.looks, *new])) if new else self


@dataclass(frozen=True)
class Rule:
    """Thresholds for how clusters change."""

    least: int  # m: fewest users of a cluster, and of a group that distances are measured to
    split: float = 0  # 0: by the best divisions of normal vectors
    merge: float = 0

    def first(self, users: int, rng: np.random.Generator) -> Clusters:
        """All users in one cluster, with random halves."""
        nothing = np.zeros(users, np.int64)
        return self.with_random_halves(Clusters(nothing, nothing), nothing, rng)

    def with_random_halves(self, clusters: Clusters, cluster: Numbers, rng: np.random.Generator) -> Clusters:
        """The clusters with the number `cluster` [n] of each user's instead, each split into halves at random."""
        half = np.zeros_like(cluster)
        for s in range(cluster.max() + 1):
            members = rng.permutation(np.flatnonzero(cluster == s))
            half[members[: len(members) // 2]] = 1
        return replace(clusters, cluster=cluster, half=half)

    def revise(self, clusters: Clusters, distances: Floats, rng: np.random.Generator) -> Clusters:
        """The clusters after a round, by squared distances [n, G] of n users to the centres of
        `clusters.groups(least)`: at most one cluster is split, or else two are merged, or else users move."""
        columns = iter(distances.T)
        parts = [[(group, next(columns)) for group in part] for part in clusters.parts(self.least)]
        clusters = clusters.with_looks(parts)
        half = clusters.half.copy()
        for part in parts:
            if len(part) == 2:
                members, sides, near = _pair(*part)
                half[members] = turned(sides[None], near[None], self.least)[0]
        centres = [_centre(part) for part in parts]
        for s, part in enumerate(parts):
            if len(part) == 2 and self._separate(part, clusters.looks):
                members = centres[s][0]
                cluster = clusters.cluster.copy()
                cluster[members[half[members] == 1]] = cluster.max() + 1
                return self.with_random_halves(clusters, cluster, rng)
        pairs = list(itertools.combinations(range(len(centres)), 2))
        if pairs:
            s, other = min(pairs, key=lambda pair: _apart(centres[pair[0]], centres[pair[1]]))
            if self._alike(centres[s], centres[other], clusters.looks):
                return self.with_random_halves(clusters, _merge(clusters.cluster, s, other), rng)
        moved = self._move(clusters.cluster, centres)
        # halves may change names
        settled = all(len(set(half[group] ^ clusters.half[group])) == 1 for group in clusters.members)
        if settled or (moved != clusters.cluster).any():
            return self.with_random_halves(clusters, moved, rng)
        return replace(clusters, cluster=moved, half=half)

    def _separate(self, halves: list[Part], looks: Floats) -> bool:
        """Whether a cluster with these halves is to be split."""
        limit = self.split or WIDER * self._quantile(SPLIT, halves, looks)
        return _apart(*halves) >= limit

    def _alike(self, first: Part, second: Part, looks: Floats) -> bool:
        """Whether two clusters are to be merged."""
        limit = self.merge or self._quantile(MERGE, [first, second], np.stack([_look(first, second), *looks]))
        return _apart(first, second) < limit

    def _quantile(self, share: float, parts: list[Part], looks: Floats) -> float:
        """The F that is larger than that of `share` of the best divisions of so many normal vectors, in the effective
        dimension of these users' by the `looks` at halves among them."""
        members, to_mean = _centre(parts)
        inside = (np.delete(looks[:, 0], members, axis=1) == 0).all(axis=1)
        scatter = float(to_mean[members].sum()) / (len(members) - 1)
        contrasts, products = looks[inside][:, :, members].swapaxes(0, 1)
        dimension = np.clip(effective_dimension(scatter, contrasts, products), 2, WIDEST)
        steps = 2 ** (np.round(8 * np.log2(dimension)) / 8)  # of 9 percent, so that few are drawn
        return float(np.quantile(best_divisions(len(members), self.least, round(steps)), share, method="higher"))

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


def _pair(first: Part, second: Part) -> tuple[Numbers, Numbers, Floats]:
    """The users [n] of two groups, which of both each belongs to [n], and their distances [n, 2] to both means."""
    members = np.concatenate([first[0], second[0]])
    side = np.repeat([0, 1], [len(first[0]), len(second[0])])
    return members, side, np.stack([first[1], second[1]], axis=1)[members]


def _apart(first: Part, second: Part) -> float:
    """How far two groups are apart, as F."""
    _, side, distances = _pair(first, second)
    return float(apart(side[None], distances[None])[0])


def _look(first: Part, second: Part) -> Floats:
    """The contrast w [n] of two groups, and K w [n] up to a constant, which their distances tell; as [2, n]."""
    contrast = np.zeros(len(first[1]))
    contrast[first[0]], contrast[second[0]] = 1 / len(first[0]), -1 / len(second[0])
    return np.stack([contrast, (second[1] - first[1]) / 2])


def _centre(part: list[Part]) -> Part:
    """A cluster, given as one or two halves, as (its users, their squared distances [n] to its mean), computed from
    those to the means of its halves."""
    if len(part) == 1:
        return part[0]
    (a, to_a), (b, to_b) = part
    members, side, distances = _pair(*part)
    n, between = len(members), float(gap(side[None], distances[None])[0])
    mean = (len(a) * to_a + len(b) * to_b) / n - len(a) * len(b) / n**2 * between
    return np.sort(members), mean


def _merge(cluster: Numbers, s: int, other: int) -> Numbers:
    """The cluster of each user [n] once cluster `other` has become part of cluster s < other, renumbered without a
    gap."""
    merged = np.where(cluster == other, s, cluster)
    return merged - (merged > other)
