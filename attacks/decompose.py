"""Decompose: each message is solved for the records that were learnt from, all of a client's records together.

Prompts: a message is the mean of its batch's gradients, up to clipping and noise, and the server can compute the
gradient of every candidate in the model from which the client started. So for each round
    min | gradients @ shares / |B| - sent |   over shares in [0, 1] that sum to |B|
finds the batch: bounded least squares (Stark and Parker 1995, scipy's `lsq_linear`). Attacks that look at one record at
a time see little, as the gradients of a client's records are alike. `attacks.knowledge.Mixture` holds what the method's
clipping, sampler, momentum and local steps tell about the shares.

decompose    the sum over rounds of the record's share / (1 + e), where e bounds how far the residual can change a share
             (residual |B| / smallest singular value of the gradients): a round counts little once the replay of the
             client's own part has failed.

Needs the server's view (uploads). Looks at the first rounds of a client (`--solved-rounds`), where the replay is best.
Records with equal gradients share their weight. Other clients' records, and records without gradient, are NaN.

Adapters: a message is the sum of AdamW steps and no sum of gradients, so that it has no shares. A ridge regression of
its direction on the records' gradients, each number divided by its size over the records (`attacks.messages.ridge`),
finds the members all the same. This is ours; no paper has it.

decompose    the mean over all messages of the record's weight in the regression.

A server has a client's messages and regresses each on the client's candidates and some known non-members. Whoever has
the broadcasts only regresses the change of each on the candidates of all clients that took part in the round.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import ROUNDING, Attack, Floats, Knowledge, Mixture, mean_of_finite

SUM = 1e3  # weight of the equation for the sum of the shares
SAME = 1e-5  # times the longest gradient: gradients that differ by less are equal, and a shorter one is zero
ITERATIONS = 10  # most iterations of the solver per unknown


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 5
    needs = ("sums of uploads",)
    needs_on_texts = ("broadcasts",)
    mixtures = True
    signals = (("decompose", "decomposition", "the part in the messages"),)


@dataclass(frozen=True)
class Params:
    """The decomposition has no parameters."""


class Decompose(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.explained is not None:
            return {"decompose": mean_of_finite(np.stack([message.weights for message in knowledge.explained]))}
        if knowledge.rounds is None:
            raise ValueError("the decomposition needs what was seen of rounds")
        total = np.full(len(knowledge.records), np.nan)
        for mixture in knowledge.rounds.mixtures:
            solution = solve(mixture)
            solved = np.flatnonzero(~np.isnan(solution.shares))
            total[solved] = np.nan_to_num(total[solved]) + np.abs(solution.shares[solved]) * solution.weight
        return {"decompose": total}


@dataclass(frozen=True, eq=False)
class Solution:
    """The estimated shares of n records in one message (see `Mixture`), and how well they explain it."""

    shares: Floats  # [n], NaN for records without gradient
    residual: float  # the unexplained part of the message by its norm, 0 to 1
    least: float  # smallest singular value of the gradients
    error: float  # bound on how far the residual can change a share

    @property
    def weight(self) -> float:
        """Weight of the message among others: 1 / (1 + error), 1 if the shares explain it fully."""
        return 1 / (1 + self.error)


@functools.lru_cache(maxsize=64)
def solve(mixture: Mixture) -> Solution:
    """Find the shares that explain a message best, within the bounds of the mixture.

    Ridge-regularised towards the batch rate; the penalty is the noise variance, as far as a first fit without penalty
    leaves that much unexplained: the most probable shares if shares and noise were normal. A message of zeros only
    gives shares 0, and weight 1.
    """
    group = group_equal(mixture.gradients)
    members = np.bincount(group[group >= 0])
    if not mixture.sent.any() or not len(members):
        return Solution(np.where(group < 0, np.nan, 0.0), 0.0, 0.0, 0.0)
    columns = mixture.gradients[:, [int(np.argmax(group == g)) for g in range(len(members))]] / mixture.divisor
    _, unexplained = _fit_shares(mixture, columns, members, 0.0)
    excess = max(0.0, unexplained**2 - mixture.numbers * mixture.std**2) / len(columns)
    summed, residual = _fit_shares(mixture, columns, members, math.sqrt(mixture.std**2 + excess))
    values = np.linalg.svd(columns, compute_uv=False)
    least = max(float(values[-1]), ROUNDING * float(values[0]))
    shares = np.where(group < 0, np.nan, (summed / members)[group])
    return Solution(shares, residual / float(np.linalg.norm(mixture.sent)), least, residual / least)


def group_equal(gradients: Floats) -> NDArray[np.int32]:
    """For each column of gradients [m, n] the number, from 0, of its group of equal columns [n]; -1 for zero
    columns."""
    lengths = np.linalg.norm(gradients, axis=0)
    tolerance = SAME * lengths.max(initial=0.0)
    some = np.flatnonzero(lengths > tolerance)
    group = np.full(len(lengths), -1, np.int32)
    if len(some):
        near = squareform(pdist(gradients[:, some].T)) <= tolerance
        group[some] = connected_components(near, directed=False)[1]
    return group


def _fit_shares(mixture: Mixture, columns: Floats, members: NDArray[np.int64], std: float) -> tuple[Floats, float]:
    """Summed shares [g] of g groups of `members` [g] records with equal gradients, and the norm of what they leave
    unexplained of the message. `columns` [m, g] are the groups' gradients, `std` of the noise in each row."""
    length = float(np.linalg.norm(mixture.sent))
    chance = min(mixture.total / members.sum(), mixture.high / 2)
    pull = std / np.sqrt(chance * (mixture.high - chance) * members)
    rows = np.vstack([columns, np.diag(pull)]) / length
    target = np.concatenate([mixture.sent, pull * chance * members]) / length
    low, high, summed = mixture.low * members, mixture.high * members, np.ones(len(members))
    if mixture.scaled:  # a further unknown u: the message times 1 + u
        rows = np.column_stack([rows, np.append(-mixture.sent / length, np.zeros(len(members)))])
        low, high, summed = np.append(low, 0.0), np.append(high, np.inf), np.append(summed, 0.0)
    if mixture.known == "at most":  # a further unknown: the shares of other records
        rows = np.column_stack([rows, np.zeros(len(rows))])
        low, high, summed = np.append(low, 0.0), np.append(high, mixture.total), np.append(summed, 1.0)
    if mixture.known != "on average":
        rows, target = np.vstack([rows, SUM * summed]), np.append(target, SUM * mixture.total)
    unknowns = lsq_linear(rows, target, (low, high), method="bvls", max_iter=ITERATIONS * rows.shape[1]).x
    scale = 1 + unknowns[len(members)] if mixture.scaled else 1.0
    shares: Floats = unknowns[: len(members)]
    return shares, float(np.linalg.norm(columns @ shares / scale - mixture.sent))
