"""Sums over all users of SecFPP, as linear equations for the shares of one user's records.

The scatter W of users' classes about their means is a sum of one matrix per user, each of rank classes - 1. Where W is
0, or nothing but noise, no user's classes differ: so the differences between a user's class means, which are linear in
the shares of its records, must be short in the metric of W^-1. Who sees W only as the metric W^-1/2 that is sent to all
users has it but for its scale, and rounding. The second moment of the movements of prompts is such a sum too, of the
rows of each user's movement.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import PooledSum
from fedaudit.attacks.locate import GroupDistances
from fedaudit.attacks.messages.distances import UserVector
from fedaudit.attacks.messages.mixtures import compress
from fedaudit.trainers.prompts import Learner
from fedaudit.trainers.secfpp import RIDGE, SecFPP, class_weights, public_directions

EXACT = 1e-6  # times the mean eigenvalue of a sum: what is less is rounding
ROUNDED = 1e-5  # the same of a sum that was computed from its metric, in single precision


def pooled_sums(view: View, method: object, labels: Tensor, gradients: Callable[[], Tensor]) -> dict[str, PooledSum]:
    """Equations for the shares of a user's n candidates, by the name of the sum that gave them, "scatter" or "moment";
    without those that the view does not see.

    `labels` [n] of the candidates, and `gradients`, which computes their gradients [n, b d] at the public start if
    there is a sum (`start_gradients`).
    """
    assert isinstance(method, SecFPP)
    equations = dict[str, PooledSum]()
    if (scatter := _scatter(view, method)) is not None:
        matrix, floor = scatter
        marks = (gradients() @ public_directions(gradients().shape[1], len(matrix))).double()
        equations["scatter"] = between_classes(marks, F.one_hot(labels).double(), inverse_root(matrix, floor))
    if (moment := _moment(view)) is not None:
        rows = gradients().double().view(len(labels), -1, len(moment)) @ inverse_root(moment, EXACT)
        together = np.zeros(len(rows), np.int64)
        equations["moment"] = PooledSum(*compress(rows.flatten(1).numpy(), np.zeros(rows[0].numel())), together)
    return equations


def start_gradients(view: View, method: Any, learner: Learner, candidates: Sequence[str]) -> Tensor:
    """The gradients [n, b d] of single records at the public start."""
    (gradients,) = learner.gradients(method, {"prompt": view.public["p_0"]}, candidates)
    return gradients


def user_vectors(
    view: View, method: Any, learner: Learner, candidates: Sequence[Sequence[str]]
) -> list[UserVector] | None:
    """The vector of every user that distances are measured of, as the server expects it; None if the view sees no
    distances, or no metric, as where prompts are clustered."""
    metric = _metric(view)
    if metric is None or not told_distances(view):
        return None
    vectors = []
    for some in candidates:
        gradients = start_gradients(view, method, learner, some)
        marks = gradients @ public_directions(gradients.shape[1], len(metric))
        vectors.append(UserVector.of(marks.double() @ metric.double(), learner.labels(some).cpu()))
    return vectors


def told_distances(view: View) -> list[GroupDistances]:
    """The groups and distances of every round in which some were revealed to this view."""
    if not view.gives("distances"):
        return []
    rounds = (view.distances(r) for r in range(view.rounds))
    return [(groups, tensors["distances"].numpy()) for groups, tensors in rounds if groups]


def between_classes(marks: Tensor, classes: Tensor, root: Tensor) -> PooledSum:
    """The equations that say: a user's class means do not differ. `marks` [n, D] are the records' gradients in D
    directions, `classes` [n, C] a 1 at each record's class, and `root` [D, D] the metric in which differences count."""
    present = classes.sum(0) > 0
    classes = classes[:, present]
    weights = class_weights(classes.sum(0) / 2)  # half of the candidates are members
    deviations = weights.sqrt()[:, None] * (torch.eye(len(weights)) - weights)  # [C, C], of class means from the mean
    rows = torch.einsum("cn,nd->cdn", deviations.double() @ classes.T, marks @ root)
    left = rows.flatten(0, 1).numpy()
    return PooledSum(*compress(left.T, np.zeros(len(left))), classes.argmax(1).numpy())


def inverse_root(matrix: Tensor, floor: float) -> Tensor:
    """(M / m + floor)^-1/2 [D, D] of a matrix M with mean eigenvalue m."""
    values, vectors = torch.linalg.eigh(matrix.double() / (matrix.trace() / len(matrix)))
    return (vectors * (values.clamp(min=0) + floor) ** -0.5) @ vectors.T


def _scatter(view: View, method: SecFPP) -> tuple[Tensor, float] | None:
    """The scatter of classes [D, D], up to its scale, and what is noise or rounding in it by its mean eigenvalue; None
    if the view does not see it."""
    if view.gives("distances"):
        scatter = view.distances(0)[1].get("scatter")
        return None if scatter is None else (scatter, EXACT + _noise(view, method, scatter))
    if (metric := _metric(view)) is None:
        return None
    values, vectors = torch.linalg.eigh(metric.double())
    scatter = (vectors * (values**-2 - RIDGE)) @ vectors.T
    return scatter, ROUNDED + _noise(view, method, scatter)


def _metric(view: View) -> Tensor | None:
    """The metric [D, D] that was sent to all users; None if none was."""
    broadcasts = (view.broadcast(r) for r in range(1, view.rounds + 1))
    return next((state["metric"] for state in broadcasts if "metric" in state), None)


def _noise(view: View, method: SecFPP, scatter: Tensor) -> float:
    """The usual size of an eigenvalue of the users' noise by the mean eigenvalue of the scatter, whose trace is the
    number of users."""
    return float(method.noise * len(scatter) ** 1.5 / len(view.clients))


def _moment(view: View) -> Tensor | None:
    """The first second moment [d, d] of the movements of prompts that was revealed; None if the view sees none."""
    if not view.gives("distances"):
        return None
    return next((m for r in range(view.rounds) if (m := view.distances(r)[1].get("moment")) is not None), None)
