"""Ranking metrics of a few clients with a model each: against scikit-learn, loops from the formulas, hand calculations, simulated coverage.

A correct 95 % interval covers at least 179 of 200 times in all but 1 of 1,000 runs of the test (binomial).
"""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from fedaudit.audits.statistics.classification import accuracy_at, balanced_accuracy, best_threshold, tpr_at_fpr
from fedaudit.audits.statistics.intervals import auroc_p_value
from fedaudit.audits.statistics.ranking import auroc, client_auroc
from fedaudit.audits.statistics.roc_curves import client_roc_band, roc_band, tprs_on
from fedaudit.audits.statistics.stratified import comparable, stratified_auroc, stratified_auroc_difference
from tests.test_ranking import covered, delong_by_loops, psi

COVERED = 179  # of 200


def draw(seed, *, clients, each=72, signal=0.0, levels=None):
    """Scores, members and clients; the scores of every client are on a scale of their own."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), 2 * each)
    member = rng.permuted(np.tile(np.arange(2 * each) < each, (clients, 1)), axis=1).ravel()
    scores = (rng.normal(size=len(client)) + member * signal) * (1 + client) + 10 * client
    return (scores if levels is None else np.round(scores * levels)), member, client


def labelled(seed, *, clients=2, size=120, labels=25, signal=0.0, levels=None):
    """As `draw`, with labels of all sizes (some without one of the kinds) that shift the scores more than membership does."""
    rng = np.random.default_rng(seed)
    client, label = rng.integers(0, clients, size), rng.integers(0, labels, size)
    member = rng.random(size) < 0.2 + 0.6 * rng.random(labels)[label]
    scores = rng.normal(size=size) + signal * member + 3 * rng.normal(size=labels)[label] + 10 * client
    return (scores if levels is None else np.round(scores * levels)), member, client, label


def by_loops(scores, member, client, label):
    """AUROC and standard error, pair by pair: the share of right pairs of one label, and the spread of the records' parts of it."""
    values, variances = [], []
    for c in sorted(set(client)):
        x = [i for i in range(len(scores)) if client[i] == c and member[i]]
        y = [i for i in range(len(scores)) if client[i] == c and not member[i]]
        pairs = {(i, j): psi(scores[i], scores[j]) for i in x for j in y if label[i] == label[j]}
        x, y = {i for i, _ in pairs}, {j for _, j in pairs}
        if min(len(x), len(y)) < 2:
            continue
        theta = sum(pairs.values()) / len(pairs)
        parts = [
            [sum(v - theta for pair, v in pairs.items() if pair[side] == k) / len(pairs) for k in kind]
            for side, kind in enumerate((x, y))
        ]
        variances.append(sum(len(p) / (len(p) - 1) * sum(v * v for v in p) for p in parts))
        values.append(theta)
    return np.mean(values), math.sqrt(sum(variances)) / len(values)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_clients_are_the_mean_and_their_variances_add_up_and_one_is_plain_delong(clients):
    scores, member, client = draw(1, clients=clients, each=20, signal=0.5, levels=2)
    got, plain = stratified_auroc(scores, member, client), auroc(scores, member, client)
    own = [(scores[client == c], member[client == c]) for c in range(clients)]
    se = math.sqrt(sum(delong_by_loops(s, m) ** 2 for s, m in own)) / clients
    value, half = np.mean([roc_auc_score(m, s) for s, m in own]), stats.norm.ppf(0.975) * se
    assert (got.value, got.se) == pytest.approx((value, se), abs=1e-12)
    assert (got.low, got.high) == pytest.approx((value - half, value + half))
    assert got.value == pytest.approx(client_auroc(scores, member, client)[0].value, abs=1e-12)
    assert (got.members, got.nonmembers, got.clients) == (20 * clients, 20 * clients, clients)
    assert clients > 1 or (got.how, got.dof, got.units) == ("DeLong, normal", None, plain.units)


