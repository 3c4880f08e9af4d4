"""Estimators of mutual information against loops and closed forms; their intervals, nulls, ties and engines."""

import itertools
import math

import numpy as np
import pytest
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics import neighbours
from tests import closed_information as closed
from tests import information_oracle as oracle

ENGINES = ("tree", "blocks")


def correlated(n, d, rho, seed):
    """Gaussian x, y [n, d] whose coordinates are correlated by rho pair by pair."""
    x, noise = np.random.default_rng(seed).normal(size=(2, n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def shifted(n, shift, seed):
    """A fair bit and a number that it shifts."""
    rng = np.random.default_rng(seed)
    bit = rng.random(n) < 0.5
    return bit, bit * shift + rng.normal(size=n)


class TestAgainstLoops:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize(("p", "q"), [(1, 1), (2, 1), (3, 3), (6, 8)])
    @pytest.mark.parametrize("k", [1, 3, 7])
    def test_ksg(self, p, q, k, engine):
        rng = np.random.default_rng([p, q, k])
        x = rng.normal(size=(60, p))
        y = 0.6 * x[:, :1] + rng.normal(size=(60, q))
        for estimator in (1, 2):
            slow = oracle.ksg(oracle.standardised(x), oracle.standardised(y), k, estimator)
            assert mi.ksg(x, y, k=k, estimator=estimator, engine=engine) == pytest.approx(slow, abs=1e-9)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("d", [1, 3])
    def test_ross_with_a_label_that_few_have(self, d, engine):
        x = np.random.default_rng(d).normal(size=(70, d))
        label = np.where(np.arange(70) < 3, "few", np.where(x[:, 0] > 0.2, "high", "low"))
        slow = oracle.ross(label, oracle.standardised(x), 4)
        assert mi.ross(label, x, k=4, engine=engine) == pytest.approx(slow, abs=1e-9)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_mixed(self, engine):
        rng = np.random.default_rng(5)
        x = np.round(rng.normal(size=(80, 2)))
        x[::3] = rng.normal(size=(27, 2))
        y = np.where(rng.random(80) < 0.5, np.round(x[:, 0]), rng.normal(size=80))
        slow = oracle.mixed(oracle.standardised(x), oracle.standardised(y), 3)
        assert mi.mixed(x, y, engine=engine) == pytest.approx(slow, abs=1e-9)

    def test_counts_at_the_very_edge_of_a_radius(self):
        """Numbers on a grid: x + radius is rounded to one side of its neighbour or to the other."""
        x = np.random.default_rng(0).permutation(np.arange(60) * 0.1)[:, None]
        for steps, (closed_ball, inside) in itertools.product((1, 2, 3, 7), ((True, np.less_equal), (False, np.less))):
            radius = np.abs(x[:, 0] - np.roll(x[:, 0], steps))
            found = neighbours.counts_within(x, radius, closed=closed_ball)
            np.testing.assert_array_equal(found, inside(np.abs(x - x.T), radius[:, None]).sum(axis=1) - 1)

    def test_every_row_of_coins_is_ross_of_it(self):
        rng = np.random.default_rng(3)
        x, coins = np.round(rng.normal(size=50), 1), rng.random((30, 50)) < rng.random((30, 1))
        coins[0], coins[1] = True, np.arange(50) == 7
        np.testing.assert_allclose(mi.ross_of_coins(coins, x), [mi.ross(row, x) for row in coins], atol=1e-12)

    def test_one_coordinate_is_that_of_scikit_learn(self):
        x, y = correlated(400, 1, 0.7, 0)
        theirs = mutual_info_regression(x, y[:, 0], n_neighbors=3, random_state=0)[0]
        assert mi.ksg(x, y) == pytest.approx(theirs, abs=1e-6)
        bit, score = shifted(400, 1.5, 0)
        theirs = mutual_info_classif(score[:, None], bit, n_neighbors=3, random_state=0)[0]
        assert mi.ross(bit, score) == pytest.approx(theirs, abs=1e-6)


class TestAgainstClosedForms:
    @pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9, 0.95])
    @pytest.mark.parametrize("estimator", [1, 2])
    def test_correlated_gaussians(self, rho, estimator):
        found = [mi.ksg(*correlated(1000, 1, rho, [s, 9]), estimator=estimator) for s in range(60)]
        error = np.mean(found) - closed.gaussian_information(rho)
        assert abs(error) < 0.02 + 2 * np.std(found) / math.sqrt(60)  # which is .01 at rho .95

    @pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
    def test_a_bit_that_shifts_a_gaussian(self, shift):
        found = [mi.ross(*shifted(1000, shift, s)) for s in range(40)]
        assert abs(np.mean(found) - closed.shifted_gaussian(shift)) < 0.01

    def test_mixed_is_ksg_of_continuous_variables_and_counts_discrete_ones(self):
        x, y = correlated(500, 1, 0.8, 1)
        assert mi.mixed(x, y) == pytest.approx(mi.ksg(x, y) + math.log(500) - mi.digamma(500), abs=1e-12)
        first, flip = np.random.default_rng(2).random((2, 2000))
        bit, seen = first < 0.5, (first < 0.5) ^ (flip < 0.1)
        assert mi.mixed(bit, seen) == pytest.approx(oracle.plug_in(bit, seen), abs=2e-3)
        assert mi.mixed(bit, seen) == pytest.approx(closed.flipped_bit(0.1), abs=0.04)

    def test_mixed_of_a_variable_that_is_both(self):
        """Gao et al., experiment II: x of 0..4, y uniform on [x, x + 2]: ln 5 - 4 ln 2 / 5."""
        rng = np.random.default_rng(4)
        found = [mi.mixed(x := rng.integers(0, 5, 1000), x + 2 * rng.random(1000)) for _ in range(10)]
        assert np.mean(found) == pytest.approx(math.log(5) - 0.8 * math.log(2), abs=0.02)

    def test_many_coordinates_are_far_too_low(self):
        """A reader is told so: at d = 8 more than half of what is shared is missed."""
        assert 0.1 < mi.ksg(*correlated(1000, 8, 0.9, 0)) < 0.6 * closed.gaussian_information(0.9, 8)


