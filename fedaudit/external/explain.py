"""Checks whether a run that was recorded elsewhere explains itself: every global model must follow from what the server
received.

If the server takes a mean, then M' = sum_k w_k U_k for the next global model M', the uploads U_k and weights w_k >= 0
that sum to 1. So with X_k = U_k - M' the smallest ||sum_k w_k X_k|| over such weights is zero but for rounding, and far
from zero where a file holds something else. All that is needed is the Gram matrix of the X_k, tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

if TYPE_CHECKING:
    from fedaudit.trainers.base import State

Matrix = NDArray[np.float64]

EXACT = 1e-4  # of a client's step: a right recording leaves about 1e-7 unexplained
REFUSED = 0.9  # of a client's step: right recordings lie far below, uploads that are no states above
SMALL = 1e-5  # times the sizes of its factors: a smaller product is rounding
ROUNDINGS = 4  # of the stored dtype, that may come together


@dataclass(frozen=True)
class Tensor:
    """One tensor of a round, as its n senders sent it. With a weight for "no change", the model before the round is one
    more row of the Gram matrix, the last."""

    senders: tuple[int, ...]
    gram: Matrix  # [n, n]: products of what was received less the next model
    step: float  # root mean square over senders of ||U_k - M||
    rounding: float  # norm that rounding alone may leave unexplained


@dataclass(frozen=True)
class Fit:
    """How the next global model follows from what was received."""

    unexplained: float  # norm of the rest, in root mean square steps of a client
    tolerance: float  # what rounding may leave, in the same unit; at least EXACT
    tensor: str  # name of the tensor that is explained worst, beyond its own tolerance; "" if all are explained
    weights: Mapping[int, float]  # by client, of those tensors that most numbers are in

    @property
    def explained(self) -> bool:
        return self.unexplained <= self.tolerance and not self.tensor


def tensors_of(
    before: State, after: State, sent: Mapping[int, State], precision: float, *, still: bool = False
) -> dict[str, Tensor]:
    """The tensors of a round by name. `precision` is the largest relative rounding error of the files; with `still`,
    part of the weight may stay with the model before the round."""
    tensors = {}
    for name, target in after.items():
        senders = tuple(client for client, state in sent.items() if name in state)
        rows = [sent[client][name] for client in senders]
        start, goal = before[name].double().flatten(), target.double().flatten()
        received = torch.stack([row.double().flatten() for row in rows]) if rows else start[None]
        step = float((received - start).norm()) / math.sqrt(len(received))
        largest = max(float(received.norm()) / math.sqrt(len(received)), float(goal.norm()))
        rest = (torch.cat([received, start[None]]) if still and rows else received) - goal
        gram = (rest @ rest.T).numpy()
        tensors[name] = Tensor(senders, gram, step, ROUNDINGS * precision * largest)
    return tensors


def fit(tensors: Mapping[str, Tensor]) -> Fit:
    """The best explanation of a round by weights >= 0 that sum to 1, for each set of clients that sent the same
    tensors."""
    weights = {senders: simplex_weights(_gram(part)) for senders, part in _by_senders(tensors).items()}
    return _fit(tensors, weights)


def fit_stated(tensors: Mapping[str, Tensor], stated: Mapping[int, float]) -> Fit:
    """How well `stated` weights (by client, of any sum) explain a round. A tensor's weights sum to 1 over its
    senders."""
    weights = {}
    for senders, part in _by_senders(tensors).items():
        counts = np.array([stated[client] for client in senders], np.float64)
        share = counts / counts.sum() if len(counts) and counts.sum() else np.ones(len(_gram(part)))
        weights[senders] = np.pad(share, (0, len(_gram(part)) - len(share)))
    return _fit(tensors, weights)


def simplex_weights(gram: Matrix) -> Matrix:
    """The weights w >= 0 [n] with sum 1 that minimise w' G w, for a positive semidefinite `gram` G [n, n].

    Minimising w' G w + c (sum w - 1)^2 over w >= 0 gives the same direction for every c > 0.
    """
    scale = float(np.trace(gram)) / len(gram)
    if not scale > 0:
        return np.full(len(gram), 1 / len(gram))
    values, vectors = np.linalg.eigh(gram / scale)
    root = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T
    weights, _ = nnls(np.vstack([root, np.ones(len(gram))]), np.append(np.zeros(len(gram)), 1.0))
    return np.asarray(weights / weights.sum(), np.float64)


def permutation(weights: Mapping[int, float], stated: Mapping[int, float]) -> dict[int, int]:
    """Return for each client of `weights` the client whose stated weight is nearest to its own, each once: from whom
    its file would have come."""
    from scipy.optimize import linear_sum_assignment

    clients, total = sorted(weights), sum(stated[client] for client in weights) or 1.0
    distance = [[abs(weights[k] - stated[j] / total) for j in clients] for k in clients]
    rows, columns = linear_sum_assignment(np.array(distance))
    return {clients[i]: clients[j] for i, j in zip(rows, columns, strict=True)}


def _by_senders(tensors: Mapping[str, Tensor]) -> dict[tuple[int, ...], list[Tensor]]:
    groups: dict[tuple[int, ...], list[Tensor]] = {}
    for tensor in tensors.values():
        groups.setdefault(tensor.senders, []).append(tensor)
    return groups


def _gram(part: Iterable[Tensor]) -> Matrix:
    return np.sum([tensor.gram for tensor in part], axis=0)


def _fit(tensors: Mapping[str, Tensor], weights: Mapping[tuple[int, ...], Matrix]) -> Fit:
    """The fit of these weights, by senders. The rest is measured by the step of all tensors together, and a single
    tensor by its own step."""
    rest = {n: math.sqrt(max(0.0, float(weights[t.senders] @ t.gram @ weights[t.senders]))) for n, t in tensors.items()}
    step = _norm(t.step for t in tensors.values())
    beyond = {n: rest[n] / max(t.rounding, EXACT * t.step, 1e-30) for n, t in tensors.items()}
    worst = max(beyond, key=beyond.__getitem__)
    most = max(_by_senders(tensors).items(), key=lambda group: (bool(group[0]), sum(t.step for t in group[1])))[0]
    return Fit(
        unexplained=_norm(rest.values()) / step if step else math.inf if _norm(rest.values()) else 0.0,
        tolerance=max(EXACT, _norm(t.rounding for t in tensors.values()) / step) if step else EXACT,
        tensor=worst if beyond[worst] > 1 else "",
        weights=dict(zip(most, weights[most].tolist(), strict=False)),
    )


def _norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def same(one: State, other: State) -> bool:
    """Whether two states have the same tensors, each with the same numbers."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def same_effect(one: State, other: State) -> bool:
    """Whether two states have the same tensors, and each has the same numbers or, of an adapter, none that count: a
    factor does nothing while its other factor is zero in both."""

    def idle(name: str) -> bool:
        layer, _, half = name.rpartition(".")
        pair = f"{layer}.{'BA'['AB'.index(half)]}" if half in ("A", "B") else ""
        return pair in one and pair in other and not (one[pair].any() or other[pair].any())

    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) or idle(name) for name, tensor in one.items()
    )


def does_something(adapter: State) -> bool:
    """Whether a product B A of an adapter is not zero, beyond rounding; False for prompts."""
    for name, b in adapter.items():
        if name.endswith(".B"):
            b, a = b.double(), adapter[f"{name[:-2]}.A"].double()
            size = ((b.mT @ b) * (a @ a.mT)).sum().clamp_min(0).sqrt()  # of the product, without making it
            if size > SMALL * b.norm() * a.norm():
                return True
    return False


def changes(before: State, sent: Mapping[int, State], sign: int = 1) -> dict[int, State]:
    """The states that `sent` would be if it held changes (with `sign` -1: start less state) of `before`."""
    return {
        client: {name: before[name] + sign * tensor for name, tensor in state.items()} for client, state in sent.items()
    }


def words(rounds: Sequence[int]) -> str:
    """ "round 3", "rounds 0, 1 and 4", or "rounds 0, 1, 2 and 7 more"."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if len(rounds) > 4:
        return f"rounds {', '.join(map(str, rounds[:3]))} and {len(rounds) - 3} more"
    return f"rounds {', '.join(map(str, rounds[:-1]))} and {rounds[-1]}"
