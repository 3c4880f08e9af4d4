"""Reed-Solomon decoding at arbitrary points: polynomials from values, of which some are missing and some wrong.

The values of a polynomial of degree below k at m points are a code word: m - k wrong values can be detected, (m - k) /
2 corrected. A wrong sender has the same position in every word; it is found in the first word that it spoils, then left
out of all. Error locations come from the syndromes by the Berlekamp-Massey algorithm (Massey 1969), which works at
arbitrary points for the generalised code (Roth 2006, chapter 6).

Limit: e + 1 colluding wrong senders can shift a word onto another polynomial, and then e honest senders are named. They
need to know no share but their own (`tests/test_secret_sharing.py` does it).
"""

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError
from fedaudit.privacy.field import Field, Residues

Places = NDArray[np.int64]


def decode(field: Field, points: Residues, words: Residues, *, size: int, wrong: int) -> tuple[Places, Places]:
    """(The positions of `size` points whose values in all words [m, W] are right, the positions of wrong senders). A
    word is one polynomial's values at the m points, each from one sender.

    Values at these points determine any polynomial of degree below `size`. wrong: how many wrong senders are corrected.
    InputError: fewer than size + 2 * wrong points, or more than `wrong` wrong senders.
    """
    if len(points) < size + 2 * wrong:
        raise InputError(
            f"{len(points)} users answer, and {size} + 2 x {wrong} for wrong ones = {size + 2 * wrong} are needed"
        )
    left = np.arange(len(points))
    while (spoilt := _spoilt(field, points[left], words[left], size)) is not None:
        named = len(points) - len(left)
        errors = _errors(field, points[left], words[left, spoilt], size, wrong - named)
        if not len(errors):
            raise InputError(f"more than {wrong} of {len(points)} users sent wrong shares, and so many are corrected")
        left = np.delete(left, errors)
    return left[:size], np.setdiff1d(np.arange(len(points)), left)


def _spoilt(field: Field, points: Residues, words: Residues, size: int) -> int | None:
    """The index of the first word that belongs to no polynomial of degree below `size`; None if there is none."""
    beyond = field.lagrange(points[:size], points[size:])
    differs = (field.product(beyond, words[:size]) != words[size:]).any(axis=0)
    return int(differs.argmax()) if differs.any() else None


def _errors(field: Field, points: Residues, word: Residues, size: int, most: int) -> Places:
    """The positions of the errors in a word [m], at most `most`; empty if there are more."""
    checks = field.multiply(field.powers(points, len(points) - size), field.weights(points))
    locator = _locator(field, field.product(checks, word[:, None])[:, 0])
    # the locator has the root 1 / x for the point x of every error; reversed, it has the root x
    values = field.product(locator[None, ::-1], field.powers(points, len(locator)))[0]
    places = np.flatnonzero(values == 0)
    return places if len(places) == len(locator) - 1 <= most else places[:0]


def _locator(field: Field, syndromes: Residues) -> Residues:
    """The coefficients c of the shortest recurrence sum_i c_i s_(n-i) = 0, c_0 = 1, of a sequence of syndromes
    (Berlekamp-Massey)."""
    current = before = np.ones(1, np.int64)
    length, gap, last = 0, 1, np.ones(1, np.int64)
    for n in range(len(syndromes)):
        window = syndromes[n - min(len(current) - 1, n) : n + 1][::-1]
        discrepancy = field.sum(field.multiply(current[: len(window)], window), axis=0)[None]
        if not discrepancy.any():
            gap += 1
            continue
        factor = field.multiply(discrepancy, field.inverse(last))
        shifted = np.concatenate([np.zeros(gap, np.int64), field.multiply(before, factor)])
        width = max(len(current), len(shifted))
        padded = [np.pad(part, (0, width - len(part))) for part in (current, shifted)]
        if 2 * length <= n:
            before, last, length, gap = current, discrepancy, n + 1 - length, 1
        else:
            gap += 1
        current = field.subtract(*padded)
    return np.pad(current, (0, max(0, length + 1 - len(current))))[: length + 1]
