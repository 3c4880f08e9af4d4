"""Lagrange coded sharing: vectors as shares that users can add, scale and take distances of (Yu et al. 2019; SecFPP,
4.1).

A vector is cut into ell slices. A polynomial of degree ell + t - 1 has the slices as its values at ell points and
uniform noise at t more; its values at the users' points are their shares. Any t shares are independent of the vector. A
sum of shares is a share of the sum; a squared distance of shares is a share of a polynomial of twice the degree, D (ell
+ t - 1) with D = 2. Results are decoded from D (ell + t - 1) + 1 answers, and 2 more per wrong one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError
from fedaudit.privacy import reed_solomon
from fedaudit.privacy.field import LARGEST, Field, Residues

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tolerance:
    """The failures that a computation on shares withstands."""

    colluders: int  # t: this many users together learn nothing of another's vector
    absent: int = 0  # users that may vanish before they answer
    wrong: int = 0  # users whose answers may be wrong


@dataclass(frozen=True)
class Sharing:
    """How n users share vectors. Points 1 to n are the users'; from n + 1 on come the slices', then the noise's."""

    field: Field
    users: int
    slices: int  # ell
    degree: int  # D of the result: 1 for sums, 2 for squared distances
    tolerance: Tolerance

    @classmethod
    def planned(cls, users: int, tolerance: Tolerance, *, degree: int, largest: int) -> Sharing:
        """The sharing with the most slices that can be decoded, over the first prime above 2 `largest` (the largest
        result). InputError: not even one slice can be decoded, or no prime below 2^50 is large enough."""
        t, absent, wrong = tolerance.colluders, tolerance.absent, tolerance.wrong
        answers = users - absent - 2 * wrong
        slices = (answers - 1) // degree - t + 1
        if slices < 1:
            raise InputError(
                f"--clients {users}: too few users for --colluders {t}, --absent {absent} and --wrong {wrong}: needed "
                f"are {degree} (ell + t - 1) + 1 + 2 x {wrong} + {absent}, that is "
                f"{degree * t + 1 + 2 * wrong + absent} for ell = 1"
            )
        return cls(field_above(2 * largest), users, slices, degree, tolerance)

    @property
    def size(self) -> int:
        """The number of right answers needed to decode: D (ell + t - 1) + 1."""
        return self.degree * (self.slices + self.tolerance.colluders - 1) + 1

    @property
    def points(self) -> Residues:
        """The users' evaluation points [n]."""
        return np.arange(1, self.users + 1)

    def _nodes(self, count: int) -> Residues:
        """`count` evaluation points: the slices', then others that are no user's."""
        return np.arange(self.users + 1, self.users + 1 + count)

    @functools.cached_property
    def encoding(self) -> Residues:
        """The matrix [n, ell + t] from slices and noise to shares."""
        return self.field.lagrange(self._nodes(self.slices + self.tolerance.colluders), self.points)

    def length(self, entries: int) -> int:
        """The length of a slice of a vector with `entries` entries."""
        return -(-entries // self.slices)

    def share(self, vector: Integers, rng: np.random.Generator) -> Residues:
        """The n users' shares [n, length] of a vector [d], a row each; the last slice of the vector is padded with
        zeros."""
        length = self.length(len(vector))
        slices = np.pad(self.field.of(vector), (0, self.slices * length - len(vector))).reshape(self.slices, length)
        noise = self.field.uniform((self.tolerance.colluders, length), rng)
        return self.field.product(self.encoding, np.concatenate([slices, noise]))

    @functools.cached_property
    def _masking(self) -> Residues:
        return self.field.lagrange(self._nodes(self.size), self.points)

    def zero_sums(self, count: int, rng: np.random.Generator) -> Residues:
        """Shares [n, count] of random polynomials of full degree whose values at the slices' points sum to zero.
        Added to answers, they hide everything but the sum over the slices."""
        values = self.field.uniform((self.size, count), rng)
        first = self.field.sum(values[1 : self.slices], axis=0)
        values[0] = self.field.of(-first)
        return self.field.product(self._masking, values)

    def squared_distances(self, vectors: Residues, centres: Residues, sizes: Integers) -> Residues:
        """One user's shares [N, K] of |sum_k - |k| x_i|^2, for N vectors x_i and K groups k, |k| in `sizes` [K].
        vectors [N, length] and centres [K, length] are this user's shares of the vectors and of the groups' sums."""
        field = self.field
        scaled = field.multiply(vectors[:, None], field.of(sizes)[:, None])
        gaps = field.subtract(centres, scaled)
        return field.sum(field.multiply(gaps, gaps), axis=2)

    def opened(
        self, users: Sequence[int], answers: Residues, *, values: int | None = None
    ) -> tuple[Integers, list[int]]:
        """(Decoded values, users whose answers are wrong) of W polynomials, from the `answers` [m, W] of m users. The
        values are signed integers [ell, W], at the points of the slices.

        values: decode at this many points instead; with `size` of them the whole polynomial is known. InputError: too
        few users, or too many wrong ones.
        """
        points = self.points[np.asarray(users, int)]
        right, wrong = reed_solomon.decode(self.field, points, answers, size=self.size, wrong=self.tolerance.wrong)
        decoding = self.field.lagrange(points[right], self._nodes(values or self.slices))
        return self.field.signed(self.field.product(decoding, answers[right])), [users[i] for i in wrong]


def field_above(bound: int) -> Field:
    """The field over the first odd prime above `bound`. InputError: the prime is too large."""
    from sympy import nextprime

    if (prime := int(nextprime(max(2, bound)))) >= LARGEST:
        raise InputError(
            f"a prime above {bound:.3g} is needed, and exact arithmetic here goes up to 2^50 = {LARGEST:.3g}; ask for "
            f"less precision, a smaller range or fewer users"
        )
    return Field(prime)


def quantised(values: NDArray[np.floating], steps: int, limit: float) -> Integers:
    """Values times `steps`, rounded to integers. InputError: a value lies beyond +-limit, or is not finite."""
    if not (np.abs(values) <= limit).all():  # also False for NaN
        raise InputError(f"a value of {np.abs(values).max():.3g} lies beyond the range of +-{limit:g}; raise the range")
    return np.rint(np.asarray(values, np.float64) * steps).astype(np.int64)
