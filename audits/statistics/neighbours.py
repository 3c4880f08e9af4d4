"""Exact nearest neighbours and counts of points in the maximum norm, for estimators of mutual information.

Two engines give the same counts. Where points have few coordinates a k-d tree (one coordinate alone is sorted) skips
most pairs of points; where they have many it visits nearly all of them, slowly, and blocks of plain distances are
faster. The two cross at about ln n coordinates: `python -m benchmarks.mutual_information switch`.

Shapes: x [n, p] and y [n, q] are n points in two sets of coordinates; counts [n] never include the point itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedaudit.audits.statistics.arrays import Bools, Floats, Ints

# Points about a point, in x: nearer than its k-th neighbour is in (x, y) (cube); at most as far as that (closed cube);
# at most as far as the farthest of its k neighbours is in x (rectangle)
Shape = Literal["cube", "closed cube", "rectangle"]
Engine = Literal["tree", "blocks"]

_ENTRIES = 2**20  # entries of a block of distances: 8 MiB, of which a few stay in the cache
_LEAF = 16  # points per leaf; searches of many points by radius are faster with more
_LEAF_OF_COUNTS = 64


@dataclass(frozen=True, eq=False)
class Counts:
    """By point [n], the number of others in its shape in x and in y, and the number of others equal to it in both,
    which is given as 0 where it is below k."""

    x: Ints
    y: Ints
    equal: Ints


def counts(x: Floats, y: Floats, k: int, *, shape: Shape = "cube", engine: Engine | None = None) -> Counts:
    """For every point, how many others lie, in x and in y alone, in the shape that its k nearest others in (x, y) span;
    and how many are equal to it in both, where at least k are (else 0). ValueError: not 1 <= k < n."""
    if not 1 <= k < len(x):
        raise ValueError(f"k must be at least 1 and below the number of points ({len(x)}), not {k}.")
    faster = engine or faster_engine(len(x), x.shape[1] + y.shape[1])
    return (_by_tree if faster == "tree" else _by_blocks)(x, y, k, shape)


def faster_engine(n: int, coordinates: int) -> Engine:
    """The faster engine for n points with so many coordinates."""
    return "tree" if coordinates <= math.log(n) else "blocks"


def counts_within(x: Floats, radius: Floats, *, closed: bool, engine: Engine | None = None) -> Ints:
    """The number of other points [n] of x [n, coordinates] that are nearer to each point than its radius [n], in the
    maximum norm; `closed`: or just as far."""
    if x.shape[1] == 1:
        return _on_a_line(x[:, 0], radius, closed=closed)
    if (engine or faster_engine(*x.shape)) == "tree":
        return _tree_counts(x, radius, closed=closed)
    return np.concatenate([_count_inside(block, radius[rows], closed=closed) for rows, block in _blocks(x)])


def kth_distance(x: Floats, k: int, *, engine: Engine | None = None) -> Floats:
    """Distance [n] of each point of x [n, coordinates] to its k-th nearest other, in the maximum norm."""
    if x.shape[1] == 1:
        order = np.argsort(x[:, 0])
        distance = np.empty(len(x))
        distance[order] = kth_on_a_line(x[order, 0], k)
        return distance
    if (engine or faster_engine(*x.shape)) == "tree":
        return _queried(x, k)[0]
    return np.concatenate([_smallest(block, k + 1)[0] for _, block in _blocks(x)])


def _by_tree(x: Floats, y: Floats, k: int, shape: Shape) -> Counts:
    """The result of `counts`, found by k-d trees: faster for many points of few coordinates."""
    joint = np.concatenate([x, y], axis=1)
    reach, nearest = _queried(joint, k)
    if shape == "rectangle":
        reaches = [np.abs(part[nearest] - part[:, None]).max(axis=(1, 2)) for part in (x, y)]
    else:
        reaches = [reach, reach]
    closed = shape != "cube"
    in_x, in_y = (counts_within(part, r, closed=closed, engine="tree") for part, r in zip((x, y), reaches, strict=True))
    equal = np.zeros(len(x), dtype=np.intp)
    if (reach == 0).any():
        equal[reach == 0] = _tree_counts(joint, np.zeros(len(x)), closed=True)[reach == 0]
    return Counts(in_x, in_y, equal)


def _by_blocks(x: Floats, y: Floats, k: int, shape: Shape) -> Counts:
    """The result of `counts`, found by blocks of distances between all points: faster for many coordinates."""
    parts = []
    for (_, in_x), (_, in_y) in zip(_blocks(x), _blocks(y), strict=True):
        joint = np.maximum(in_x, in_y)
        reach, nearest = _smallest(joint, k + 1)
        reaches = [reach, reach]
        if shape == "rectangle":
            reaches = [np.take_along_axis(part, nearest, axis=1).max(axis=1) for part in (in_x, in_y)]
        closed = shape != "cube"
        sides = [_count_inside(part, r, closed=closed) for part, r in zip((in_x, in_y), reaches, strict=True)]
        equal = _count_inside(joint, reach, closed=True) * (reach == 0)
        parts.append((*sides, equal))
    return Counts(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _queried(points: Floats, k: int) -> tuple[Floats, Ints]:
    """Distance to the k-th nearest other [n], and indices of the k + 1 nearest with the point itself [n, k + 1]."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points, leafsize=_LEAF)
    distance, nearest = np.empty(len(points)), np.empty((len(points), k + 1), dtype=np.intp)
    order = tree.indices  # neighbours one after the other find their branches in the cache
    near, nearest[order] = tree.query(points[order], k=k + 1, p=np.inf)
    distance[order] = near[:, -1]
    return distance, nearest


