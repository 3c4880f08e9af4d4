"""The exact permutation test against loops over pairs and against all exchanges there are; its level, and its maximum over a family."""

import itertools
import math

import numpy as np
import pytest

from fedaudit.audits.statistics import highest, permutation
from fedaudit.audits.statistics.permutation import (
    PERMUTATIONS,
    Exchanges,
    Scored,
    exchanged,
    p_value,
    standardised,
    weighted_auroc,
)


def slow_auroc(member, scored, column):
    """Every pair of a member and another of a client, ties one half; clients weighted by n1 n0 / (n1 + n0 + 1)."""
    total = weights = 0.0
    for k in set(scored.client.tolist()):
        own = [i for i in range(len(scored.client)) if scored.client[i] == k]
        inside = [scored.values[i, column] for i in own if member[scored.coin[i]]]
        outside = [scored.values[i, column] for i in own if not member[scored.coin[i]]]
        if not inside or not outside:
            continue
        auroc = sum((a > b) + (a == b) / 2 for a in inside for b in outside) / len(inside) / len(outside)
        weight = len(inside) * len(outside) / (len(inside) + len(outside) + 1)
        total, weights = total + weight * auroc, weights + weight
    return total / weights if weights else 0.5


def everything(member, stratum):
    """Every way in which the coins can fall with as many members in each stratum, the given one first."""
    parts = []
    for s in sorted(set(stratum)):
        own = [i for i in range(len(member)) if stratum[i] == s]
        parts.append([*itertools.combinations(own, sum(member[i] for i in own))])
    chosen = [{*itertools.chain(*choice)} for choice in itertools.product(*parts)]
    found = [[i in inside for i in range(len(member))] for inside in chosen]
    found.remove(list(member))
    return np.array([list(member), *found])


def test_the_auroc_is_that_of_all_pairs_with_ties_shared_coins_infinities_and_empty_sides():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 5, (17, 3)).astype(float)
    values[3, 0], values[4, 0] = np.inf, -np.inf
    client = np.repeat([0, 1, 2, 3], [6, 7, 3, 1])
    coin = np.r_[np.arange(12), 0, 5, 12, 13, 14]  # two records are held by two clients, as is one coin of the first
    other = Scored(rng.normal(size=(4, 1)), np.array([0, 0, 1, 1]), np.array([1, 2, 7, 9]))  # some records alone
    both = [Scored(values, client, coin), other]
    members = exchanged(rng.random(15) < 0.5, np.repeat([0, 1, 2], 5), seed=(0,), times=30)
    found = weighted_auroc(members, both)
    columns = [*((both[0], i) for i in range(3)), (other, 0)]
    np.testing.assert_allclose(found, [[slow_auroc(row, *column) for column in columns] for row in members], atol=1e-12)
    alone = Scored(np.array([[1.0], [2.0]]), np.array([0, 1]), np.array([0, 1]))
    assert weighted_auroc(np.array([[True, False], [False, True]]), [alone]).tolist() == [[0.5], [0.5]]


def all_at_once(member, stratum, seed, times):
    """The exchanges, each stratum's drawn at once and kept in float64."""
    fell, rng = np.array(member), np.random.default_rng(seed)
    coins = np.tile(fell, (1 + times, 1))
    for name in dict.fromkeys(np.asarray(stratum).tolist()):
        rows = np.flatnonzero(stratum == name)
        coins[1:, rows] = fell[rows][rng.random((times, len(rows))).argsort(axis=1)]
    return coins


@pytest.mark.parametrize("block", [1, 8 * 50 * 7, permutation.BLOCK])
def test_exchanges_in_blocks_are_those_at_once_and_so_are_the_p_values(monkeypatch, block):
    rng, stratum = np.random.default_rng(5), np.random.default_rng(6).integers(0, 5, 50)
    member, client, coin = rng.random(50) < 0.5, rng.integers(0, 3, 60), np.r_[np.arange(50), :10]
    whole = all_at_once(member, stratum, (7,), 300)
    some = rng.integers(0, 20, (60, 3)).astype(float), rng.normal(size=(60, 1))
    scored = [Scored(values, client, coin) for values in some]
    expected = statistics(whole, scored)
    for module in (permutation, highest):
        monkeypatch.setattr(module, "BLOCK", block)
    blocks = Exchanges(member, stratum, seed=(7,), times=300)
    assert len(blocks) == len(whole)
    assert np.array_equal(blocks[:], whole)
    assert np.array_equal(blocks[3:9], whole[3:9])
    found = statistics(blocks, scored)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert [p_value(row[0], row).tolist() for row in found] == [p_value(row[0], row).tolist() for row in expected]


