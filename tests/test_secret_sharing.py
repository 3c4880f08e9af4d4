"""Lagrange coded sharing and its decoding: exact against Python's integers, secret below the threshold, honest about its limit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from fedaudit.machinery.errors import InputError
from fedaudit.privacy import reed_solomon
from fedaudit.privacy.field import LARGEST, Field
from fedaudit.privacy.sharing import Sharing, Tolerance, field_above, quantised

SMALL = Field(13)
BIG = field_above(LARGEST - 1000)
GRID = [  # users, t, absent, wrong
    (3, 1, 0, 0), (7, 2, 0, 0), (7, 1, 1, 1), (11, 2, 2, 1), (20, 6, 0, 0), (20, 6, 2, 1), (24, 4, 3, 2), (40, 12, 1, 4)
]  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def slow_value(field: Field, nodes: list[int], values: list[int], x: int) -> int:
    """Lagrange's formula in fractions, taken modulo q."""
    total = Fraction(0)
    for i, (node, value) in enumerate(zip(nodes, values, strict=True)):
        others = nodes[:i] + nodes[i + 1 :]
        total += value * math.prod((Fraction(x - other, node - other) for other in others), start=Fraction(1))
    return total.numerator * pow(total.denominator, -1, field.q) % field.q


@pytest.mark.parametrize("field", [SMALL, Field(2**31 - 1), BIG], ids=lambda field: f"q={field.q}")
def test_arithmetic_is_that_of_pythons_integers(field: Field) -> None:
    edges = np.array([0, 1, 2, field.q // 2, field.q - 2, field.q - 1])
    a = np.concatenate([np.repeat(edges, len(edges)), field.uniform((500,), rng(1))])
    b = np.concatenate([np.tile(edges, len(edges)), field.uniform((500,), rng(2))])
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert field.add(a, b).tolist() == [(x + y) % field.q for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % field.q for x, y in pairs]
    assert field.multiply(a, b).tolist() == [x * y % field.q for x, y in pairs]
    assert int(field.sum(np.tile(a, 20), 0)) == 20 * sum(a.tolist()) % field.q
    some = a[a > 0]
    assert field.multiply(some, field.inverse(some)).tolist() == [1] * len(some)
    with pytest.raises(ZeroDivisionError):
        field.inverse(np.array([3, 0]))
    assert field.of(field.signed(a)).tolist() == a.tolist()
    left, right = a[:12].reshape(4, 3), b[:6].reshape(3, 2)
    assert field.product(left, right).tolist() == (left.astype(object) @ right.astype(object) % field.q).tolist()


def test_polynomials_against_lagranges_formula() -> None:
    nodes, at = [3, 1, 7, 12], [5, 9]
    values = BIG.uniform((4,), rng())
    found = BIG.product(BIG.lagrange(np.array(nodes), np.array(at)), values[:, None])[:, 0]
    assert found.tolist() == [slow_value(BIG, nodes, values.tolist(), x) for x in at]


@pytest.mark.parametrize(("users", "t", "absent", "wrong"), GRID)
def test_sums_and_distances_survive_the_absent_and_the_wrong(users: int, t: int, absent: int, wrong: int) -> None:
    """Of integers of either sign up to the range; as many as are tolerated vanish and answer wrongly, who is named."""
    g, largest = rng(users + absent), 10**5
    vectors = g.integers(-largest, largest + 1, size=(users, 11))
    vectors[0], vectors[1] = largest, -largest
    group = np.arange(users)[: max(2, users // 2)]
    total = vectors[group].sum(0)
    exact = ((total - len(group) * vectors) ** 2).sum(1)
    for degree, bound in ((1, users * largest), (2, int(exact.max()))):
        sharing = Sharing.planned(users, Tolerance(t, absent, wrong), degree=degree, largest=bound)
        shares = np.stack([sharing.share(vector, g) for vector in vectors])
        centre = sharing.field.sum(shares[group], axis=0)
        sizes = np.array([len(group)])
        answers = centre if degree == 1 else np.stack(
            [sharing.squared_distances(shares[:, j], centre[j][None], sizes)[:, 0] for j in range(users)]
        )  # fmt: skip
        there = sorted(g.permutation(users)[absent:].tolist())
        liars = sorted(g.permutation(there)[:wrong].tolist())
        answers[liars] = sharing.field.uniform(answers[liars].shape, g)
        values, named = sharing.opened(there, answers[there])
        assert named == liars
        if degree == 1:
            assert values.reshape(-1)[:11].tolist() == total.tolist()
        else:
            assert (values.astype(object).sum(0) % sharing.field.q).tolist() == exact.tolist()


def test_there_are_as_many_slices_as_can_be_decoded_in_a_field_for_the_largest_result() -> None:
    def planned(users: int, t: int, absent: int = 0, wrong: int = 0, *, degree: int = 2, largest: int = 1) -> Sharing:
        return Sharing.planned(users, Tolerance(t, absent, wrong), degree=degree, largest=largest)

    assert (planned(20, 6).slices, planned(20, 6, 2, 1).slices) == (4, 2)
    for users, t, absent, wrong in GRID:
        for degree in (1, 2):
            slices = planned(users, t, absent, wrong, degree=degree).slices
            needed = [degree * (ell + t - 1) + 1 + 2 * wrong + absent for ell in (slices, slices + 1)]
            assert needed[0] <= users < needed[1]
    for largest in (1, 100, 10**14):
        assert 2 * largest < planned(7, 2, largest=largest).field.q < 2 * largest + 1000


def test_reals_are_off_by_half_a_step_and_refused_beyond_the_range() -> None:
    values = rng().uniform(-3, 3, size=200)
    assert np.abs(quantised(values, 1000, 3.0) / 1000 - values).max() <= 0.0005
    for beyond in (3.1, math.nan):
        with pytest.raises(InputError, match="beyond the range"):
            quantised(np.array([0.5, beyond]), 1000, 3.0)


def joint(sharing: Sharing, secret: int, users: tuple[int, ...], noise: range) -> Counter[tuple[int, ...]]:
    """How often some users hold which shares of a number, over all values of the t noise terms."""
    t = sharing.tolerance.colluders
    draws = np.array(list(itertools.product(noise, repeat=t))).T
    values = np.concatenate([np.full((1, draws.shape[1]), secret), draws])
    return Counter(map(tuple, sharing.field.product(sharing.encoding[list(users)], values).T.tolist()))


@pytest.mark.parametrize("t", [1, 2])
def test_t_shares_have_the_same_distribution_whatever_is_shared(t: int) -> None:
    """Over all noise there is. Of noise from half of the field, and of t + 1 shares, this is not true."""
    sharing = Sharing(SMALL, 5, 1, 2, Tolerance(t))
    for users in itertools.combinations(range(5), t):
        found = [joint(sharing, secret, users, range(13)) for secret in (0, 1, 12)]
        assert found[0] == found[1] == found[2]
        assert set(found[0].values()) == {1}, "uniform"
        assert joint(sharing, 0, users, range(6)) != joint(sharing, 1, users, range(6))
    assert joint(sharing, 0, tuple(range(t + 1)), range(13)) != joint(sharing, 1, tuple(range(t + 1)), range(13))


class Lazy(np.random.Generator):
    """Draws from the lower half only."""

    def integers(self, high: int, **how: object) -> object:  # type: ignore[override]
        return super().integers(high // 2, **how)


def test_the_noise_that_is_drawn_is_uniform() -> None:
    """The shares that t users see of 20,000 numbers, by a chi-squared test that half of the field does not pass."""
    sharing = Sharing(field_above(2**40), 7, 2, 2, Tolerance(2))
    secret = np.full(2 * 20_000, 12345)

    def p(g: np.random.Generator, user: int) -> float:
        bins = sharing.share(secret, g)[user] * 64 // sharing.field.q
        return float(chisquare(np.bincount(bins, minlength=64)).pvalue)

    noise = sharing.encoding[:, 2:]
    for pair in itertools.combinations(range(7), 2):  # t users' noise terms are as uniform as what was drawn
        (a, b), (c, d) = noise[list(pair)].tolist()
        assert (a * d - b * c) % sharing.field.q
    assert all(p(rng(user), user) > 1e-4 for user in range(7))
    lazy = [sharing.field.uniform((20_000,), Lazy(np.random.PCG64(0))) * 64 // sharing.field.q]
    assert chisquare(np.bincount(lazy[0], minlength=64)).pvalue < 1e-4


def test_masks_hide_all_of_a_distance_but_its_sum() -> None:
    """Without them decoding shows the distance of every slice; with them these are as good as drawn anew."""
    g = rng()
    sharing = Sharing.planned(20, Tolerance(6), degree=2, largest=10**10)
    vectors = g.integers(-1000, 1000, size=(2, 40))
    shares = np.stack([sharing.share(vector, g) for vector in vectors])
    plain = np.stack([sharing.squared_distances(shares[:1, j], shares[1:, j], np.array([1]))[:, 0] for j in range(20)])
    by_slice = ((vectors[0] - vectors[1]) ** 2).reshape(sharing.slices, -1).sum(1)
    assert sharing.opened(range(20), plain)[0][:, 0].tolist() == by_slice.tolist()
    seen = []
    for _ in range(60):
        masked, _named = sharing.opened(range(20), sharing.field.add(plain, sharing.zero_sums(1, g)))
        assert int(masked.astype(object).sum()) % sharing.field.q == by_slice.sum()
        seen.append(masked[0, 0] > 0)
    assert 15 < sum(seen) < 45  # the halves of the field, alike: 30 +- 4
    # no fewer answers decode them than decode a distance: nothing of a distance lies beyond what they cover
    mask = sharing.zero_sums(50, rng())
    below = sharing.field.lagrange(sharing.points[: sharing.size - 1], sharing.points[sharing.size - 1 :])
    assert (sharing.field.product(below, mask[: sharing.size - 1]) != mask[sharing.size - 1 :]).all()


def word(field: Field, points: np.ndarray, size: int, words: int, seed: int) -> np.ndarray:
    coefficients = field.uniform((words, size), rng(seed))
    return field.product(coefficients, field.powers(points, size)).T


def nearest(field: Field, points: np.ndarray, sent: np.ndarray, size: int, wrong: int) -> list[int] | None:
    """Who is wrong, by trying every set of at most that many."""
    for count in range(wrong + 1):
        for out in itertools.combinations(range(len(points)), count):
            left = np.delete(np.arange(len(points)), out)
            beyond = field.lagrange(points[left[:size]], points[left[size:]])
            if (field.product(beyond, sent[left[:size]]) == sent[left[size:]]).all():
                return list(out)
    return None


@pytest.mark.parametrize("seed", range(6))
def test_decoding_against_trying_everything(seed: int) -> None:
    """Up to three errors in words over a field of 13 or 2^50, at points in any order."""
    g = rng(seed)
    field, wrong = (SMALL, BIG)[seed % 2], 1 + seed % 3
    size = 2 + seed % 2
    points = g.permutation(np.arange(1, 12))[: size + 2 * wrong + 1]
    sent = word(field, points, size, 3, seed)
    liars = sorted(g.permutation(len(points))[:wrong].tolist())
    for column, liar in enumerate(liars):  # each spoils another word
        sent[liar, column] = (sent[liar, column] + g.integers(1, field.q)) % field.q
    right, found = reed_solomon.decode(field, points, sent, size=size, wrong=wrong)
    assert found.tolist() == nearest(field, points, sent, size, wrong) == liars
    assert not set(right.tolist()) & set(liars)
    assert len(right) == size


def test_too_many_uncoordinated_errors_are_noticed() -> None:
    for seed in range(15):
        sent = word(BIG, np.arange(1, 21), 15, 4, seed)
        sent[:3] = BIG.uniform((3, 4), rng(seed))
        with pytest.raises(InputError, match="more than 2 of 20 users sent wrong shares"):
            reed_solomon.decode(BIG, np.arange(1, 21), sent, size=15, wrong=2)
    # two senders spoil the first word and another one the second: of each word alone they could be corrected
    sent = word(BIG, np.arange(1, 8), 3, 2, 0)
    sent[[0, 1], 0] = BIG.add(sent[[0, 1], 0], np.array([1, 2]))
    sent[2, 1] = BIG.add(sent[2, 1], np.array(1))
    with pytest.raises(InputError, match="more than 2 of 7 users"):
        reed_solomon.decode(BIG, np.arange(1, 8), sent, size=3, wrong=2)


def test_the_limit_e_plus_one_who_agree_forge_a_result() -> None:
    """Each adds its value of a polynomial that is zero at all honest points but e; those e are named instead."""
    points, liars = np.arange(1, 20), [14, 15, 16]
    sent = word(BIG, points, 15, 1, 0)
    shift = np.array([math.prod(int(x) - int(zero) for zero in points[:14]) % BIG.q for x in points])
    sent[liars, 0] = BIG.add(sent[liars, 0], shift[liars])
    _, named = reed_solomon.decode(BIG, points, sent, size=15, wrong=2)
    assert named.tolist() == [17, 18]


def test_what_cannot_be_decoded_is_refused_with_the_inequality() -> None:
    for users, tolerance, largest, words in (
        (12, Tolerance(6), 1, r"--clients 12: too few users for --colluders 6, .* that is 13 for ell = 1"),
        (10, Tolerance(4, 2, 1), 1, r"needed are 2 \(ell \+ t - 1\) \+ 1 \+ 2 x 1 \+ 2, that is 13 for ell = 1"),
        (10, Tolerance(2), 2**49, r"a prime above .* up to 2\^50"),
    ):
        with pytest.raises(InputError, match=words):
            Sharing.planned(users, tolerance, degree=2, largest=largest)
    sharing = Sharing.planned(7, Tolerance(1, 1, 1), degree=2, largest=100)
    for there in (0, 4):
        with pytest.raises(InputError, match=f"{there} users answer, and"):
            sharing.opened(range(there), np.zeros((there, 2), np.int64))