@pytest.mark.parametrize("seed", range(6))
def test_within_labels_is_what_loops_over_pairs_say(seed):
    scores, member, client, label = labelled(seed, signal=1.0, levels=1)
    got = stratified_auroc(scores, member, client, within=label)
    assert (got.value, got.se) == pytest.approx(by_loops(scores, member, client, label), abs=1e-12)
    assert "within class" in got.how
    kept = comparable(member, client, label)
    assert (got.members, got.nonmembers) == (member[kept].sum(), (~member[kept]).sum())


def test_only_what_can_be_compared_counts():
    member = np.array([1, 1, 0, 0, 1, 1, 0, 1, 0], bool)
    client = list("aaaabbbcc")  # b and c have a single non-member each, and so no variance
    assert comparable(member, client).tolist() == [True] * 4 + [False] * 5
    got = stratified_auroc([3, 1, 2, 0, 9, 9, 9, 9, 9], member, client)
    assert (got.value, got.members, got.nonmembers, got.clients) == (0.75, 2, 2, 1)
    assert not comparable(member[4:], client[4:]).any()
    assert not comparable(member, client, range(9)).any()
    assert not comparable([], []).any()
    with pytest.raises(ValueError, match="2 members and 2 non-members of one client"):
        stratified_auroc(range(5), member[4:], client[4:])


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("signal", [0.0, 0.8])
def test_interval_covers(clients, signal):
    truth = stats.norm.cdf(signal / math.sqrt(2))
    runs = [draw(s, clients=clients, signal=signal) for s in range(200)]
    assert sum(covered(stratified_auroc(*run), truth) for run in runs) >= COVERED


@pytest.mark.parametrize("signal", [0.0, 0.8])
def test_interval_within_labels_covers_though_the_labels_differ(signal):
    truth = stats.norm.cdf(signal / math.sqrt(2))
    hits = sharp = 0
    for s in range(200):
        scores, member, client, label = labelled(s, size=250, signal=signal)
        got = stratified_auroc(scores, member, client, within=label)
        hits, sharp = hits + covered(got, truth), sharp + (got.high - got.low < 0.3)
    assert hits >= COVERED
    assert sharp >= 190


def test_perfect_scores_have_the_exact_interval_of_their_pairs():
    member = np.tile([True] * 3 + [False] * 5, 2)
    client = np.repeat([0, 1], 8)
    got = stratified_auroc(member.astype(float), member, client)
    assert (got.value, got.high, got.units) == (1.0, 1.0, 6)
    assert got.low == pytest.approx(stats.binomtest(6, 6).proportion_ci(0.95).low)
    assert stratified_auroc(-member.astype(float), member, client).low == 0.0
    assert auroc_p_value(got) == pytest.approx(2 * 0.5**6)
    # of 5 members with 1 non-member and the reverse only two pairs are independent
    label, member = [0] * 6 + [1] * 6, np.array([1] * 5 + [0] * 6 + [1], bool)
    assert stratified_auroc(member, member, [0] * 12, within=label).units == 2


def test_infinite_scores_are_scores_and_a_constant_score_is_one_half_for_certain():
    scores, member, client = draw(2, clients=2, signal=1.0, levels=1)
    low, high = scores.min(), scores.max()
    wide = np.where(scores == low, -np.inf, np.where(scores == high, np.inf, scores))
    assert stratified_auroc(wide, member, client) == stratified_auroc(scores, member, client)
    got = stratified_auroc(client, member, client)  # constant for each client
    assert (got.value, got.low, got.high, got.how) == (0.5, 0.5, 0.5, "constant score")


def two_scores(seed, clients=2):
    """Two scores of the same records with AUROCs Phi(0.8 / sqrt 2) and Phi(0.3 / sqrt 2), correlated through a common part."""
    rng = np.random.default_rng(seed)
    _, member, client = draw(seed, clients=clients)
    common = rng.normal(size=len(member))
    a, b = (math.sqrt(0.5) * (common + rng.normal(size=len(member))) + d * member for d in (0.8, 0.3))
    return a, b, member, client


