"""Loss trajectory: what the released models of all rounds say of a record, beside those of shadows (Liu et al. 2022).

A record's confidences after T rounds are combined into one weighted sum, with the weights that best tell shadows with a
record from those without it. They are Fisher's discriminant, w = W^-1 delta: delta [T] is the mean change of confidence
by training on a record, W [T, T] the covariance of the deviations from each record's own mean. The sum is then judged
as LiRA judges one confidence, record by record. If there are reference records, each model's sums are first centred and
scaled by them (`attacks.likelihood`).

trajectory           log-likelihood ratio of the weighted sum, with the record against without it.
trajectory/offline   its standardised distance from the shadows without the record.
trajectory/slope     log-likelihood ratio of the least-squares slope of the confidences over the rounds.

Liu et al. ("Membership inference attacks by exploiting loss trajectory", CCS 2022) train a network on trajectories,
which they have to distil. Here the broadcasts are the trajectory, and the shadows' servers give theirs along the same
rounds. LiRA on the released model is the special case with all weight on the last round.

Needs the broadcasts of a run and shadow models. A record that no shadow was trained on is NaN, except for
trajectory/offline.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.attacks.likelihood import Values, likelihood_ratios, on_one_scale

LARGEST = 100.0  # confidence, in absolute value
RIDGE = 1e-3  # times the mean variance, added to W: neighbouring rounds hardly differ


class Facts(AttackFacts):
    records = ("classes",)
    strength = 1
    needs = ("broadcasts",)
    shadows = True
    sequences = True
    signals = (
        ("trajectory", "trajectory", "the confidences over all rounds"),
        ("trajectory/offline", "trajectory, offline", "the confidences over all rounds (offline)"),
        ("trajectory/slope", "trajectory, slope", "the slope of the confidences beside that of shadow models"),
    )


@dataclass(frozen=True)
class Params:
    """The trajectory attack has no parameters."""


class Trajectory(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.sequence is None or knowledge.shadows is None or knowledge.shadows.sequence is None:
            raise ValueError("the trajectory attack needs confidences over rounds, of shadow models too")
        member = knowledge.shadows.member
        target = np.clip(knowledge.sequence, -LARGEST, LARGEST)
        shadows = np.clip(knowledge.shadows.sequence, -LARGEST, LARGEST)
        rounds = np.arange(float(len(target)))

        def judge(weights: Floats) -> tuple[Floats, Floats]:
            sums = weights @ target, np.einsum("t,stn->sn", weights, shadows)
            return likelihood_ratios(*on_one_scale(*sums, member, knowledge.known), member)

        online, offline = judge(discriminant(shadows, member))
        slope, _ = judge(rounds - rounds.mean())
        return dict(zip(Facts.names(), (online, offline, slope), strict=True))


def discriminant(shadows: Floats, member: NDArray[np.bool_]) -> Floats:
    """Fisher's weights [T] of T rounds, scaled to Euclidean length 1, for confidences [S, T, n] of S shadow models
    about n records, of which `member` [S, n] had each in training; all NaN if no record has both shadows with it and
    shadows without it."""
    T = shadows.shape[1]
    means = [[Values.of(shadows[:, t], used).mean for t in range(T)] for used in (member, ~member)]
    inside, outside = map(np.stack, means)  # [T, n]
    both = member.any(0) & ~member.all(0)
    if not both.any():
        return np.full(T, np.nan)
    delta = (inside - outside)[:, both].mean(1)
    off = np.where(member[:, None], shadows - inside, shadows - outside).transpose(1, 0, 2).reshape(T, -1)
    within = off @ off.T / off.shape[1]
    level = np.trace(within) / T
    weights: Floats = np.linalg.solve(within + (RIDGE * level or 1.0) * np.eye(T), delta)
    return weights / (np.linalg.norm(weights) or 1.0)