class TestTiesAndScale:
    def test_scale_place_and_order_do_not_matter(self):
        x, y = correlated(300, 2, 0.6, 0)
        order = np.random.default_rng(0).permutation(300)
        for estimate in (mi.ksg, mi.mixed):
            plain = estimate(x, y)
            assert estimate(1e-3 * x[order] - 7, 5e4 * y[order] + 1e6) == pytest.approx(plain, abs=1e-9)
            assert estimate(y, x) == pytest.approx(plain, abs=1e-12)

    @pytest.mark.parametrize("levels", [1, 2, 5])
    def test_tied_scores_hold_no_more_than_they_are_told(self, levels):
        """Unbroken, ties would be neighbours at a distance of 0, which looks like much; a seed breaks them alike."""
        rng = np.random.default_rng(levels)
        bit, score, other = rng.random(600) < 0.5, *rng.integers(0, levels, (2, 600))
        assert abs(mi.ross(bit, score)) < 0.1
        assert abs(mi.ksg(score, other)) < 0.15
        assert mi.ksg(score, other, seed=3) == mi.ksg(score, other, seed=3) != mi.ksg(score, other, seed=4)

    def test_a_score_that_is_the_bit_holds_all_of_it_and_infinite_ones_are_the_outermost(self):
        bit = np.arange(400) % 2 == 0
        assert mi.ross(bit, bit) == pytest.approx(math.log(2), abs=0.01)
        bit, score = shifted(300, 2.0, 0)
        score[score > 2.5] = np.inf
        assert mi.ross(bit, score) == pytest.approx(mi.ross(bit, np.where(np.isinf(score), 5.0, score)), abs=0.05)
        assert mi.ross(bit, np.full(300, -np.inf)) == pytest.approx(0, abs=0.1)

    @pytest.mark.parametrize(
        ("call", "named"),
        [
            (lambda: mi.ksg([1.0, math.nan, 2.0, 3.0], range(4)), "NaN"),
            (lambda: mi.ksg(range(4), range(5)), "4 and 5"),
            (lambda: mi.ksg(range(4), range(4), k=4), "4"),
            (lambda: mi.mixed(range(4), range(4), k=0), "0"),
            (lambda: mi.ksg(range(9), range(9), estimator=3), "estimator"),
            (lambda: mi.ross([True, False], [0.0, 1.0, 2.0]), "2 and 3"),
        ],
    )
    def test_what_is_wrong_is_named(self, call, named):
        with pytest.raises(ValueError, match=named):
            call()

    def test_labels_that_one_point_has_are_left_out(self):
        assert mi.ross(range(5), range(5)) == 0.0
        bit, score = shifted(100, 1.0, 0)
        assert mi.ross([*bit.astype(int), 7], [*score, 99.0]) == pytest.approx(mi.ross(bit, score), abs=1e-9)


