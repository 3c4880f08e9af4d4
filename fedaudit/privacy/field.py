"""Exact arithmetic modulo a prime on int64 arrays, and the polynomials of secret sharing.

The product of two residues modulo q < 2^50 does not fit 64 bits, but its remainder can be computed: the quotient a b /
q in double precision, rounded down, is off by at most one, so a b - quotient q modulo 2^64 is the remainder up to one q
(as in Shoup's NTL). No big integers are needed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Residues = NDArray[np.int64]  # numbers from 0 to q - 1

LARGEST = 2**50  # bound of a prime, so that the rounded quotient is off by at most one
HALF = 25  # bits: lower and upper halves are summed apart, so that no sum passes 2^63


@dataclass(frozen=True)
class Field:
    """The integers modulo an odd prime q < 2^50. Operations take arrays of residues and broadcast like numpy."""

    q: int

    def of(self, integers: ArrayLike) -> Residues:
        """Residues of integers of either sign."""
        return np.asarray(integers, np.int64) % self.q

    def signed(self, residues: Residues) -> NDArray[np.int64]:
        """Representatives of residues between -(q - 1) / 2 and (q - 1) / 2."""
        return np.where(residues > self.q // 2, residues - self.q, residues)

    def add(self, a: Residues, b: Residues) -> Residues:
        total = a + b
        return total - self.q * (total >= self.q)

    def subtract(self, a: Residues, b: Residues) -> Residues:
        left = a - b
        return left + self.q * (left < 0)

    def multiply(self, a: Residues, b: Residues) -> Residues:
        with np.errstate(over="ignore"):  # products wrap round on purpose
            quotient = (np.asarray(a, np.float64) * b / self.q).astype(np.int64)
            left = a * b - quotient * self.q
        left = left + self.q * (left < 0)
        return left - self.q * (left >= self.q)

    def sum(self, a: Residues, axis: int) -> Residues:
        upper, lower = (a >> HALF).sum(axis) % self.q, (a & (2**HALF - 1)).sum(axis) % self.q
        return self.add(self.multiply(upper, self.of(2**HALF)), lower)

    def product(self, a: Residues, b: Residues) -> Residues:
        """Matrix product [n, m] of [n, k] and [k, m], modulo q."""
        total = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for column, row in zip(a.T, b, strict=True):
            total = self.add(total, self.multiply(column[:, None], row))
        return total

    def inverse(self, a: Residues) -> Residues:
        """Inverses modulo q, entry by entry, as a^(q - 2) by squaring. ZeroDivisionError: one is 0."""
        if not np.all(a):
            raise ZeroDivisionError("0 has no inverse in a field")
        result, power, exponent = np.ones_like(a), a, self.q - 2
        while exponent:
            result = self.multiply(result, power) if exponent & 1 else result
            power, exponent = self.multiply(power, power), exponent >> 1
        return result

    def uniform(self, shape: tuple[int, ...], rng: np.random.Generator) -> Residues:
        """Independent uniform residues."""
        return rng.integers(self.q, size=shape)

    def weights(self, nodes: Residues) -> Residues:
        """Barycentric weights [n] of different nodes [n]: 1 / prod_k (x_i - x_k) over all others."""
        gaps = self.subtract(nodes[:, None], nodes)
        np.fill_diagonal(gaps, 1)
        return self.inverse(self._products(gaps))

    def lagrange(self, nodes: Residues, at: Residues) -> Residues:
        """Interpolation matrix [len(at), len(nodes)]: from values at `nodes` to values at `at` of a polynomial of
        degree below len(nodes). ZeroDivisionError: two nodes are equal, or one is in `at`."""
        gaps = self.subtract(at[:, None], nodes)
        whole = self.multiply(self._products(gaps)[:, None], self.weights(nodes))
        return self.multiply(whole, self.inverse(gaps))

    def powers(self, points: Residues, count: int) -> Residues:
        """Powers x^0 to x^(count - 1) of points [n]: [count, n]."""
        powers = np.ones((count, len(points)), np.int64)
        for i in range(1, count):
            powers[i] = self.multiply(powers[i - 1], points)
        return powers

    def _products(self, a: Residues) -> Residues:
        """Product of each row of [n, m]; 1 if m is 0."""
        products = np.ones(len(a), np.int64)
        for column in a.T:
            products = self.multiply(products, column)
        return products
