"""Partitions of labels over clients: laws over grids, moments, exact counts."""

import re

import numpy as np
import pytest

from fedaudit.machinery.errors import InputError
from fedaudit.tasks import partitions


def _labels(classes, each=20):
    """Records of each class, mixed up; names, as the tasks have them."""
    names = np.array([f"class {c:03d}" for c in range(classes)])
    return np.random.default_rng(1).permutation(np.repeat(names, each))


def _rng(seed=0):
    return np.random.default_rng(seed)


def _counts(labels, share):
    return dict(zip(*np.unique(labels[share], return_counts=True), strict=True))


def _is_a_partition(shares, n):
    return np.array_equal(np.sort(np.concatenate(shares)), np.arange(n))


PARTITIONS = {
    "pathological": partitions.pathological,
    "few-shot": lambda labels, clients, rng: partitions.few_shot(labels, clients, 5, rng),
    "dominant": lambda labels, clients, rng: partitions.dominant(labels, clients, 16, rng),
    "dirichlet": lambda labels, clients, rng: partitions.dirichlet(labels, clients, 0.3, rng),
}


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_shares_are_ascending_positions_and_follow_the_seed_and_no_names_of_classes(partition):
    labels = _labels(12)
    numbers = np.unique(labels, return_inverse=True)[1]
    shares, again, other = (partition(labels, 4, _rng(seed)) for seed in (0, 0, 1))
    assert len(shares) == 4
    for share in shares:
        assert np.all(np.diff(share) > 0)
        assert share[0] >= 0
        assert share[-1] < len(labels)
    for same in (again, partition(numbers, 4, _rng())):
        assert all(map(np.array_equal, shares, same))
    assert not all(map(np.array_equal, shares, other))


@pytest.mark.parametrize(("classes", "clients"), [(37, 1), (37, 2), (37, 36), (37, 37), (40, 10), (101, 7)])
def test_a_pathological_split_is_complete_disjoint_and_even(classes, clients):
    labels = _labels(classes, each=3)
    shares = partitions.pathological(labels, clients, _rng())
    assert _is_a_partition(shares, len(labels))
    owned = [set(labels[share]) for share in shares]
    assert sum(map(len, owned)) == len(set.union(*owned)) == classes, "no class belongs to two clients"
    assert {len(own) for own in owned} <= {classes // clients, -(-classes // clients)}


def test_every_class_is_as_likely_to_go_to_any_client():
    """Client 0 owns 2 of 6 classes: each with probability 1/3."""
    labels = _labels(6, each=1)
    shares = [partitions.pathological(labels, 3, _rng(seed))[0] for seed in range(900)]
    own = np.array([np.isin(np.unique(labels), labels[share]) for share in shares])
    assert np.abs(own.mean(axis=0) - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 900)


@pytest.mark.parametrize("shots", [1, 4, 20])
def test_few_shot_is_a_subset_of_the_pathological_split_with_as_many_of_every_class(shots):
    labels = _labels(13)
    full = partitions.pathological(labels, 4, _rng())
    for share, whole in zip(partitions.few_shot(labels, 4, shots, _rng()), full, strict=True):
        assert set(share) <= set(whole)
        assert _counts(labels, share) == dict.fromkeys(set(labels[whole]), shots)


def test_too_few_records_of_a_class_and_too_few_classes_are_named():
    labels = np.array(["dog"] * 16 + ["cat"] * 3)
    for partition in (partitions.few_shot, partitions.dominant):
        with pytest.raises(InputError, match="--shots 16: class 'cat' has only 3 training records"):
            [partition(labels, 1, 16, _rng(seed)) for seed in range(20)]
    with pytest.raises(InputError, match=r"--clients 50: .* at least one class per client, and there are 36 classes"):
        partitions.pathological(_labels(36), 50, _rng())


@pytest.mark.parametrize(
    ("classes", "shots", "left", "kept"),
    [(100, 16, 80, 4), (10, 16, 8, 4), (37, 16, 30, 4), (40, 8, 32, 2), (2, 1, 2, 1)],
)
def test_the_dominant_split_has_exact_counts(classes, shots, left, kept):
    """DP2FL: 20 % of the classes are dropped, 25 % of 16 shots kept, 75 % of one class added."""
    labels = _labels(classes)
    for share in partitions.dominant(labels, 10, shots, _rng()):
        assert sorted(_counts(labels, share).values()) == [kept] * (left - 1) + [shots]


def test_the_dominant_class_and_the_dropped_ones_differ_between_clients():
    labels = _labels(10)
    shares = [share for seed in range(100) for share in partitions.dominant(labels, 5, 16, _rng(seed))]
    names, first = np.unique(labels), []
    dropped = np.zeros(10)
    for share in shares:
        counts = _counts(labels, share)
        first.append(max(counts, key=counts.get))
        dropped += ~np.isin(names, list(counts))
    often = np.array([first.count(name) for name in names])
    assert np.abs(often - 50).max() < 4 * np.sqrt(500 * 0.1 * 0.9)
    assert np.abs(dropped - 100).max() < 4 * np.sqrt(500 * 0.2 * 0.8)


@pytest.mark.parametrize("beta", [1e-3, 0.3, 1e6])
@pytest.mark.parametrize(("clients", "classes", "each"), [(1, 5, 10), (10, 40, 48), (300, 20, 100)])
def test_a_dirichlet_partition_is_complete_and_disjoint(clients, classes, each, beta):
    labels = _labels(classes, each)
    shares = partitions.dirichlet(labels, clients, beta, _rng(), least=0)
    assert len(shares) == clients
    assert _is_a_partition(shares, len(labels))


@pytest.mark.parametrize(("beta", "clients"), [(0.1, 10), (5.0, 4), (1e4, 8)])
def test_the_moments_of_a_dirichlet_partition(beta, clients):
    """A client's number of a class's n records is Dirichlet-multinomial: mean n/K, variance n(1/K)(1-1/K)(n+Kb)/(1+Kb)."""
    classes, n = 1500, 30
    labels = np.repeat(np.arange(classes), n)
    shares = partitions.dirichlet(labels, clients, beta, _rng(3))
    counts = np.array([np.bincount(labels[share], minlength=classes) for share in shares])
    p, total = 1 / clients, clients * beta
    variance = n * p * (1 - p) * (n + total) / (1 + total)
    assert np.abs(counts.mean(axis=1) - n * p).max() < 4.5 * np.sqrt(variance / classes), "a client is favoured"
    assert abs(counts.var(axis=1).mean() / variance - 1) < 0.12


def test_a_dirichlet_partition_is_drawn_again_until_nobody_has_too_little():
    labels = _labels(4, each=10)
    rough = [min(map(len, partitions.dirichlet(labels, 4, 0.3, _rng(seed), least=0))) for seed in range(50)]
    assert min(rough) < 4, "a single draw is often too uneven"
    for seed in range(50):
        shares = partitions.dirichlet(labels, 4, 0.3, _rng(seed), least=4)
        assert min(map(len, shares)) >= 4
        assert _is_a_partition(shares, 40)


@pytest.mark.parametrize(("clients", "beta"), [(11, 1e6), (10, 0.001)])
def test_a_dirichlet_partition_that_always_leaves_somebody_too_little(clients, beta):
    said = f"--clients {clients} with --dirichlet {beta:g}: in each of 100 draws some client got fewer than 4 of the 40"
    with pytest.raises(InputError, match=re.escape(said)):
        partitions.dirichlet(_labels(5, each=8), clients, beta, _rng(), least=4)
