"""Scatter: sums over all users that a protocol on secret shares reveals are solved for one user's records.

SecFPP reveals no gradient of a user, but a sum of one matrix per user: how the gradients of its classes differ (W).
Each has as many dimensions as the user has classes, less one. In directions in which the sum is 0, or is noise only,
nobody's classes differ. So for each user
    min | (differences of the class means of gradients @ shares) W^-1/2 |   over shares >= 0 that sum to 1 in a class
finds its members, all of a user's records together (Lawson and Hanson 1974, scipy's `nnls`). With ten users of four
classes and 256 directions that is every member; where the users' classes fill all directions, nearly nothing.

scatter           the record's share, times the number of candidates of its class; from W itself, or from the metric
                  W^-1/2, which all users receive.
scatter/moment    the same from the second moment of prompts' movements, which `--clustered prompt` reveals instead.
scatter/distances the same from users' distances to means of groups, where these are of gradients: a ridge regression
                  (`attacks.messages.distances`).

A user without any member of a class breaks the sum of that class. Known non-members and other clients' records are NaN.
This is ours: W is a departure from the paper (docs/reference/secfpp.md).
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import SUMS, Attack, Floats, Knowledge, PooledSum

SUM = 1e3  # weight of the equations for the sums of the shares
ITERATIONS = 30  # most iterations of the solver per unknown


class Facts(AttackFacts):
    records = ("classes",)
    strength = 5
    needs = ("broadcasts",)
    reads = ("scatter", "metric", "moment", "distances")
    signals = (
        ("scatter", "scatter of classes", "the share in the revealed scatter of classes"),
        ("scatter/moment", "moment of prompts", "the share in the revealed moment of prompts"),
        ("scatter/distances", "distances to means", "the share by the revealed distances to means of groups"),
    )


@dataclass(frozen=True)
class Params:
    """The attack has no parameters."""


class Scatter(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        scores = {}
        for name in SUMS:
            signal = name if name == "scatter" else f"scatter/{name}"
            scores[signal] = np.full(len(knowledge.records), np.nan)
            if (pooled := knowledge.pooled.get(name)) is not None:
                shares = solve(pooled)
                scores[signal][: len(shares)] = shares * np.bincount(pooled.groups)[pooled.groups]
        return scores


def solve(pooled: PooledSum) -> Floats:
    """The shares [n] that explain a sum best: 0 or more, those of each group with sum 1."""
    groups = np.eye(pooled.groups.max() + 1)[:, pooled.groups]
    weight = SUM * np.linalg.norm(pooled.rows, axis=0).mean()
    rows = np.vstack([pooled.rows, weight * groups])
    target = np.concatenate([pooled.target, np.full(len(groups), weight)])
    shares: Floats = nnls(rows, target, maxiter=ITERATIONS * rows.shape[1])[0]
    return shares
