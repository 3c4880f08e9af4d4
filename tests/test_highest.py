"""Members among the highest scores: against a slow loop, exact with ties, copies and constants, its level and its power, and its words."""

import math

import numpy as np
import pytest

from benchmarks.named_records import LOSES, SHAPES, Shape, level_limit, power, share_found
from fedaudit.audits.statistics.highest import Highest, highest, of_each, shares, sizes, within
from fedaudit.audits.statistics.permutation import Scored, critical, exchanged, p_value


def slow(members, scored, column, *, inside):
    """For every exchange the largest standardised count, standardised, by the definition and record by record."""
    n = len(scored.values)
    values = list(scored.values[:, column])
    if inside:
        own = {k: [v for v, c in zip(values, scored.client, strict=True) if c == k] for k in scored.client}
        values = [
            (sum(w < v for w in own[k]) + (sum(w == v for w in own[k]) + 1) / 2 - 0.5) / len(own[k])
            for v, k in zip(values, scored.client, strict=True)
        ]
    z = []
    for k in sizes(n):
        a = [min(1, max(0, (k - sum(w > v for w in values)) / sum(w == v for w in values))) for v in values]
        z.append(standard([sum(x for x, coin in zip(a, scored.coin, strict=True) if row[coin]) for row in members]))
    return standard([max(of_exchange) for of_exchange in zip(*z, strict=True)]) if z else [0.0] * len(members)


def standard(values):
    centre = sum(values) / len(values)
    spread = math.sqrt(sum((v - centre) ** 2 for v in values) / len(values))
    return [(v - centre) / spread if spread > 1e-9 else 0.0 for v in values]


def test_by_hand():
    assert sizes(672) == [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 336]
    assert sizes(26) == [4, 6, 8, 12, 13]
    assert sizes(16) == [4, 6, 8]
    assert (sizes(8), sizes(7), sizes(1)) == ([4], [], [])
    # two of the four highest have equal scores and one place left: half each
    values = np.array([[5.0, 1.0], [4, 1], [3, 1], [2, 1], [2, 1], [np.inf, 1], [-np.inf, 1], [1, 1]])
    first, second = shares(values, [4, 5])
    assert first.tolist() == [[1, 1, 1, 0, 0, 1, 0, 0], [1, 1, 1, 0.5, 0.5, 1, 0, 0]]
    assert second.tolist() == [[4 / 8] * 8, [5 / 8] * 8]
    values, client = np.array([[3.0], [9], [9], [7], [5]]), [0, 0, 0, 1, 1]
    assert within(values, client)[:, 0].tolist() == pytest.approx([0.5 / 3, 2 / 3, 2 / 3, 0.75, 0.25])


@pytest.mark.parametrize("entries", [40, 9, 5], ids=["many", "one size", "too few"])
def test_it_is_the_slow_loop_with_ties_copies_infinities_and_constants(entries):
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=40), rng.integers(0, 4, 40), np.ones(40), rng.normal(size=40)], axis=1)
    values[3, 0], values[4, 0] = np.inf, -np.inf
    client = np.repeat([0, 1, 2, 3], [20, 10, 9, 1])
    coin = np.r_[np.arange(30), 0, 5, 30:38]  # two records are held by two clients
    some = Scored(values[:entries], client[:entries], coin[:entries])
    members = exchanged(rng.random(38) < 0.5, np.repeat([0, 1], 19), seed=(0,), times=60)
    for column, pair in enumerate(of_each(members, some)):
        for found, inside in zip(pair, (True, False), strict=True):
            np.testing.assert_allclose(found.statistic, slow(members, some, column, inside=inside), atol=1e-9)


def test_a_constant_score_knows_nothing_and_many_are_what_each_is_alone():
    members = exchanged([True, False] * 10, [0] * 20, seed=(0,), times=50)
    (found,) = highest(members, np.ones((20, 1)))
    assert (found.statistic.any(), found.full) == (False, {})
    rng = np.random.default_rng(1)
    values = rng.normal(size=(50, 37))  # more than one product's
    member = exchanged(rng.random(50) < 0.5, np.zeros(50), seed=(1,), times=30)
    for i, found in enumerate(highest(member, values)):
        (alone,) = highest(member, values[:, i : i + 1])
        np.testing.assert_allclose(found.statistic, alone.statistic, atol=1e-9)


def test_what_all_of_the_highest_would_give():
    """The statistic with a score that names its k members, by the exchanges of the coins as they would have fallen."""
    rng = np.random.default_rng(2)
    values, fell = rng.normal(size=(64, 1)), np.arange(64) % 2 == 0
    highest_first = np.argsort(-values[:, 0])
    fell[highest_first] = np.arange(64) % 3 == 1  # of the others a third
    fell[highest_first[:12]] = True
    members = exchanged(fell, np.zeros(64), seed=(2,), times=400)
    (found,) = highest(members, values)
    assert list(found.full) == [k for k in sizes(64) if k <= fell.sum()]
    assert found.words(within=False).startswith("of the 12 highest, 12 were members")
    assert found.full[12] == pytest.approx(found.statistic[0])


def test_records_that_share_the_border_are_all_said():
    """The highest of each of three clients is a member: four places are three records and a third of the next
    three."""
    member, client = np.array([True, False, False, True] * 3), np.repeat([0, 1, 2], 4)
    members = exchanged(member, client, seed=(3,), times=500)
    ((found, _),) = of_each(members, Scored(-np.arange(12.0)[:, None], client, np.arange(12)))
    assert (found.records, found.members, list(found.full)) == (6, 3, [6])
    assert found.expected == pytest.approx(3, abs=0.2)
    found = Highest(np.zeros(1), 8, 7, 4.04, {})
    assert found.words(within=False) == "of the 8 highest, 7 were members, where 4.0 are expected"
    assert found.words(within=True) == "of the 8 highest within clients, 7 were members, where 4.0 are expected"


@pytest.mark.parametrize("level", [0.05, 0.025, 0.0005])
def test_a_statistic_is_significant_where_it_exceeds_the_critical_value(level):
    largest = np.random.default_rng(3).normal(size=2001) ** 2
    needed = critical(largest, level)
    assert p_value(needed + 1e-6, largest) <= level < p_value(needed - 1e-6, largest)
    assert critical(largest[:10], 0.05) == np.inf


def test_its_level_and_power():
    """The shapes of `benchmarks/named_records.py` with fewer trials, each within the limit of its binomial (.001)."""
    member, values, client = Shape("x", clients=3, of=2, each=4).drawn(np.random.default_rng(5))
    named = values > 5
    assert (named.sum(), member[named].sum(), len(set(client[named]))) == (8, 8, 2), "a shape names what it says"
    for shape in SHAPES:
        found, of_ranking = share_found(shape, trials=30, exchanges=199, seed=4)
        if shape.at_most is not None:
            assert found * 30 <= level_limit(30)
        if shape.at_least is not None:
            assert found * 30 >= power(30, shape.at_least)
        if shape.loses:
            assert of_ranking - found <= LOSES + 3 * math.sqrt(0.05 / 30)
