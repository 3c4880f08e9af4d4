"""The clustering server: where users lie to each other, and where their prompts lie, from distances to means of groups.

The centres are unknown to the server, but it knows whose means they are, and the squared distance to a mean is linear
in the squared distances of users to each other:
    |x - mean_g|^2 = mean_(j in g) |x - x_j|^2 - 1/2 mean_(j, k in g) |x_j - x_k|^2.
Every round asks about other groups, and users that stand still are placed, but for a rotation, as soon as the equations
have the rank n (n - 1) / 2. As they move, older rounds count for less (Kalman 1960).

Where they lie in space follows from known points: squared distances to d + 1 of them locate another one exactly
(trilateration), those to c give its projection onto the c - 1 directions between them. A server that colludes with c
users knows so many; SecFPP excludes it. Without masks all this holds for every slice of a prompt by itself, so that c
users give ell (c - 1) numbers of any other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attacks.knowledge import Floats

DRIFT = 0.1  # variance of a squared distance from round to round, beside that of the first round
EXACT = 1e-6  # variance of what is revealed: rounding

Asked = tuple[Sequence[Sequence[int]], Floats]  # groups G, and squared distances [n, G] of all users to their means


@dataclass(frozen=True, eq=False)
class Placed:
    """Where users lie to each other."""

    squared: Floats  # distances [n, n]
    rank: int  # of the equations, of n (n - 1) / 2


def placed(rounds: Sequence[Asked]) -> Placed:
    """The squared distances of users to each other that explain those to means of groups, by rounds in order.

    A Kalman filter: users are taken to be equally far from each other at first, up to 1, and to drift apart or together
    in every round.
    """
    n = len(rounds[0][1])
    pairs = np.triu_indices(n, 1)
    doubt, known = np.eye(len(pairs[0])), np.full(len(pairs[0]), _usual(*rounds[0]))
    rows = []
    for groups, distances in rounds:
        row, sides = _equations(groups, distances)
        seen = row @ doubt
        gain = np.linalg.solve(seen @ row.T + EXACT * np.eye(len(row)), seen).T
        known = known + gain @ (sides - row @ known)
        doubt = doubt - gain @ seen + DRIFT * np.eye(len(known))
        rows.append(row)
    found = np.zeros((n, n))
    found[pairs] = np.maximum(known, 0)
    return Placed(found + found.T, int(np.linalg.matrix_rank(np.concatenate(rows))))


def trilaterated(known: Floats, squared: Floats, prior: Floats) -> Floats:
    """Points [n, d] at given squared distances [n, c] from known ones [c, d]: `prior` [n, d] but for the c - 1
    directions between these."""
    start, axes = known[0], known[1:] - known[0]
    right = ((axes**2).sum(1) - squared[:, 1:] + squared[:, :1]) / 2  # [n, c - 1], products of axes and x - start
    return prior + (right - (prior - start) @ axes.T) @ np.linalg.pinv(axes).T


def _equations(groups: Sequence[Sequence[int]], distances: Floats) -> tuple[Floats, Floats]:
    """Rows [n G, pairs] and right-hand sides [n G] of the equations above."""
    n = len(distances)
    first, second = np.triu_indices(n, 1)
    rows = np.zeros((len(groups), n, len(first)))
    for row, group in zip(rows, groups, strict=True):
        own = np.isin(np.arange(n), group) / len(group)
        row += np.equal.outer(np.arange(n), first) * own[second] + np.equal.outer(np.arange(n), second) * own[first]
        row -= own[first] * own[second]
    return rows.reshape(-1, len(first)), distances.T.ravel()


def _usual(groups: Sequence[Sequence[int]], distances: Floats) -> float:
    """The mean squared distance of two users of a group, which follows from their distances to its mean."""
    scatter = sum(distances[list(group), g].sum() for g, group in enumerate(groups))
    return float(2 * scatter / sum(len(group) - 1 for group in groups))
