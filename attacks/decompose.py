"""Decompose: the server solves each message for the records that its batch held.

A message is the mean of the gradients of its batch, of known form, and the server can compute the gradient of every
candidate where the client began. So per round
    min | gradients @ shares / |B| - sent |   over shares in [0, 1] that sum to |B|
names the batch: least squares with bounds (Stark and Parker 1995, as scipy's `lsq_linear` has them), where attacks that
look at one record at a time see little, because all records of a client pull the same way. What is known of the shares
by the method, its clipping, sampler, momentum and local steps is in `attacks.knowledge.Mixture`.

decompose    the sum over rounds of the record's share, divided by 1 + how far the residual may move a share (residual
             |B| / least singular value of the gradients): where the replay of the client's own part has broken down a
             round counts for little.

Needs the server's view (uploads). It is of the first rounds of a client (`--solved-rounds`), where the replay is best.
Records with equal gradients share their weight. Other clients' records, and those without any gradient, are nan.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge, Mixture

SUM = 1e3  # weight of the row that holds the sum of the shares
SAME = 1e-5  # of the longest gradient: those that differ by less are equal, and a shorter one is none
ROUNDING = 1e-7  # of the largest singular value: the least that can be told from 0
ITERATIONS = 10  # of the solver, times the records


class Facts(AttackFacts):
    records = ("classes",)
    strength = 5
    needs = ("sums of uploads",)
    mixtures = True
    signals = (("decompose", "decomposition", "the share of the client's messages"),)


@dataclass(frozen=True)
class Params:
    """The decomposition has no parameters."""


class Decompose:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.rounds is None:
            raise ValueError("the decomposition needs what was seen of rounds")
        total = np.full(len(seen.records), np.nan)
        for mixture in seen.rounds.mixtures:
            found = solve(mixture)
            own = np.flatnonzero(~np.isnan(found.shares))
            total[own] = np.nan_to_num(total[own]) + np.abs(found.shares[own]) * found.weight
        return {"decompose": total}


@dataclass(frozen=True, eq=False)
class Solution:
    """What one message says of who was in its batches."""

    shares: Floats  # [n], nan for records without gradient
    residual: float  # of what was sent, 0 to 1
    least: float  # singular value of the gradients
    error: float  # at most so far the residual moves a share

    @property
    def weight(self) -> float:
        """What the message counts for beside others, 1 where it is explained."""
        return 1 / (1 + self.error)


@functools.lru_cache(maxsize=64)
def solve(mixture: Mixture) -> Solution:
    """The shares that explain a message best, within what is known of them.

    As far as something stays unexplained, they are drawn to what chance gives a record: the most probable shares given
    noise of that size, were both normal.
    """
    group = equal_gradients(mixture.gradients)
    members = np.bincount(group[group >= 0])
    if not mixture.sent.any() or not len(members):
        return Solution(np.where(group < 0, np.nan, 0.0), 0.0, 0.0, 0.0)
    columns = mixture.gradients[:, [int(np.argmax(group == g)) for g in range(len(members))]] / mixture.divisor
    _, unexplained = _bounded(mixture, columns, members, 0.0)
    excess = max(0.0, unexplained**2 - mixture.numbers * mixture.std**2) / len(columns)
    found, residual = _bounded(mixture, columns, members, math.sqrt(mixture.std**2 + excess))
    values = np.linalg.svd(columns, compute_uv=False)
    least = max(float(values[-1]), ROUNDING * float(values[0]))
    shares = np.where(group < 0, np.nan, (found / members)[group])
    return Solution(shares, residual / float(np.linalg.norm(mixture.sent)), least, residual / least)


def equal_gradients(gradients: Floats) -> NDArray[np.int32]:
    """Which group of equal columns of gradients [m, n] each belongs to, [n], from 0; -1 where there is no gradient."""
    lengths = np.linalg.norm(gradients, axis=0)
    tolerance = SAME * lengths.max(initial=0.0)
    some = np.flatnonzero(lengths > tolerance)
    group = np.full(len(lengths), -1, np.int32)
    if len(some):
        near = squareform(pdist(gradients[:, some].T)) <= tolerance
        group[some] = connected_components(near, directed=False)[1]
    return group


def _bounded(mixture: Mixture, columns: Floats, members: NDArray[np.int64], std: float) -> tuple[Floats, float]:
    """Shares [g] of groups of records with one gradient each, and what they leave unexplained of the message, in its
    own units. `std`: of noise in each row."""
    length = float(np.linalg.norm(mixture.sent))
    chance = min(mixture.total / members.sum(), mixture.high / 2)
    pull = std / np.sqrt(chance * (mixture.high - chance) * members)
    rows = np.vstack([columns, np.diag(pull)]) / length
    target = np.concatenate([mixture.sent, pull * chance * members]) / length
    low, high, summed = mixture.low * members, mixture.high * members, np.ones(len(members))
    if mixture.scaled:  # 1 + another unknown times the message
        rows = np.column_stack([rows, np.append(-mixture.sent / length, np.zeros(len(members)))])
        low, high, summed = np.append(low, 0.0), np.append(high, np.inf), np.append(summed, 0.0)
    if mixture.known == "at most":  # what other records have
        rows = np.column_stack([rows, np.zeros(len(rows))])
        low, high, summed = np.append(low, 0.0), np.append(high, mixture.total), np.append(summed, 1.0)
    if mixture.known != "on average":
        rows, target = np.vstack([rows, SUM * summed]), np.append(target, SUM * mixture.total)
    found = lsq_linear(rows, target, (low, high), method="bvls", max_iter=ITERATIONS * rows.shape[1]).x
    scale = 1 + found[len(members)] if mixture.scaled else 1.0
    shares: Floats = found[: len(members)]
    return shares, float(np.linalg.norm(columns @ shares / scale - mixture.sent))
