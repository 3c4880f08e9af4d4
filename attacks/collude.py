"""Colluding users: what m users learn of a shared vector who put their shares together.

A share is a sum over the ell slices of the vector and t noise terms, modulo a prime q (`fedaudit.privacy.sharing`). The
noise of any t users is independent and uniform: their shares say nothing. Of m > t users it can be eliminated, which
leaves m - t equations in the slices alone; ell + t users solve them. Of fewer equations the solutions are a coset of a
lattice, and what is shared are small numbers in a large field: the shortest solution is taken (basis reduction by
Lenstra, Lenstra and Lovasz 1982, then Babai's nearest plane, 1986). Of slices within +-B it is the right one as soon as
    (2 B + 1)^ell < q^(m - t),
unless the lattice has vectors that are shorter than that. Users' points 1 to n make it have some: the equations are
then such as 8 x_1 - x_2 = c in small whole numbers, and tell as much of a vector as m - t projections of it. With
points drawn from the whole field the first user above t is one too many (`tests/test_attacks_on_shares.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedaudit.privacy.field import Field, Residues
from fedaudit.privacy.sharing import Integers, Sharing

LATTICE = 20  # slices at most of which a lattice is reduced: sympy takes seconds for these


def recovered(sharing: Sharing, users: Sequence[int], shares: Residues) -> Integers | None:
    """The slices [ell, W] of shared numbers, the shortest that explain the shares [m, W] of these m users.

    None: t users or fewer hold nothing, or there are too many slices for a lattice.
    """
    field, ell, missing = sharing.field, sharing.slices, sharing.slices - len(users) + sharing.tolerance.colluders
    if missing >= ell or (missing > 0 and ell > LATTICE):
        return None
    combined = noise_free(sharing, users)
    slices = field.product(combined, sharing.encoding[list(users), :ell])
    solved = _solved(field, np.concatenate([slices, field.product(combined, shares)], axis=1)[:ell])
    fixed = len(solved)
    one = np.zeros((ell, shares.shape[1]), np.int64)  # a solution: the other slices are 0
    one[:fixed] = field.signed(solved[:, ell:])
    if fixed == ell:
        return one
    lattice = np.zeros((ell, ell), np.int64)  # rows: what may be added to a solution
    lattice[:fixed, :fixed] = field.q * np.eye(fixed, dtype=np.int64)
    lattice[fixed:, :fixed] = -field.signed(solved[:, fixed:ell]).T
    lattice[fixed:, fixed:] = np.eye(ell - fixed, dtype=np.int64)
    return nearest(reduced(lattice), one)


def noise_free(sharing: Sharing, users: Sequence[int]) -> Residues:
    """Combinations [m - t, m] of the shares of m users in which no noise is left.

    No pivot is 0: a polynomial of degree below ell + t is not zero at ell slices, t - k noise points and k users.
    """
    field, t = sharing.field, sharing.tolerance.colluders
    noise = sharing.encoding[list(users), sharing.slices :]
    left = np.concatenate([noise, np.eye(len(users), dtype=np.int64)], axis=1)
    for column in range(t):
        pivot, left = left[0], left[1:]
        factor = field.multiply(left[:, column], field.inverse(pivot[column : column + 1]))
        left = field.subtract(left, field.multiply(factor[:, None], pivot))
    return left[:, t:]


def reduced(lattice: Integers) -> Integers:
    """A basis of short, nearly orthogonal vectors of the lattice that the rows [k, k] span (LLL)."""
    from sympy import ZZ
    from sympy.polys.matrices import DomainMatrix

    rows = DomainMatrix(lattice.tolist(), lattice.shape, ZZ).lll().to_list()
    return np.array([[int(entry) for entry in row] for row in rows], np.int64)


def nearest(basis: Integers, points: Integers) -> Integers:
    """Points [k, W] less a near vector of the lattice each (Babai's nearest plane); twice, as the first time rounds."""
    axes = _orthogonal(basis)
    left = points.copy()
    for _ in range(2):
        for vector, axis in zip(basis[::-1], axes[::-1], strict=True):
            times = np.rint(axis @ left / (axis @ axis)).astype(np.int64)
            left -= vector[:, None] * times
    return left


def _orthogonal(basis: Integers) -> NDArray[np.float64]:
    """Gram-Schmidt vectors [k, k] of the rows, not scaled."""
    q, r = np.linalg.qr(basis.T.astype(np.float64))
    found: NDArray[np.float64] = (q * np.diag(r)).T
    return found


def _solved(field: Field, rows: Residues) -> Residues:
    """Rows [k, ..] with the unit matrix in their first k columns, which must be regular (Gauss and Jordan)."""
    for i in range(len(rows)):
        rows[i] = field.multiply(rows[i], field.inverse(rows[i, i : i + 1]))
        others = np.arange(len(rows)) != i
        rows[others] = field.subtract(rows[others], field.multiply(rows[others, i : i + 1], rows[i]))
    return rows
