"""Solves one message for the classes and picture embeddings of its batch, without any of its records as candidates.

A server knows the text features t_c of the start, and how each moves with the prompt. So the gradient of a record is a
known function of its embedding x and its class y,
    g(x, y) = sum_c (p_c - [c = y]) s dt_c/dprompt^T x,   p = softmax(s t x),
and a message is the mean of |B| of these. Embeddings of a distribution lie near few directions: those of known
non-members. The server solves for the coordinates in the first 4, 8, 12 and then 30 of their principal directions, by
Levenberg and Marquardt's steps. The equations are weighted by what the references' gradients lose in as few directions,
coordinates by the spread that they have in the references: the most probable batch, were all of this normal.

The numbers of records of each class come first, from the mean gradients of the references' classes. They are right for
few batches. So in each subspace a solution also tries to change the class of single records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import lsq_linear
from scipy.special import softmax

from fedaudit.attacks.knowledge import Floats, SolvedBatch
from fedaudit.trainers.prompts import PromptMethod

Labels = NDArray[np.int64]

DIRECTIONS = (4, 8, 12, 30)  # coordinates of an embedding, subspace by subspace
TRIED = (16, 6, 3, 1)  # solutions that are looked at in each, the best of those in the one before
COMPOSITIONS, STARTS = 8, 2  # numbers of records by class with which it begins, and random starts of each
SUM = 1e3  # weight of the equation for the number of records
KEPT = 1e-4  # times the largest singular value: directions of the message with smaller ones are left out
SHRINKAGE = 0.01  # share of the mean variance that is added to variances estimated from few references
PRIOR = 0.5  # weight of a coordinate of one standard deviation, beside an equation that is off by one
SHIFT = 0.3  # standard deviations by which random starts differ
STEPS = 30  # most steps in one subspace
ROUNDING = 1e-12  # times the mean of a matrix' diagonal: smaller values are rounding errors
STILL = 1e-3  # a solution rests if a step gains less, relatively
MOVES = 3  # changes of one record's class that are tried, of those that promise most


def refusal(method: Any) -> str | None:
    """Why no first message of a method can be solved for what it holds, as a clause; None if it can."""
    if not isinstance(method, PromptMethod):
        return "its prompts change the embeddings of pictures, too"
    if method.settings.several:
        return "its message is a sum over several local steps, and only the first of them began at the public start"
    if method.patches:
        return "it compares patches of pictures, of which each record has many"
    if method.settings.class_contexts:
        return "it is solved for one context of all classes"
    if method.protection.stds.get("p_G") and not method.central:
        return "its clients add noise to what they send"
    if method.protection.privacy.sampler == "poisson":
        return "its batches have unknown sizes"
    return None


@dataclass(frozen=True, eq=False)
class Start:
    """The public start as a message is solved there: C classes, embeddings of E numbers, P parameters."""

    text: Floats  # [C, E], text features
    back: Callable[[Floats], Floats]  # directions [D, E] to their products [C, D, P] with dt_c/dprompt
    scale: float  # of logits

    def gradients(self, products: Floats, basis: Floats, coordinates: Floats, labels: Labels) -> Floats:
        """Gradients [n, ..] of records with embeddings `coordinates` [n, D] @ `basis` [D, E], from the `products` [C,
        D, ..] of the basis."""
        errors = softmax(self.scale * coordinates @ (basis @ self.text.T), axis=1)
        errors[np.arange(len(labels)), labels] -= 1
        return self.scale * np.einsum("nc,nd,cdp->np", errors, coordinates, products, optimize=True)


@dataclass(frozen=True, eq=False)
class References:
    """Known non-members: their embeddings [n, E], labels [n], and gradients [n, P] at the start."""

    embeddings: Floats
    labels: Labels
    gradients: Floats


def solve_contents(start: Start, references: References, sent: Floats, size: int, seed: int = 0) -> SolvedBatch:
    """The classes and embeddings of the `size` records whose mean gradient is `sent` [P]. Classes that no reference has
    are taken to be absent."""
    classes = np.unique(references.labels)
    fits, gradients, target = equations(start, references, sent, size)
    columns, message = _of_classes(gradients, references.labels, target, size)
    chance = np.random.default_rng(seed)
    tried = [(np.zeros((size, 0)), np.repeat(classes, counts)) for counts in compositions(columns, message, size)]
    tried = [one for one in tried for _ in range(STARTS)]
    for fit, most in zip(fits, TRIED, strict=True):
        solutions = dict[tuple[int, ...], tuple[float, Floats, Labels]]()
        for z, labels in tried[:most]:
            one = improve(fit, *descend(fit, fit.grown(z, chance), labels), labels, classes)
            key = tuple(np.sort(one[2]).tolist())
            if key not in solutions or one[0] < solutions[key][0]:
                solutions[key] = one
        best = sorted(solutions.values(), key=lambda one: one[0])
        tried = [(z, labels) for _, z, labels in best]
    z, labels = tried[0]
    return SolvedBatch(labels, fits[-1].units(z)[0] @ fits[-1].basis)


def compositions(columns: Floats, sent: Floats, size: int, most: int = COMPOSITIONS) -> Labels:
    """The `most` numbers of records by class [most, C], each in sum `size`, for which |columns @ numbers / size - sent|
    is least, the best first.

    `columns` [m, C] are the classes' mean gradients. It starts from bounded least squares, and looks at what differs
    from one of the best by one record until these no longer change.
    """
    classes = columns.shape[1]
    rows = np.vstack([columns / size, SUM * np.ones(classes)])
    numbers = lsq_linear(rows, np.append(sent, SUM * size), (0, size)).x
    first = np.floor(numbers).astype(np.int64)
    first[np.argsort(first - numbers, kind="stable")[: size - first.sum()]] += 1
    square, product = columns.T @ columns / size**2, columns.T @ sent / size
    by_numbers, looked_at = {tuple(first.tolist()): 0.0}, set[tuple[int, ...]]()
    while new := [one for one in _least(by_numbers, most) if one not in looked_at]:
        looked_at.update(new)
        for one in new:
            swaps = np.array(one) + np.eye(classes, dtype=int)[None] - np.eye(classes, dtype=int)[:, None]
            near = swaps.reshape(-1, classes)
            near = near[(near >= 0).all(1)]
            costs = np.einsum("nc,cd,nd->n", near, square, near) - 2 * near @ product
            by_numbers |= zip(map(tuple, near.tolist()), costs.tolist(), strict=True)
    return np.array(_least(by_numbers, most))


def _least(costs: dict[tuple[int, ...], float], most: int) -> list[tuple[int, ...]]:
    return sorted(costs, key=lambda one: (costs[one], one))[:most]


@dataclass(frozen=True, eq=False)
class Subspace:
    """Weighted equations [r] for coordinates z [B, k] of B records, whose embeddings are mean + z @ directions, divided
    by their length."""

    basis: Floats  # [k + 1, E], the mean, then k directions
    logits: Floats  # [C, k + 1], of the basis
    products: Floats  # [C, r, k + 1], of the basis
    sent: Floats  # [r]
    spread: Floats  # [k], of the coordinates

    def grown(self, z: Floats, chance: np.random.Generator) -> Floats:
        """Coordinates of a smaller subspace in this one [B, k], new ones at random."""
        new = self.spread[z.shape[1] :]
        return np.hstack([z, SHIFT * new * chance.standard_normal((len(z), len(new)))])

    def units(self, z: Floats) -> tuple[Floats, Floats]:
        """(Embeddings of length 1 in the basis [B, k + 1], the lengths [B] by which they were divided)."""
        whole = np.hstack([np.ones((len(z), 1)), z])
        lengths = np.linalg.norm(whole @ self.basis, axis=1)
        return whole / lengths[:, None], lengths

    def by_class(self, units: Floats) -> Floats:
        """The products [B, C, r] of each record's embedding."""
        classes, rows, _ = self.products.shape
        flat = units @ self.products.reshape(classes * rows, -1).T
        return flat.reshape(len(units), classes, rows)

    def residuals(self, z: Floats, labels: Labels) -> Floats:
        """The part of the message that the batch leaves unexplained, and the weighted coordinates, [r + B k]."""
        units, _ = self.units(z)
        outer = _errors(units @ self.logits.T, labels).T @ units
        rest = (self.products @ outer[:, :, None]).sum(0)[:, 0] / len(z) - self.sent
        return np.append(rest, PRIOR * z / self.spread)

    def jacobian(self, z: Floats, labels: Labels) -> Floats:
        """Derivatives [r + B k, B k] of `residuals`."""
        units, lengths = self.units(z)
        records, k = z.shape
        probabilities = softmax(units @ self.logits.T, axis=1)
        above = probabilities[:, :, None] * (self.logits - (probabilities @ self.logits)[:, None])  # [B, C, k + 1]
        errors = _errors(units @ self.logits.T, labels) @ self.products.reshape(len(self.logits), -1)
        in_units = self.by_class(units).swapaxes(1, 2) @ above + errors.reshape(records, -1, k + 1)
        turn = np.eye(k + 1)[None, :, 1:] - units[:, :, None] * (units @ self.basis @ self.basis[1:].T)[:, None]
        blocks = in_units @ turn / lengths[:, None, None] / records  # [B, r, k]
        return np.vstack(
            [blocks.swapaxes(0, 1).reshape(-1, records * k), np.diag(PRIOR / np.tile(self.spread, records))]
        )


