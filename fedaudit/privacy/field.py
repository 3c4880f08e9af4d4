"""Exact arithmetic modulo a prime on int64 arrays, and the polynomials that secret sharing is made of.

A product of two numbers below q < 2^50 does not fit 64 bits, but its remainder does: the quotient a b / q in double
precision, rounded down, is off by at most one, and a b - quotient q modulo 2^64 is then the remainder but for one q
(Shoup's NTL multiplies so). No product needs limbs or Python's integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Residues = NDArray[np.int64]  # numbers from 0 to q - 1

LARGEST = 2**50  # of a prime: up to it the rounded quotient is off by at most one
HALF = 25  # bits: sums are taken of the lower and of the upper half of the bits, so that none passes 2^63


@dataclass(frozen=True)
class Field:
    """The integers modulo a prime q < 2^50. Operations take residues and broadcast as numpy's do."""

    q: int

    def __post_init__(self) -> None:
        from sympy import isprime

        if not (2 < self.q < LARGEST and isprime(self.q)):
            raise ValueError(f"q must be an odd prime below 2^50, not {self.q}")

    def of(self, integers: ArrayLike) -> Residues:
        """Residues of integers of either sign."""
        return np.asarray(integers, np.int64) % self.q

    def signed(self, residues: Residues) -> NDArray[np.int64]:
        """The integers from -(q - 1) / 2 to (q - 1) / 2 that have these residues."""
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
        """The matrix product of [n, k] and [k, m]."""
        found = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for column, row in zip(a.T, b, strict=True):
            found = self.add(found, self.multiply(column[:, None], row))
        return found

    def inverse(self, a: Residues) -> Residues:
        """a^(q - 2), by squaring. ZeroDivisionError: there is a 0."""
        if not np.all(a):
            raise ZeroDivisionError("0 has no inverse in a field")
        found, power, exponent = np.ones_like(a), a, self.q - 2
        while exponent:
            found = self.multiply(found, power) if exponent & 1 else found
            power, exponent = self.multiply(power, power), exponent >> 1
        return found

    def uniform(self, shape: tuple[int, ...], rng: np.random.Generator) -> Residues:
        """Independent draws, every residue equally likely."""
        return rng.integers(self.q, size=shape)

    def weights(self, nodes: Residues) -> Residues:
        """Of each node x_i, 1 over the product of x_i - x_k over all others. ValueError: two nodes are the same."""
        gaps = self.subtract(nodes[:, None], nodes)
        np.fill_diagonal(gaps, 1)
        if not gaps.all():
            raise ValueError(f"evaluation points must differ, not {', '.join(map(str, nodes.tolist()))}")
        return self.inverse(self._products(gaps))

    def lagrange(self, nodes: Residues, at: Residues) -> Residues:
        """The matrix [len(at), len(nodes)] that takes the values at the nodes of a polynomial of degree below
        len(nodes) to its values at other points. ValueError: two nodes are the same. ZeroDivisionError: a node is among
        the others."""
        gaps = self.subtract(at[:, None], nodes)
        whole = self.multiply(self._products(gaps)[:, None], self.weights(nodes))
        return self.multiply(whole, self.inverse(gaps))

    def powers(self, points: Residues, count: int) -> Residues:
        """x^0 to x^(count - 1) of every point, [count, n]."""
        found = np.ones((count, len(points)), np.int64)
        for i in range(1, count):
            found[i] = self.multiply(found[i - 1], points)
        return found

    def _products(self, a: Residues) -> Residues:
        """The product of every row of [n, m]; 1 where m is 0."""
        found = np.ones(len(a), np.int64)
        for column in a.T:
            found = self.multiply(found, column)
        return found
