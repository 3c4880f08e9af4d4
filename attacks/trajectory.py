"""Loss trajectory: what the released models of all rounds say of a record, beside those of shadows (Liu et al. 2022).

A record's confidences after T rounds are weighed into one number, by the weights that best tell shadows with a record
from those without it: Fisher's discriminant, w = W^-1 delta with delta [T] the mean over the records of what training
on them changes, and W [T, T] the covariance of the deviations from each record's own mean. The number is then judged as
LiRA judges one confidence, record by record, after each model's own level and spread are taken out where there are
reference records (`attacks.likelihood`).

trajectory           log-likelihood ratio of the weighed confidences, with the record against without it.
trajectory/offline   their standardised distance from the shadows without the record.
trajectory/slope     log-likelihood ratio of the least-squares slope of the confidences over the rounds.

Liu et al. ("Membership inference attacks by exploiting loss trajectory", CCS 2022) feed a network with trajectories
that they have to distil; here the broadcasts are the trajectory, and the shadows' servers give theirs along the same
rounds. LiRA on the released model is the same with all weight on the last round.

Needs the broadcasts of a run and shadow models. Records that no shadow was trained on are nan but for
trajectory/offline.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge
from attacks.likelihood import Values, likelihood_ratios, on_one_scale

LARGEST = 100.0  # confidence
RIDGE = 1e-3  # of the mean variance: neighbouring rounds hardly differ


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


class Trajectory:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.sequence is None or seen.shadows is None or seen.shadows.sequence is None:
            raise ValueError("the trajectory attack needs confidences over rounds, of shadow models too")
        member = seen.shadows.member
        target, shadows = (np.clip(found, -LARGEST, LARGEST) for found in (seen.sequence, seen.shadows.sequence))
        rounds = np.arange(float(len(target)))

        def judged(weights: Floats) -> tuple[Floats, Floats]:
            weighed = weights @ target, np.einsum("t,stn->sn", weights, shadows)
            return likelihood_ratios(*on_one_scale(*weighed, member, seen.known), member)

        online, offline = judged(discriminant(shadows, member))
        slope, _ = judged(rounds - rounds.mean())
        return dict(zip(Facts.names(), (online, offline, slope), strict=True))


def discriminant(shadows: Floats, member: NDArray[np.bool_]) -> Floats:
    """Fisher's weights [T] of confidences [S, T, n], of length 1; nan where no record has shadows of both kinds."""
    T = shadows.shape[1]
    kinds = [[Values.of(shadows[:, t], used) for t in range(T)] for used in (member, ~member)]
    inside, outside = (np.stack([one.mean for one in kind]) for kind in kinds)  # [T, n]
    both = member.any(0) & ~member.all(0)
    if not both.any():
        return np.full(T, np.nan)
    delta = (inside - outside)[:, both].mean(1)
    off = np.where(member[:, None], shadows - inside, shadows - outside).transpose(1, 0, 2).reshape(T, -1)
    within = off @ off.T / off.shape[1]
    level = np.trace(within) / T
    found: Floats = np.linalg.solve(within + (RIDGE * level or 1.0) * np.eye(T), delta)
    return found / (np.linalg.norm(found) or 1.0)