def _errors(logits: Floats, labels: Labels) -> Floats:
    errors: Floats = softmax(logits, axis=1)
    errors[np.arange(len(labels)), labels] -= 1
    return errors


def equations(start: Start, references: References, sent: Floats, size: int) -> tuple[list[Subspace], Floats, Floats]:
    """(The equations of each subspace, the references' gradients [n, r] and the message [r], both in the directions
    that they have in common)."""
    mean = references.embeddings.mean(0)
    _, values, directions = np.linalg.svd(references.embeddings - mean, full_matrices=False)
    most = min(DIRECTIONS[-1], len(values) - 1)
    basis, spread = np.vstack([mean, directions[:most]]), values[:most] / np.sqrt(len(references.labels) - 1)
    products = start.back(basis)  # [C, k + 1, P]
    turned = _directions(products * np.append(np.linalg.norm(mean), spread)[:, None])
    products, gradients, target = products @ turned, references.gradients @ turned, sent @ turned
    fits = []
    for k in (min(k, most) for k in DIRECTIONS):
        some = basis[: k + 1]
        inside = np.linalg.lstsq(some.T, references.embeddings.T, rcond=None)[0].T
        inside /= np.linalg.norm(inside @ some, axis=1, keepdims=True)
        lost = gradients - start.gradients(products[:, : k + 1], some, inside, references.labels)
        weights = _whitening(lost / np.sqrt(size))
        weighted = np.ascontiguousarray((start.scale * products[:, : k + 1] @ weights.T).swapaxes(1, 2))
        fits.append(Subspace(some, start.scale * start.text @ some.T, weighted, weights @ target, spread[:k]))
    return fits, gradients, target


