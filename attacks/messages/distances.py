"""Distances of users to means of groups, as linear equations for the shares of one user's records.

SecFPP's server is told them in every round, of vectors x = y / |y| that stand still: y is the mean over a user's
classes of its class means, in the metric W^-1/2. A mean is linear in the shares of a user's records, so to first order,
around all candidates counting alike, each distance is linear in the shares of all users. The other users' shares are
noise whose covariance is known: a coin for each record. What the first order leaves is taken for further noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.attacks.knowledge import Floats, PooledSum
from fedaudit.attacks.locate import GroupDistances
from fedaudit.attacks.messages.mixtures import compress
from fedaudit.trainers.secfpp import class_weights

SECOND_ORDER = 0.01  # variance of what is no first order, by that of the distances around their expected values


@dataclass(frozen=True, eq=False)
class UserVector:
    """The vector of a user with n candidates, as the server expects it."""

    expected: Floats  # [D], if each candidate counts alike
    slopes: Floats  # [n, D], its derivative by each share, without what shares of a class with sum 0 cannot change
    shares: Floats  # [n], the expected ones; also their standard deviation, as a coin decides over each record
    groups: NDArray[np.int64]  # [n], number of each record's class

    @staticmethod
    def of(marks: Tensor, labels: Tensor) -> UserVector:
        """The vector of candidates with these gradients, [n, D] in the server's metric, and classes [n]."""
        classes = F.one_hot(labels).to(marks)
        classes = classes[:, classes.sum(0) > 0]
        counts = classes.sum(0)
        shares, weights = classes @ (1 / counts), classes @ class_weights(counts / 2)
        mean = (shares * weights) @ marks
        direction = mean / mean.norm()
        pull = weights[:, None] * marks
        slopes = (pull - (pull @ direction)[:, None] * direction) / mean.norm()
        slopes = slopes - classes @ ((classes / counts).T @ slopes)
        return UserVector(direction.numpy(), slopes.numpy(), shares.numpy(), classes.argmax(1).numpy())


def from_distances(users: Sequence[UserVector], rounds: Sequence[GroupDistances], client: int) -> PooledSum:
    """The equations that distances to means of groups, revealed in these rounds, give for the shares of one client's
    records; `users` are all of them."""
    expected = np.stack([user.expected for user in users])
    surprises, slopes = list[Floats](), list[list[Floats]]()
    for groups, distances in rounds:
        for group, squared in zip(groups, distances.T, strict=True):
            apart = expected - expected[list(group)].mean(0)
            inside = np.isin(np.arange(len(users)), group)
            surprise = squared - (apart**2).sum(1)
            for side in (inside, ~inside):  # what the spread of shares adds on average
                surprise[side] -= surprise[side].mean() if side.any() else 0
            surprises.append(surprise)
            slopes.append([_slopes(apart, user, k, inside) for k, user in enumerate(users)])
    surprise = np.concatenate(surprises)
    each = [np.concatenate([of_group[k] for of_group in slopes]) for k in range(len(users))]
    others = np.zeros((len(surprise), len(surprise)))
    for k, user in enumerate(users):
        if k != client:
            others += (each[k] * user.shares**2) @ each[k].T
    values, axes = np.linalg.eigh(others + SECOND_ORDER * surprise.var() * np.eye(len(surprise)))
    white = axes.T / np.sqrt(values)[:, None]
    mine, user = white @ each[client], users[client]
    rows = np.vstack([mine, np.diag(1 / user.shares)])
    target = np.concatenate([white @ surprise + mine @ user.shares, np.ones(len(user.shares))])
    return PooledSum(*compress(rows.T, target), user.groups)


def _slopes(apart: Floats, user: UserVector, k: int, inside: NDArray[np.bool_]) -> Floats:
    """The derivatives [K, n] of all K users' squared distances to a group's mean by the shares of user k; `apart`
    [K, D] are the users' expected vectors less the mean, `inside` [K] says who is in the group."""
    factors = np.zeros(len(apart))
    factors[k] = 2.0
    if inside[k]:
        factors -= 2.0 / inside.sum()
    slopes: Floats = factors[:, None] * (apart @ user.slopes.T)
    return slopes