QUICK, WHOLE = (150, 100, 135), (200, 1000, 179)  # intervals, points of each, how many hold the truth at least


class TestIntervals:
    """A correct 95 % interval covers the truth in at least 179 of 200; quick: 135 of 150 (0.995 of the binomial),
    which one that covers 85 % reaches once in 20."""

    @pytest.mark.parametrize(
        ("bits", "strength", "size"),
        [
            (True, 1.0, QUICK),  # slow: more of them, of more points and of both estimators; quick: this one
            *(pytest.param(False, rho, WHOLE, marks=pytest.mark.slow) for rho in (0.0, 0.5, 0.95)),
            *(pytest.param(True, shift, WHOLE, marks=pytest.mark.slow) for shift in (0.0, 1.0, 3.0)),
        ],
    )
    def test_cover(self, bits, strength, size):
        """What correlated numbers share, and what a score shares with the bit that shifts it."""
        times, n, least = size
        truth = closed.shifted_gaussian(strength) if bits else closed.gaussian_information(strength)

        def interval(seed):
            x, y = shifted(n, strength, [seed, n]) if bits else correlated(n, 1, strength, [seed, n])
            estimator = mi.ross if bits else mi.ksg
            return mi.interval(lambda rows: estimator(x[rows], y[rows]), n, stratum=x if bits else None, seed=seed)

        assert sum(i.low <= truth <= i.high for i in map(interval, range(times))) >= least

    def test_narrower_with_more_points_and_less_confidence(self):
        def width(n, confidence):
            x, y = correlated(n, 1, 0.5, n)
            i = mi.interval(lambda rows: mi.ksg(x[rows], y[rows]), n, confidence=confidence)
            assert i.low < i.value < i.high
            return i.high - i.low

        assert width(2000, 0.95) < 0.6 * width(200, 0.95)
        assert width(200, 0.8) < width(200, 0.95)

    def test_units_stay_together_and_a_stratum_is_shared_out(self):
        """Copies of a point move together: a hundred of them say no more than one."""
        seen, unit, kind = [], np.repeat(np.arange(8), 5), np.arange(31) < 6
        mi.interval(lambda rows: seen.append(rows) or float(len(rows)), 40, unit=unit)
        assert {len(rows) for rows in seen} == {20, 40}
        assert all(len(set(unit[rows])) * 5 == len(rows) for rows in seen)
        seen.clear()
        found = mi.interval(lambda rows: seen.append(rows) or 0.0, 31, stratum=kind)
        assert all(2 < kind[rows].sum() < 4 for rows in seen if len(rows) < 31)
        assert (found.low, found.value, found.high) == (0, 0, 0)


def test_the_permutation_null_is_about_0_and_the_estimate_beyond_it():
    x, y = correlated(300, 1, 0.6, 0)
    null = mi.permuted(lambda order: mi.ksg(x, y[order]), 300, times=99)
    assert abs(null.mean()) < 0.02
    assert null.max() < mi.ksg(x, y)
    assert len(set(null)) > 90


def test_both_engines_agree_on_both_sides_of_the_switch():
    for d in (2, 3, 4):
        x, y = correlated(400, d, 0.5, d)
        tree, blocks = (mi.ksg(x, y, engine=engine) for engine in ENGINES)
        assert tree == pytest.approx(blocks, abs=1e-12)
    assert {neighbours.faster_engine(400, 2 * d) for d in (2, 3, 4)} == set(ENGINES)
