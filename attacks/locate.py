"""The clustering server: it estimates users' mutual distances, and their prompts, from distances to means of groups.

The server does not know the means, but knows which users form each group. The squared distance to a mean is linear in
the squared distances between users:
    |x - mean_g|^2 = mean_(j in g) |x - x_j|^2 - 1/2 mean_(j, k in g) |x_j - x_k|^2.
Each round measures distances to other groups. If users do not move, the distances between them are determined once the
equations have rank n (n - 1) / 2. As users do move, older rounds count for less (Kalman 1960).

To locate users in space the server needs known points: squared distances to d + 1 of them locate another point exactly
(trilateration); those to c points give its projection onto the c - 1 directions between them. A server that colludes
with c users knows c points; SecFPP excludes this. Without masks all this holds for every slice of a prompt by itself,
so that c users reveal ell (c - 1) numbers of any other user's prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.knowledge import Floats

DRIFT = 0.1  # variance by which a squared distance changes from round to round; its prior variance is 1
EXACT = 1e-6  # variance of the revealed distances: rounding errors

GroupDistances = tuple[
    Sequence[Sequence[int]], Floats
]  # groups G, and squared distances [n, G] of all users to their means


@dataclass(frozen=True, eq=False)
class MutualDistances:
    """Estimated distances between the n users, and how far the equations determine them."""

    squared: Floats  # squared distances [n, n]
    rank: int  # of all equations; n (n - 1) / 2 determine every distance


def mutual_distances(rounds: Sequence[GroupDistances]) -> MutualDistances:
    """The squared distances [n, n] between users, estimated from those to group means over the rounds in order, and the
    rank of all equations together.

    A Kalman filter. Prior: all pairs are equally far apart, with variance 1; every round adds the variance DRIFT.
    Negative estimates become 0.
    """
    n = len(rounds[0][1])
    pairs = np.triu_indices(n, 1)
    covariance, estimate = np.eye(len(pairs[0])), np.full(len(pairs[0]), _usual(*rounds[0]))
    all_coefficients = []
    for groups, distances in rounds:
        coefficients, measured = _equations(groups, distances)
        cross = coefficients @ covariance
        gain = np.linalg.solve(cross @ coefficients.T + EXACT * np.eye(len(coefficients)), cross).T
        estimate = estimate + gain @ (measured - coefficients @ estimate)
        covariance = covariance - gain @ cross + DRIFT * np.eye(len(estimate))
        all_coefficients.append(coefficients)
    upper = np.zeros((n, n))
    upper[pairs] = np.maximum(estimate, 0)
    return MutualDistances(upper + upper.T, int(np.linalg.matrix_rank(np.concatenate(all_coefficients))))


def trilaterate(known: Floats, squared: Floats, prior: Floats) -> Floats:
    """Points [n, d] from their squared distances [n, c] to known points [c, d]. These determine them in the c - 1
    directions between the known points; in all others they stay at `prior` [n, d]."""
    origin, axes = known[0], known[1:] - known[0]
    products = ((axes**2).sum(1) - squared[:, 1:] + squared[:, :1]) / 2  # [n, c - 1], of axes with x - origin
    return prior + (products - (prior - origin) @ axes.T) @ np.linalg.pinv(axes).T


def _equations(groups: Sequence[Sequence[int]], distances: Floats) -> tuple[Floats, Floats]:
    """Coefficients [n G, pairs] and right-hand sides [n G] of the module's equations for the squared distances of all
    pairs of n users, one per group and user."""
    n = len(distances)
    first, second = np.triu_indices(n, 1)
    rows = np.zeros((len(groups), n, len(first)))
    for row, group in zip(rows, groups, strict=True):
        weight = np.isin(np.arange(n), group) / len(group)
        row += np.equal.outer(np.arange(n), first) * weight[second]
        row += np.equal.outer(np.arange(n), second) * weight[first]
        row -= weight[first] * weight[second]
    return rows.reshape(-1, len(first)), distances.T.ravel()


def _usual(groups: Sequence[Sequence[int]], distances: Floats) -> float:
    """Mean squared distance between two users of one group, computed from their distances to its mean."""
    scatter = sum(distances[list(group), g].sum() for g, group in enumerate(groups))
    return float(2 * scatter / sum(len(group) - 1 for group in groups))