def test_difference_covers_its_truth():
    truth = stats.norm.cdf(0.8 / math.sqrt(2)) - stats.norm.cdf(0.3 / math.sqrt(2))
    assert sum(covered(stratified_auroc_difference(*two_scores(s)), truth) for s in range(200)) >= COVERED


def test_difference_is_that_of_the_aurocs_and_antisymmetric():
    a, b, member, client = two_scores(0)
    one, other = (stratified_auroc_difference(*pair, member, client) for pair in ((a, b), (b, a)))
    first, second = (stratified_auroc(scores, member, client) for scores in (a, b))
    assert one.value == pytest.approx(first.value - second.value, abs=1e-12)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-12)
    assert one.se < math.hypot(first.se, second.se)  # what they have in common cancels


def test_difference_without_variance():
    _, member, client = draw(0, clients=2, each=10)
    perfect, other = member * 1.0, member * 1.0 + np.arange(40) / 100
    same = stratified_auroc_difference(perfect, np.exp(perfect) + 5 * client, member, client)
    assert same.how == "identical rankings"
    got = stratified_auroc_difference(perfect, other, member, client)
    assert (got.value, got.how) == (0.0, "square-and-add")
    assert got.low < 0 < got.high


def test_accuracy_by_hand():
    member = np.array([1, 1, 0, 0, 0, 1, 0, 1], bool)
    scores = [5, 1, 0, 4, 2, 0, -3, 7]
    client = list("aaaaabbc")  # c has no non-member and is left out
    got = accuracy_at(scores, member, client, {"a": 2, "b": -1})
    rates = [(1, 2), (2, 3), (1, 1), (1, 1)]  # the score 2 is not above the threshold 2
    assert got.value == pytest.approx((1 / 2 + 2 / 3 + 1 + 1) / 4)
    reach = [np.subtract(k / n, stats.binomtest(k, n).proportion_ci(0.95)) for k, n in rates]
    down, up = np.linalg.norm(reach, axis=0) / 4
    assert (got.low, got.high) == pytest.approx((got.value - down, got.value + up))
    assert (got.members, got.nonmembers, got.clients) == (3, 4, 2)


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("signal", [0.0, 0.8, 4.0])
def test_accuracy_covers(clients, signal):
    """The threshold is half a signal too high for the first client: what matters is that it was fixed."""
    high = [signal / 2 + (c == 0) * 0.4 for c in range(clients)]
    cuts = {c: cut * (1 + c) + 10 * c for c, cut in enumerate(high)}
    truth = np.mean([(stats.norm.sf(cut - signal) + stats.norm.cdf(cut)) / 2 for cut in high])
    runs = [draw(s, clients=clients, signal=signal) for s in range(200)]
    assert sum(covered(accuracy_at(*run, cuts), truth) for run in runs) >= COVERED


def test_accuracy_is_within_its_range():
    member = np.tile([True, False], 20)
    client = np.repeat([0, 1], 20)
    right, wrong = (accuracy_at(s, member, client, {0: 0.5, 1: 0.5}) for s in (member, ~member))
    assert (right.value, right.high) == (1.0, 1.0)
    assert 0.8 < right.low < 1
    assert (wrong.value, wrong.low) == (0.0, 0.0)
    everyone = accuracy_at(np.ones(40), member, client, {0: 0.5, 1: 0.5})
    assert everyone.value == 0.5
    assert everyone.low < 0.5 < everyone.high
    with pytest.raises(ValueError, match="there is none of 'b'"):
        accuracy_at([1, 2, 1, 2], [True, False] * 2, list("aabb"), {"a": 1})


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_as_good_as_scikit_learns(seed):
    scores, member, _ = draw(seed, clients=1, each=30, signal=0.7, levels=2)
    cut = best_threshold(scores, member)
    fpr, tpr, _ = roc_curve(member, scores)
    assert np.mean(scores[member] > cut) - np.mean(scores[~member] > cut) == pytest.approx(max(tpr - fpr))
    assert 1 < best_threshold([-np.inf, 1.0, 5.0, np.inf], [False, False, True, True]) < 5
    with pytest.raises(ValueError, match="NaN"):
        best_threshold([math.nan, 1.0], [True, False])


