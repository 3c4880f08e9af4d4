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
from typing import Literal

import numpy as np

from audits.statistics.arrays import Bools, Floats, Ints

Engine = Literal["tree", "blocks"]

_ENTRIES = 2**20  # entries of a block of distances: 8 MiB, of which a few stay in the cache
_LEAF = 16  # points per leaf; searches of many points by radius are faster with more
_LEAF_OF_COUNTS = 64


def counts(x: Floats, y: Floats, k: int, *, engine: Engine | None = None) -> tuple[Ints, Ints]:
    """By point [n], the number of others that are nearer in x, and in y, than its k-th nearest other is in (x, y)."""
    if (engine or faster_engine(len(x), x.shape[1] + y.shape[1])) == "tree":
        reach = _queried(np.concatenate([x, y], axis=1), k)
        return counts_within(x, reach, engine="tree"), counts_within(y, reach, engine="tree")
    parts = []
    for (_, to_x), (_, to_y) in zip(_blocks(x), _blocks(y), strict=True):
        reach = _smallest(np.maximum(to_x, to_y), k + 1)
        parts.append([_count_inside(part, reach) for part in (to_x, to_y)])
    in_x, in_y = (np.concatenate(side) for side in zip(*parts, strict=True))
    return in_x, in_y


def faster_engine(n: int, coordinates: int) -> Engine:
    """The faster engine for n points with so many coordinates."""
    return "tree" if coordinates <= math.log(n) else "blocks"


def counts_within(x: Floats, radius: Floats, *, engine: Engine | None = None) -> Ints:
    """The number of other points [n] that are nearer to each point than its radius [n]."""
    if x.shape[1] == 1:
        first, last = stretch(np.sort(x[:, 0]), x[:, 0], radius)
        return last - first - (radius > 0)  # the point itself is inside
    if (engine or faster_engine(*x.shape)) == "tree":
        return _tree_counts(x, radius)
    return np.concatenate([_count_inside(block, radius[rows]) for rows, block in _blocks(x)])


def kth_distance(x: Floats, k: int, *, engine: Engine | None = None) -> Floats:
    """Distance of each point to its k-th nearest other [n]."""
    if x.shape[1] == 1:
        order = np.argsort(x[:, 0])
        distance = np.empty(len(x))
        distance[order] = kth_on_a_line(x[order, 0], k)
        return distance
    if (engine or faster_engine(*x.shape)) == "tree":
        return _queried(x, k)
    return np.concatenate([_smallest(block, k + 1) for _, block in _blocks(x)])


def _queried(points: Floats, k: int) -> Floats:
    """Distance of each point to its k-th nearest other [n], by a k-d tree."""
    from scipy.spatial import cKDTree

    tree, distance = cKDTree(points, leafsize=_LEAF), np.empty(len(points))
    order = tree.indices  # neighbours one after the other find their branches in the cache
    distance[order] = tree.query(points[order], k=k + 1, p=np.inf)[0][:, -1]
    return distance


def _tree_counts(points: Floats, radius: Floats) -> Ints:
    """`counts_within` by a k-d tree."""
    from scipy.spatial import cKDTree

    tree, count = cKDTree(points, leafsize=_LEAF_OF_COUNTS), np.empty(len(points), dtype=np.intp)
    order = tree.indices
    reach = np.nextafter(radius, -1)
    some = reach[order] >= 0  # an open ball of radius 0 is empty, without the point itself
    count[order[~some]] = 1
    count[order[some]] = tree.query_ball_point(points[order[some]], reach[order[some]], p=np.inf, return_length=True)
    return count - 1


def kth_on_a_line(at: Floats, k: int) -> Floats:
    """Distance of each number to its k-th nearest other; `at` is sorted along its last axis."""
    outside = np.full((*at.shape[:-1], k), np.inf)
    padded, n = np.concatenate([-outside, at, outside], axis=-1), at.shape[-1]
    spans = (np.maximum(at - padded[..., k - j : k - j + n], padded[..., 2 * k - j : 2 * k - j + n] - at)
             for j in range(k + 1))  # fmt: skip
    return functools.reduce(np.minimum, spans)


def stretch(at: Floats, x: Floats, radius: Floats) -> tuple[Ints, Ints]:
    """Indices first and last of the slice of the sorted numbers `at` whose distance to x is below `radius`; x and
    radius have the same shape, and so have the results.

    x + radius is rounded, so numbers at the edge are checked again by their distance.
    """
    padded = np.concatenate([[-np.inf], at, [np.inf]])

    def inside(index: Ints) -> Bools:
        return np.abs(padded[index + 1] - x) < radius

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
    """Slices of the points, each with its distances to all points [rows, n]."""
    from scipy.spatial.distance import cdist

    step = max(1, _ENTRIES // len(x))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        yield rows, cdist(x[rows], x, "chebyshev")


def _smallest(block: Floats, k: int) -> Floats:
    """The k-th smallest number of each row [rows]; faster than numpy."""
    import torch

    smallest: Floats = torch.topk(torch.from_numpy(block), k, dim=1, largest=False).values[:, -1].numpy()
    return smallest


def _count_inside(block: Floats, radius: Floats) -> Ints:
    """Number of distances per row [rows] below its radius [rows], without the point itself, whose distance is 0."""
    return np.maximum(np.count_nonzero(block < radius[:, None], axis=1) - 1, 0)