def _directions(products: Floats) -> Floats:
    """Orthonormal columns [P, r] that span products [C, D, P], without directions in which they hardly reach."""
    rows = products.reshape(-1, products.shape[-1])
    values, vectors = np.linalg.eigh(rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T)
    kept = values > KEPT**2 * values[-1]
    columns = vectors[:, kept]
    return columns if rows.shape[0] > rows.shape[1] else rows.T @ (columns / np.sqrt(values[kept]))


def _whitening(errors: Floats) -> Floats:
    """The matrix [r, r] that gives vectors distributed as `errors` [n, r] the covariance 1."""
    covariance = errors.T @ errors / len(errors)
    covariance += (SHRINKAGE * np.trace(covariance) / len(covariance) + 1e-30) * np.eye(len(covariance))
    return np.linalg.inv(np.linalg.cholesky(covariance))


def _of_classes(gradients: Floats, labels: Labels, sent: Floats, size: int) -> tuple[Floats, Floats]:
    """The classes' mean gradients [r, C] and the message [r], weighted by how gradients vary within classes."""
    means = np.stack([gradients[labels == c].mean(0) for c in np.unique(labels)])
    within = gradients - means[np.unique(labels, return_inverse=True)[1]]
    weights = _whitening(within / np.sqrt(size))
    return weights @ means.T, weights @ sent


def descend(fit: Subspace, z: Floats, labels: Labels) -> tuple[float, Floats]:
    """(Sum of squares, coordinates [B, k]) after Levenberg and Marquardt's steps from z, in Marquardt's scaling."""
    rest, damping = fit.residuals(z, labels), 1e-2
    cost = float(rest @ rest)
    for _ in range(STEPS):
        slope = fit.jacobian(z, labels)
        square, downhill = slope.T @ slope, -slope.T @ rest
        before = cost
        while damping < 1e6:
            step = _solved(square + np.diag(damping * np.diag(square)), downhill)
            new = z + step.reshape(z.shape)
            rest = fit.residuals(new, labels)
            if rest @ rest < cost:
                z, cost, damping = new, float(rest @ rest), max(damping / 5, 1e-9)
                break
            damping *= 4
        if before - cost <= STILL * before:
            break
    return cost, z


def _solved(square: Floats, right: Floats) -> Floats:
    """The solution of normal equations, with a ridge of rounding's size: where a record has nothing to move they are
    singular."""
    ridge = ROUNDING * float(np.trace(square)) / len(square) + np.finfo(float).tiny
    solution: Floats = cho_solve(cho_factor(square + ridge * np.eye(len(square))), right)
    return solution


def improve(
    fit: Subspace, cost: float, z: Floats, labels: Labels, classes: Sequence[int] | Labels
) -> tuple[float, Floats, Labels]:
    """(Sum of squares, coordinates, labels) once no change of one record's class helps, of the `MOVES` that promise
    most: those with the least sum of squares if the equations were linear."""
    while True:
        rest, slope = fit.residuals(z, labels), fit.jacobian(z, labels)
        moves = [(i, c) for i in range(len(labels)) for c in classes if c != labels[i]]
        if not moves:  # there is one class
            return cost, z, labels
        by_class = fit.by_class(fit.units(z)[0]) / len(labels)
        moved = np.repeat(rest[:, None], len(moves), axis=1)
        moved[: len(fit.sent)] += np.array([by_class[i, labels[i]] - by_class[i, c] for i, c in moves]).T
        linear = slope.T @ moved
        expected = (moved**2).sum(0) - (linear * _solved(slope.T @ slope, linear)).sum(0)
        options = [(cost, z, labels)]
        for i, c in (moves[j] for j in np.argsort(expected)[:MOVES]):
            changed = labels.copy()
            changed[i] = c
            options.append((*descend(fit, z, changed), changed))
        best = min(options, key=lambda one: one[0])
        if best[0] >= cost:
            return cost, z, labels
        cost, z, labels = best
