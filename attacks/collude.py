"""Colluding users: what m users who pool their shares learn about a secret-shared vector.

A share is a sum over the ell slices of the vector and t noise terms, modulo a prime q (`fedaudit.privacy.sharing`). The
noise of any t users is independent and uniform: their shares say nothing. Between m > t users it can be eliminated,
which leaves m - t equations in the slices alone; ell + t users have enough to solve them. With fewer, the solutions
are a coset of a lattice. The shared numbers are small and the field is large, so we take the shortest solution (basis
reduction by Lenstra, Lenstra and Lovasz 1982, then Babai's nearest plane, 1986). For slices within +-B it is right when
    (2 B + 1)^ell < q^(m - t),
unless the lattice has vectors shorter than that. It has some when users' points are 1 to n: equations are then like
8 x_1 - x_2 = c with small whole numbers, and tell no more of a vector than m - t projections do. With points drawn from
the whole field, t + 1 users already learn everything (`tests/test_attacks_on_shares.py`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedaudit.privacy.field import Field, Residues
from fedaudit.privacy.sharing import Integers, Sharing

LATTICE = 20  # most slices for which a lattice is reduced: sympy then takes seconds


def recover_slices(sharing: Sharing, users: Sequence[int], shares: Residues) -> Integers | None:
    """The shortest slices [ell, W], ell per vector, that explain the shares [m, W] of these m users, as signed whole
    numbers.

    None if m <= t, the number of colluders that the sharing withstands, as their shares say nothing, or if equations
    are missing and ell > LATTICE.
    """
    field, ell, missing = sharing.field, sharing.slices, sharing.slices - len(users) + sharing.tolerance.colluders
    if missing >= ell or (missing > 0 and ell > LATTICE):
        return None
    combined = noise_free(sharing, users)
    slices = field.product(combined, sharing.encoding[list(users), :ell])
    solved = _eliminate(field, np.concatenate([slices, field.product(combined, shares)], axis=1)[:ell])
    fixed = len(solved)
    solution = np.zeros((ell, shares.shape[1]), np.int64)  # one of many: the other slices are 0
    solution[:fixed] = field.signed(solved[:, ell:])
    if fixed == ell:
        return solution
    lattice = np.zeros((ell, ell), np.int64)  # rows: vectors that may be added to a solution
    lattice[:fixed, :fixed] = field.q * np.eye(fixed, dtype=np.int64)
    lattice[fixed:, :fixed] = -field.signed(solved[:, fixed:ell]).T
    lattice[fixed:, fixed:] = np.eye(ell - fixed, dtype=np.int64)
    return subtract_nearest(reduce_basis(lattice), solution)


def noise_free(sharing: Sharing, users: Sequence[int]) -> Residues:
    """Coefficients [m - t, m] of linear combinations of m users' shares in which no noise is left, t being the number
    of colluders that the sharing withstands.

    No pivot is 0: a polynomial of degree below ell + t cannot vanish at ell slices, t - k noise points and k users.
    """
    field, t = sharing.field, sharing.tolerance.colluders
    noise = sharing.encoding[list(users), sharing.slices :]
    rows = np.concatenate([noise, np.eye(len(users), dtype=np.int64)], axis=1)
    for column in range(t):
        pivot, rows = rows[0], rows[1:]
        factor = field.multiply(rows[:, column], field.inverse(pivot[column : column + 1]))
        rows = field.subtract(rows, field.multiply(factor[:, None], pivot))
    return rows[:, t:]


def reduce_basis(lattice: Integers) -> Integers:
    """Short, nearly orthogonal rows [k, k] that span the same lattice as the given rows (LLL)."""
    from sympy import ZZ
    from sympy.polys.matrices import DomainMatrix

    rows = DomainMatrix(lattice.tolist(), lattice.shape, ZZ).lll().to_list()
    return np.array([[int(entry) for entry in row] for row in rows], np.int64)


def subtract_nearest(basis: Integers, points: Integers) -> Integers:
    """W points [k, W] less a near lattice vector each (Babai's nearest plane), twice because of rounding."""
    axes = _gram_schmidt(basis)
    rest = points.copy()
    for _ in range(2):
        for vector, axis in zip(basis[::-1], axes[::-1], strict=True):
            times = np.rint(axis @ rest / (axis @ axis)).astype(np.int64)
            rest -= vector[:, None] * times
    return rest


def _gram_schmidt(basis: Integers) -> NDArray[np.float64]:
    """Orthogonal vectors [k, k] of the rows by Gram-Schmidt, not normalised."""
    q, r = np.linalg.qr(basis.T.astype(np.float64))
    orthogonal: NDArray[np.float64] = (q * np.diag(r)).T
    return orthogonal


def _eliminate(field: Field, rows: Residues) -> Residues:
    """The rows [k, ..] after turning their first k columns, a regular matrix, into the unit matrix (Gauss-Jordan);
    changed in place."""
    for i in range(len(rows)):
        rows[i] = field.multiply(rows[i], field.inverse(rows[i, i : i + 1]))
        others = np.arange(len(rows)) != i
        rows[others] = field.subtract(rows[others], field.multiply(rows[others, i : i + 1], rows[i]))
    return rows
