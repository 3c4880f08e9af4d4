"""2-means from the squared distances of users to the means of two halves, and how far apart halves are that mean
nothing.

F is the scatter between the means of two halves over the scatter within them per degree of freedom (Calinski and
Harabasz 1974). It is about 1 for a random division. The division that 2-means finds is not random: its F also grows
with the number of users and falls with the dimension of the vectors. `best_divisions` therefore draws F for normal
vectors of the same number and dimension, brought to length 1.

The dimension follows from what is revealed. Let K be the inner products of the centred vectors. Squared distances to
two means tell K w up to a constant, where w is 1 / |A| for the users of one half and -1 / |B| for those of the other.
For normal vectors with covariance S and a unit vector q, the part of K q orthogonal to q has mean square
q' K q tr(S^2) / tr(S) per degree of freedom, and tr(S)^2 / tr(S^2) is called the effective dimension. 2-means chooses
contrasts by what earlier looks told. Therefore K is reduced by these first: K' = K - K q (K q)' / (q' K q) for each
earlier q, and the next q is orthogonal to them. If variances are equal in all directions, K is a Wishart matrix, and K'
is one, too, independent of what was told.

Arrays lead with a batch of independent draws, B: halves [B, n] of 0 and 1, distances [B, n, 2].
"""

import functools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

DRAWS = 200
LOOKS = 20  # steps of 2-means of a draw; it starts again when it has converged, as the server does
LARGEST = 10**6  # entries of the arrays of draws that are held at once
NEW = 0.05  # a contrast of which a smaller part is orthogonal to earlier ones tells nothing new


def turned(half: Numbers, distances: Floats, least: int) -> Numbers:
    """The halves [B, n] after a step: users go to the other half if they add less scatter there. Only the surest half
    of these users go, and `least` stay in each half: if all went at once they might go back and forth for ever."""
    rows, half = np.arange(len(half)), half.copy()
    size = _sizes(half)[:, None]
    of_side = half[..., None] == np.arange(2)
    costs = distances * np.where(of_side, size / np.maximum(1, size - 1), size / (size + 1))
    gain = (costs[..., 0] - costs[..., 1]) * (1 - 2 * half)
    order = np.argsort(-gain, axis=1, kind="stable")
    going, left = ((gain > 0).sum(1) + 1) // 2, _sizes(half)
    for place in range(going.max()):
        user = order[:, place]
        side = half[rows, user]
        goes = (place < going) & (left[rows, side] > least)
        half[rows[goes], user[goes]] = 1 - side[goes]
        left[rows[goes], side[goes]] -= 1
        left[rows[goes], 1 - side[goes]] += 1
    return half


def gap(half: Numbers, distances: Floats) -> Floats:
    """The squared distances [B] between both means, from how much farther a half's users are from the other mean."""
    farther = (distances[..., 1] - distances[..., 0]) * (1 - 2 * half)
    size = _sizes(half)
    return ((farther * (half == 0)).sum(1) / size[:, 0] + (farther * (half == 1)).sum(1) / size[:, 1]) / 2


def apart(half: Numbers, distances: Floats) -> Floats:
    """F [B] of two halves. Without scatter within, infinite, or 0 if the means do not differ."""
    n = half.shape[1]
    between = _sizes(half).prod(1) / n * gap(half, distances)
    within = np.take_along_axis(distances, half[..., None], 2).sum((1, 2))
    nothing = np.where(between > 0, np.inf, 0.0)
    return np.where(within > 0, between * (n - 2) / np.where(within > 0, within, 1.0), nothing)


@functools.cache
def best_divisions(users: int, least: int, dimension: int) -> Floats:
    """F [DRAWS], ascending, of the best division of so many normal vectors of length 1 that 2-means finds in `LOOKS`
    steps, with `least` in each half; the same in every call."""
    rng = np.random.default_rng((users, least, dimension))
    most = max(1, LARGEST // (users * max(users, dimension)))
    parts = [min(most, DRAWS - done) for done in range(0, DRAWS, most)]
    return np.sort(np.concatenate([_best(rng.normal(size=(draws, users, dimension)), least, rng) for draws in parts]))


def _best(vectors: Floats, least: int, rng: np.random.Generator) -> Floats:
    vectors = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    inner = vectors @ vectors.swapaxes(1, 2)
    half, best = random_halves(inner.shape[:2], rng), np.zeros(len(inner))
    for _ in range(LOOKS):
        distances = _distances(inner, half)
        best = np.maximum(best, apart(half, distances))
        after = turned(half, distances, least)
        settled = (after == half).all(1, keepdims=True)
        half = np.where(settled, random_halves(half.shape, rng), after)
    return best


def random_halves(shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Random halves [B, n] of equal size."""
    return (rng.random(shape).argsort(-1).argsort(-1) < shape[-1] // 2).astype(np.int64)


def effective_dimension(scatter: float, contrasts: Floats, products: Floats) -> float:
    """tr(S)^2 / tr(S^2) of n users' vectors with covariance S, from tr(S) as `scatter`, and for the looks at halves
    so far, in order, the contrasts w [k, n] and products K w [k, n] up to a constant; infinite if nothing varies."""
    n = contrasts.shape[1]
    directions, reduced = [np.full(n, n**-0.5)], list[tuple[Floats, float]]()  # the q, and K' q with q' K' q
    images = [np.zeros(n)]
    unlike = usual = 0.0
    for contrast, product in zip(contrasts, products, strict=True):
        shares = np.stack(directions) @ contrast
        rest = contrast - shares @ np.stack(directions)
        length = float(np.linalg.norm(rest))
        if length < NEW * np.linalg.norm(contrast) or len(directions) >= n // 2:
            continue
        q = rest / length
        image = (product - shares @ np.stack(images)) / length  # K q
        left = image - sum((old @ q) / size * old for old, size in reduced)  # K' q
        size = float(left @ q)
        directions.append(q)
        images.append(image)
        if size <= NEW**2 * scatter:  # the vectors have no further directions
            continue
        reduced.append((left - left.mean(), size))
        basis = np.stack(directions)
        unexplained = left - (basis @ left) @ basis
        unlike += float(unexplained @ unexplained)
        usual += size * (n - len(directions))
    return scatter * usual / unlike if unlike > 0 else np.inf


def _sizes(half: Numbers) -> Numbers:
    second = half.sum(1)
    return np.stack([half.shape[1] - second, second], axis=1)


def _distances(inner: Floats, half: Numbers) -> Floats:
    """Squared distances [B, n, 2] of vectors with inner products [B, n, n] to the means of both halves."""
    shares = (half[..., None] == np.arange(2)) / _sizes(half)[:, None]
    products = inner @ shares
    lengths = np.einsum("bnn->bn", inner)
    return lengths[..., None] - 2 * products + (shares * products).sum(1)[:, None]