def test_intervals_of_independent_records():
    """Rates have Clopper and Pearson's, balanced accuracy a normal one of the records' standard error."""
    given = draw(4, clients=2, signal=1.0)
    reference = {c: draw(9 + c, clients=1)[0] * (1 + c) + 10 * c for c in (0, 1)}
    clustered, got = (tpr_at_fpr(*given, 0.1, reference=reference, independent=i) for i in (False, True))
    assert got.value == clustered.value
    exact = stats.binomtest(round(got.value * 144), 144).proportion_ci(0.95)
    assert (got.low, got.high) == pytest.approx((exact.low, exact.high))
    clustered, plain = (balanced_accuracy(*given, per_client=True, independent=i) for i in (False, True))
    assert clustered.value == plain.value
    assert (clustered.dof, plain.dof) == (1, None)
    # (TPR + TNR) / 2 of independent records cannot vary more than at rates of one half
    assert 0 < plain.se <= math.sqrt(2 * 0.25 / 143) / 2


def test_mean_curve_is_that_of_the_clients():
    scores, member, client = draw(6, clients=2, each=30, signal=1.0, levels=2)
    grid = np.array([0.01, 0.05, 0.2, 0.5, 1.0])
    tpr, low, high = client_roc_band(scores, member, client, fpr_grid=grid)
    own = [client == k for k in (0, 1)]
    each = [roc_band(scores[of], member[of], client[of], fpr_grid=grid, resamples=1)[0] for of in own]
    assert tpr == pytest.approx(np.mean(each, axis=0), abs=1e-12)
    assert (low <= tpr).all()
    assert (tpr <= high).all()
    assert (low[-1], high[-1]) == (1.0, 1.0)
    assert np.array_equal(client_roc_band(scores, member, client, fpr_grid=grid), (tpr, low, high))


@pytest.mark.parametrize("seed", range(4))
def test_resampled_curves_are_scikit_learns(seed):
    scores, member, _ = draw(seed, clients=1, each=12, signal=1.0, levels=1)
    weights = np.random.default_rng(seed).integers(0, 3, (5, 24)).astype(float)
    grid, ranks = np.linspace(0, 1, 13), np.unique(scores, return_inverse=True)[1]
    got = tprs_on(grid, ranks, member, weights)
    for row, w in zip(got, weights, strict=True):
        fpr, tpr, _ = roc_curve(member, scores, sample_weight=w, drop_intermediate=False)
        assert row == pytest.approx([tpr[fpr <= g + 1e-9].max() for g in grid], abs=1e-12)


def test_band_covers_the_curve():
    """At a false positive rate of 0.3 the true curve of two normal laws is 1 - Phi(Phi^-1(0.7) - 1); a pointwise percentile bootstrap."""
    truth = stats.norm.sf(stats.norm.ppf(0.7) - 1.0)
    bands = (client_roc_band(*draw(s, clients=2, signal=1.0), fpr_grid=[0.3], seed=s) for s in range(200))
    held = sum(low[0] <= truth <= high[0] for _, low, high in bands)
    assert held >= COVERED - 6  # a step function is below its limit


@pytest.mark.parametrize("of", [auroc, lambda *on, **more: client_auroc(*on, **more)[0], stratified_auroc])
@pytest.mark.parametrize(
    ("signal", "levels"),
    [(0.0, None), (1.0, 2), (1e3, None), (-1e3, None), (0.0, 0)],
    ids="none ties all no constant".split(),
)
def test_an_interval_at_another_confidence_is_the_one_of_that_confidence(of, signal, levels):
    scores, member, client = draw(3, clients=4, each=9, signal=signal, levels=levels)
    at_once = of(scores, member, client, confidence=0.95)
    for confidence in (0.5, 0.95, 0.9999):
        directly = of(scores, member, client, confidence=confidence)
        assert at_once.at(confidence) == (directly.low, directly.high)