def statistics(members, scored):
    """Every statistic's absolute values under every exchange, a row each."""
    z = abs(standardised(weighted_auroc(members, scored)))
    return [*z.T, *(one.statistic for each in scored for pair in highest.of_each(members, each) for one in pair)]


def test_exchanges_keep_every_stratum_and_are_all_as_likely():
    assert exchanged([], [], seed=(0,), times=3).shape == (4, 0)
    member, stratum = [True, True, False, False, True, False, True], [0, 0, 0, 0, 1, 1, 2]
    found = exchanged(member, stratum, seed=(1,), times=6000)
    assert found[0].tolist() == member
    assert (found[:, :4].sum(axis=1) == 2).all()
    assert (found[:, 4:6].sum(axis=1) == 1).all()
    assert found[:, 6].all()
    drawn, counts = np.unique(found[1:], axis=0, return_counts=True)
    assert len(drawn) == math.comb(4, 2) * 2
    assert (abs(counts - 500) < 4 * math.sqrt(500)).all()
    assert not np.array_equal(found, exchanged(member, stratum, seed=(2,), times=6000))


@pytest.mark.parametrize("seed", range(6))
def test_the_p_value_is_that_of_all_exchanges(seed):
    """Two clients of five and four records, 60 exchanges: the sampled p-value is the enumerated one within 4 standard errors."""
    rng = np.random.default_rng(seed)
    member, stratum = [True, True, True, False, False, True, True, False, False], np.repeat([0, 1], [5, 4])
    scored = Scored(rng.integers(0, 6, (9, 1)) + np.array(member)[:, None] * 1.5, stratum, np.arange(9))
    ways = everything(member, stratum)
    assert len(ways) == 60
    drawn = weighted_auroc(exchanged(member, stratum, seed=(seed,)), [scored])[:, 0]
    away = abs(weighted_auroc(ways, [scored])[:, 0] - drawn.mean())
    exact = np.mean(away >= away[0] - 1e-9)
    z = standardised(drawn[:, None])[:, 0]
    p = p_value(z[0], abs(z))
    assert abs(p - exact) < 4 * math.sqrt(exact * (1 - exact) / PERMUTATIONS) + 2 / PERMUTATIONS


def test_p_by_hand_and_of_a_constant_score():
    assert p_value([0.5, 2.0, -2.5, 4.0], np.array([9.0, 1.0, 2.0, 3.0])).tolist() == [1.0, 0.75, 0.5, 0.25]
    members = exchanged([True, False] * 5, [0] * 10, seed=(0,), times=50)
    z = standardised(weighted_auroc(members, [Scored(np.ones((10, 1)), np.zeros(10, int), np.arange(10))]))
    assert not z.any()
    assert p_value(z[0, 0], abs(z[:, 0])) == 1.0


def test_level_of_a_score_alone_and_of_a_family():
    """400 nulls of eight correlated scores: a score alone, and the largest of all, are called at most 33 times (5 %, 99.9 %)."""
    rng, stratum = np.random.default_rng(4), np.repeat([0, 1, 2], [8, 20, 40])
    alone = some = 0
    for n in range(400):
        shared = rng.normal(size=(68, 1)) + 3 * stratum[:, None]
        scored = Scored(shared + rng.normal(size=(68, 8)), stratum, np.arange(68))
        members = exchanged(rng.random(68) < 0.5, stratum, seed=(n,), times=199)
        z = standardised(weighted_auroc(members, [scored]))
        alone += p_value(z[0, 0], abs(z[:, 0])) <= 0.05
        some += p_value(z[0], abs(z).max(axis=1)).min() <= 0.05
    assert 8 <= alone <= 33
    assert 8 <= some <= 33


def test_one_picture_of_two_clients_is_exchanged_once():
    """Both clients give it the top score: as two coins its rank would count as two observations."""
    client, coin = np.repeat([0, 1], 3), np.array([0, 1, 2, 0, 3, 4])
    scored = Scored(np.array([[3.0], [1], [2], [3], [1], [2]]), client, coin)
    ways = everything([True, False, False, False, False], [2, 0, 0, 1, 1])
    assert len(ways) == 1  # it is alone in its stratum: nothing could have been otherwise
    assert weighted_auroc(ways, [scored]).tolist() == [[1.0]]