def _tree_counts(points: Floats, radius: Floats, *, closed: bool) -> Ints:
    """The result of `counts_within`, found by a k-d tree: how many others are nearer to each point than its radius
    [n]."""
    from scipy.spatial import cKDTree

    tree, count = cKDTree(points, leafsize=_LEAF_OF_COUNTS), np.empty(len(points), dtype=np.intp)
    order = tree.indices
    reach = radius if closed else np.nextafter(radius, -1)
    some = reach[order] >= 0  # an open ball of radius 0 is empty, without the point itself
    count[order[~some]] = 1
    count[order[some]] = tree.query_ball_point(points[order[some]], reach[order[some]], p=np.inf, return_length=True)
    return count - 1


def _on_a_line(x: Floats, radius: Floats, *, closed: bool) -> Ints:
    """The result of `counts_within` for numbers x [n]: how many others are nearer to each than its radius [n]."""
    at = np.sort(x)
    first, last = stretch(at, x, radius, closed=closed)
    return last - first - (closed | (radius > 0))  # the point itself is inside


def kth_on_a_line(at: Floats, k: int) -> Floats:
    """Distance of each number to its k-th nearest other, in the shape of `at`, which is sorted along its last axis; inf
    if there are not so many."""
    outside = np.full((*at.shape[:-1], k), np.inf)
    padded, n = np.concatenate([-outside, at, outside], axis=-1), at.shape[-1]
    spans = (np.maximum(at - padded[..., k - j : k - j + n], padded[..., 2 * k - j : 2 * k - j + n] - at)
             for j in range(k + 1))  # fmt: skip
    return functools.reduce(np.minimum, spans)


def stretch(at: Floats, x: Floats, radius: Floats, *, closed: bool) -> tuple[Ints, Ints]:
    """Indices first and last of the slice of the sorted numbers `at` whose distance to x is below `radius`, or not
    above it (`closed`); x and radius have the same shape, and so have the results.

    x + radius is rounded, so numbers at the edge are checked again by their distance.
    """
    padded = np.concatenate([[-np.inf], at, [np.inf]])

    def inside(index: Ints) -> Bools:
        distance = np.abs(padded[index + 1] - x)
        return distance <= radius if closed else distance < radius

    first, last = np.searchsorted(at, x - radius, "left"), np.searchsorted(at, x + radius, "right")
    last = np.maximum(last, first)
    while (more := inside(first - 1)).any():
        first = first - more
    while (less := (first < last) & ~inside(first)).any():
        first = first + less
    while (more := inside(last)).any():
        last = last + more
    while (less := (first < last) & ~inside(last - 1)).any():
        last = last - less
    return first, last


def _blocks(x: Floats) -> Iterator[tuple[slice, Floats]]:
    """Yield slices of the points' indices, each with the distances [rows, n] of its points to all points."""
    from scipy.spatial.distance import cdist

    step = max(1, _ENTRIES // len(x))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        yield rows, cdist(x[rows], x, "chebyshev")


def _smallest(block: Floats, k: int) -> tuple[Floats, Ints]:
    """The k-th smallest number of each row [rows], and column indices of the k smallest [rows, k]; faster than
    numpy."""
    import torch

    values, indices = torch.topk(torch.from_numpy(block), k, dim=1, largest=False)
    return values[:, -1].numpy(), indices.numpy()


def _count_inside(block: Floats, radius: Floats, *, closed: bool) -> Ints:
    """Number of distances per row [rows] below its radius [rows], without the point itself, whose distance is 0."""
    if closed:
        return np.count_nonzero(block <= radius[:, None], axis=1) - 1
    return np.maximum(np.count_nonzero(block < radius[:, None], axis=1) - 1, 0)
