"""Ranking metrics: against scikit-learn, loops written from the formulas, hand calculations, and simulated coverage.

A correct 95 % interval covers at least 179 of 200 times in all but 1 of 1,000 runs of the test (binomial).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve
from statsmodels.stats.multitest import multipletests

from benchmarks import coverage
from fedaudit.audits.statistics.classification import balanced_accuracy, tpr_at_fpr
from fedaudit.audits.statistics.intervals import auroc_p_value, detectable, holm
from fedaudit.audits.statistics.ranking import auroc, auroc_difference, client_auroc, client_auroc_difference
from fedaudit.audits.statistics.roc_curves import roc_band

COVERED = 179  # of 200


def draw(seed, *, clients=12, each=25, signal=0.0, signal_sd=0.0, shared_sd=0.0, levels=None):
    """Scores, members and clients: noise, an offset per client, and a signal whose strength varies by client.

    Without an offset the AUROC is exactly Phi(signal / sqrt(2 + signal_sd²)), within as between clients.
    """
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), 2 * each)
    member = np.tile(np.arange(2 * each) < each, clients)
    scores = rng.normal(size=len(client)) + rng.normal(0, shared_sd, clients)[client]
    scores += member * rng.normal(signal, signal_sd, clients)[client]
    return (scores if levels is None else np.round(scores * levels)), member, client


def uneven(seed, *, size=80, clients=7, levels=3):
    """Tied scores of clients of all sizes; client 0 has members only, client 1 non-members only."""
    rng = np.random.default_rng(seed)
    client = rng.integers(0, clients, size)
    member = rng.random(size) < 0.4
    member[client == 0], member[client == 1] = True, False
    scores = np.round(levels * (rng.normal(size=size) + 0.7 * member + rng.normal(size=clients)[client]))
    return scores, member, client


def psi(x, y):
    return 1.0 if x > y else 0.5 if x == y else 0.0


def components(scores, member):
    """DeLong's structural components of members and of non-members."""
    x, y = scores[member], scores[~member]
    return [sum(psi(a, b) for b in y) / len(y) for a in x], [sum(psi(a, b) for a in x) / len(x) for b in y]


def delong_by_loops(scores, member):
    """DeLong, DeLong and Clarke-Pearson (1988), equations 3 to 5."""
    v10, v01 = components(scores, member)
    return math.sqrt(np.var(v10, ddof=1) / len(v10) + np.var(v01, ddof=1) / len(v01))


def obuchowski_by_loops(scores, member, client):
    """Obuchowski (1997), section 2: sums of the structural components over clusters."""
    x = [(s, c) for s, m, c in zip(scores, member, client, strict=True) if m]
    y = [(s, c) for s, m, c in zip(scores, member, client, strict=True) if not m]
    theta = sum(psi(a, b) for a, _ in x for b, _ in y) / (len(x) * len(y))
    s10 = s01 = s11 = 0.0
    for cluster in set(client):
        v10 = sum(sum(psi(a, b) for b, _ in y) / len(y) for a, c in x if c == cluster)
        v01 = sum(sum(psi(a, b) for a, _ in x) / len(x) for b, c in y if c == cluster)
        from_x = v10 - theta * sum(c == cluster for _, c in x)
        from_y = v01 - theta * sum(c == cluster for _, c in y)
        s10, s01, s11 = s10 + from_x**2, s01 + from_y**2, s11 + from_x * from_y
    i10, i01, i = len({c for _, c in x}), len({c for _, c in y}), len(set(client))
    s10, s01, s11 = s10 * i10 / ((i10 - 1) * len(x)), s01 * i01 / ((i01 - 1) * len(y)), s11 * i / (i - 1)
    return theta, math.sqrt(s10 / len(x) + s01 / len(y) + 2 * s11 / (len(x) * len(y)))


def degrees_by_matrices(values, client, every):
    """Satterthwaite's degrees of freedom of clients' sums about the common mean, from their whole covariance matrix."""
    own, n = sorted(set(client)), len(values)
    e = np.array(values) - np.mean(values)
    together = [e[i] * e[j] for i in range(n) for j in range(n) if i != j and client[i] == client[j]]
    correlation = min(1.0, max(0.0, np.mean(together) / np.mean(e**2)))
    h = np.array([np.sum(every == c) for c in own]) / np.isin(every, own).sum()
    v = np.diag([share * (1 + max(0.0, share * n - 1) * correlation) for share in h])
    centred = (np.eye(len(own)) - np.outer(h, np.ones(len(own)))) / np.sqrt(1 - h)[:, None]
    s = centred @ v @ centred.T
    return np.trace(s) ** 2 / np.trace(s @ s)


def covered(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize("seed", range(5))
def test_clustered_standard_error_is_the_formula(seed):
    scores, member, client = uneven(seed)
    got = auroc(scores, member, client)
    theta, se = obuchowski_by_loops(scores, member, client)
    assert (got.value, got.se) == pytest.approx((theta, se), abs=1e-12)
    x, y = components(scores, member)
    dof = min(degrees_by_matrices(x, client[member], client), degrees_by_matrices(y, client[~member], client))
    assert 1 < dof < 5  # 7 clients, 6 with members, 6 with non-members: 5 if they were of one size
    t = stats.t.ppf(0.975, dof)
    assert (got.low, got.high) == pytest.approx((max(0, theta - t * se), min(1, theta + t * se)), abs=1e-9)
    assert (got.members, got.nonmembers, got.clients) == (member.sum(), (~member).sum(), 7)
    assert got.how == f"clustered DeLong, t({dof:.3g})"


@pytest.mark.parametrize("seed", range(5))
def test_one_client_and_clients_of_one_record_have_delongs_standard_error(seed):
    """With one record a client S10 has the factor I10 / (I10 - 1) = m / (m - 1) as DeLong's, and S11 vanishes."""
    scores, member, _ = uneven(seed)
    got, single = auroc(scores, member, ["all"] * len(scores)), auroc(scores, member, np.arange(len(scores)))
    assert (got.se, single.se) == pytest.approx([delong_by_loops(scores, member)] * 2, abs=1e-12)
    assert got.high - got.value == pytest.approx(min(stats.norm.ppf(0.975) * got.se, 1 - got.value))
    assert got.how == "DeLong, normal"
    assert single.dof == min(member.sum(), (~member).sum()) - 1


def test_a_common_pool_of_non_members_counts_by_record_and_members_by_client():
    scores, member, client = draw(0, signal=0.5, signal_sd=1.0)
    client = np.where(member, client, 99)
    v10, v01 = map(np.array, components(scores, member))
    s10 = 12 / 11 * sum((v10[client[member] == c] - v10.mean()).sum() ** 2 for c in range(12))
    got = auroc(scores, member, client)
    assert got.se == pytest.approx(math.sqrt(s10 / 300**2 + v01.var(ddof=1) / 300), abs=1e-12)
    assert got.dof == 11


def test_only_the_ranking_and_the_grouping_matter():
    scores, member, client = draw(4, signal=1.0)
    stretched = np.where(scores > 2, np.inf, np.where(scores < -2, -np.inf, scores))
    clipped = np.clip(scores, -2, 2)
    names = [("site", int(c)) for c in client]
    shuffled = np.random.default_rng(0).permutation(len(scores))
    one = auroc(clipped, member, client)
    other = auroc(stretched[shuffled], member[shuffled], [names[i] for i in shuffled])
    assert other.se == pytest.approx(one.se)
    assert other.value == pytest.approx(one.value)


def test_clustered_interval_covers_where_the_plain_one_does_not():
    truth = stats.norm.cdf(0.5 / math.sqrt(3))
    clustered = plain = 0
    for seed in range(200):
        scores, member, client = draw(seed, signal=0.5, signal_sd=1.0)
        clustered += covered(auroc(scores, member, client), truth)
        plain += covered(auroc(scores, member, np.arange(len(scores))), truth)
    assert clustered >= COVERED
    assert plain < 140


@pytest.mark.parametrize("sizes", [[5, 10, 20, 80] * 3, [10] * 4 + [100] * 2])
@pytest.mark.parametrize("leak", [(0.0, 0.0, 0.0), (0.3, 0.7, 0.3)])
def test_unequal_clients_are_covered(sizes, leak):
    """With as many degrees of freedom as clients less one, 158 to 182 of 200."""
    assert min(coverage.covered(sizes, leak, 1, draws=200)) >= COVERED


def test_clients_of_one_size_have_their_number_less_one_and_one_that_has_nearly_all_hardly_any():
    scores, member, client = draw(3, shared_sd=1.0)
    assert auroc(scores, member, client).dof == 11
    assert 1 <= auroc(scores, member, np.where(client < 10, 0, client)).dof < 1.2


def test_shuffled_labels_are_covered():
    hits = np.zeros(2)  # pooled, and client by client
    for seed in range(200):
        scores, member, client = draw(seed, shared_sd=2.0, levels=2)
        rng = np.random.default_rng(seed)
        for c in range(12):
            member[client == c] = rng.permutation(member[client == c])
        given = (scores, member, client)
        hits += covered(auroc(*given), 0.5), covered(client_auroc(*given)[0], 0.5)
    assert hits.min() >= COVERED


def test_scores_without_variance_have_the_exact_interval():
    """Perfect and reversed ones, and those of clients that all agree."""
    _, member, client = draw(0)
    perfect, worst = (auroc(sign * member.astype(float), member, client) for sign in (1, -1))
    assert (perfect.value, perfect.low, perfect.high) == pytest.approx((1.0, 0.025 ** (1 / 12), 1.0))
    assert perfect.how == "exact binomial(12)"
    assert (worst.low, worst.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 12)))
    alone = auroc([3, 4, 5, 1, 2], [1, 1, 1, 0, 0], ["a"] * 5, confidence=0.9)
    assert alone.low == pytest.approx(0.05 ** (1 / 2))
    assert auroc([1, 0], [True, False], [0, 0]).low == pytest.approx(0.025)
    agreed = auroc(np.tile([1.0, 3.0, 2.0, 2.0], 12), np.tile([True, True, False, False], 12), np.arange(48) // 4)
    exact = stats.binomtest(6, 12).proportion_ci(method="exact")
    assert (agreed.value, agreed.low, agreed.high) == pytest.approx((0.5, exact.low, exact.high))


def test_intervals_end_at_one():
    scores, member, client = draw(0, signal=3.5, signal_sd=0.5)
    given = (scores, member, client)
    for got in (auroc(*given, confidence=0.999), client_auroc(*given, confidence=0.999)[0]):
        assert got.low < got.value < got.high == 1.0 < got.value + 5 * got.se


def test_a_constant_score_is_one_half_for_certain():
    _, member, client = draw(0)
    for got in (
        auroc(np.zeros(600), member, client),
        client_auroc(client, member, client)[0],
        balanced_accuracy(np.zeros(600), member, client),
    ):
        assert (got.value, got.low, got.high, got.how) == (0.5, 0.5, 0.5, "constant score")


@pytest.mark.parametrize(
    ("scores", "member", "client", "message"),
    [
        ([1, 2], [True, True], [0, 0], "2 members of 2"),
        ([1, math.nan], [True, False], [0, 0], "1 NaN"),
        ([1, 2], [True, False], [0], "differ in length"),
        ([1, 2], [1, -1], [0, 0], "True or False, got"),
        ([1, 2], [True, False], [0, math.nan], "client must name"),
    ],
)
def test_bad_input_is_refused(scores, member, client, message):
    with pytest.raises(ValueError, match=message):
        auroc(scores, member, client)


@pytest.mark.parametrize("share", [0.0, 1.0, 95.0, -0.1, math.nan])
def test_confidence_and_the_rate_of_false_positives_are_shares(share):
    given = [1, 2], [True, False], [0, 0]
    with pytest.raises(ValueError, match="confidence must lie strictly between 0 and 1"):
        auroc(*given, confidence=share)
    with pytest.raises(ValueError, match="fpr must lie strictly between 0 and 1"):
        tpr_at_fpr(*given, share)


def two_scores(seed):
    """Two scores that share half of their noise, of signal 1.0 and 0.4, both varying by client."""
    rng = np.random.default_rng(seed)
    client, member = np.repeat(np.arange(12), 50), np.tile(np.arange(50) < 25, 12)
    common = rng.normal(size=600)
    a, b = (common + rng.normal(size=600) + member * rng.normal(d, 0.7, 12)[client] for d in (1.0, 0.4))
    return a, b, member, client, stats.norm.cdf(1.0 / math.sqrt(4.49)) - stats.norm.cdf(0.4 / math.sqrt(4.49))


@pytest.mark.parametrize("difference", [auroc_difference, client_auroc_difference])
def test_difference_covers_its_truth(difference):
    hits = 0
    for seed in range(200):
        a, b, member, client, truth = two_scores(seed)
        hits += covered(difference(a, b, member, client), truth)
    assert hits >= COVERED


@pytest.mark.parametrize("difference", [auroc_difference, client_auroc_difference])
def test_difference_is_antisymmetric(difference):
    a, b, member, client, _ = two_scores(0)
    one, other = difference(a, b, member, client), difference(b, a, member, client)
    assert one.value > 0
    assert (other.value, other.low, other.high) == pytest.approx((-one.value, -one.high, -one.low))


def test_difference_is_that_of_the_aurocs():
    """AUROC(-a) = 1 - AUROC(a), so that the difference of a and -a is 2 AUROC(a) - 1."""
    a, b, member, client, _ = two_scores(0)
    expected = roc_auc_score(member, a) - roc_auc_score(member, b)
    assert auroc_difference(a, b, member, client).value == pytest.approx(expected)
    assert auroc_difference(a, -a, member, client).se == pytest.approx(2 * auroc(a, member, client).se)


@pytest.mark.parametrize("difference", [auroc_difference, client_auroc_difference])
def test_difference_without_variance(difference):
    scores, member, client = draw(0)
    same = difference(scores, np.exp(scores), member, client)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    trials = 25 if difference is client_auroc_difference else 12  # records of a client, clients
    low = 0.025 ** (1 / trials)  # of a perfect score; a constant one has no uncertainty to add
    leak = difference(member.astype(float), np.zeros(600), member, client)
    assert (leak.value, leak.low, leak.high) == pytest.approx((0.5, low - 0.5, 0.5))
    both = difference(member + scores * 1e-3, member - scores * 1e-3, member, client)
    assert (both.value, both.low, both.high) == pytest.approx((0.0, low - 1, 1 - low))


def test_client_auroc_is_the_mean_of_scikit_learns_with_a_t_interval():
    scores, member, client = uneven(1)
    names = np.array(["abcdefg"[c] for c in client])
    got, each = client_auroc(scores, member, names)
    expected = {"abcdefg"[c]: roc_auc_score(member[client == c], scores[client == c]) for c in range(2, 7)}
    assert each == pytest.approx(expected)
    values = list(expected.values())
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (got.value, got.low, got.high) == pytest.approx((np.mean(values), max(low, 0), min(high, 1)))
    kept = client >= 2
    assert (got.members, got.nonmembers, got.clients) == (member[kept].sum(), (~member[kept]).sum(), 5)


def test_client_auroc_ignores_what_models_add_and_pooling_does_not():
    scores, member, client = draw(2, signal=1.0)
    moved = scores + 100 * client
    assert client_auroc(moved, member, client) == client_auroc(scores, member, client)
    assert auroc(moved, member, client).value < 0.55 < 0.7 < auroc(scores, member, client).value


def test_client_auroc_of_one_client_and_of_none():
    scores, member, client = uneven(2)
    kept = (client < 2) | (client == 3)
    got, each = client_auroc(scores[kept], member[kept], client[kept])
    assert got == auroc(scores[client == 3], member[client == 3], client[client == 3])
    assert list(each) == [3]
    pair = client_auroc_difference(scores[kept], -scores[kept], member[kept], client[kept])
    assert pair.value == pytest.approx(2 * got.value - 1)
    assert pair.se == pytest.approx(2 * got.se)
    with pytest.raises(ValueError, match="at least 1 members and 1 non-members of one client"):
        client_auroc(scores[client < 2], member[client < 2], client[client < 2])


def test_client_auroc_of_perfect_scores():
    """The bound has one trial a client, or one a pair of records in the client with the fewest if that is more."""
    _, member, client = draw(0, clients=5)
    pairs = min(min(np.sum(member[client == c]), np.sum(~member[client == c])) for c in range(5))
    assert pairs > 5
    got, _ = client_auroc(member + client, member, client)
    assert (got.value, got.low, got.high) == pytest.approx((1.0, 0.025 ** (1 / pairs), 1.0))
    few = np.array([0, 1] * 6, dtype=bool)
    got, _ = client_auroc(few, few, np.repeat(np.arange(6), 2))
    assert got.low == pytest.approx(0.025 ** (1 / 6))


def test_detectable_by_hand_and_the_null_spread():
    assert detectable(300, 300) == pytest.approx(0.5462, abs=5e-5)
    assert detectable(300, 300, 12) == pytest.approx(0.5 + 2.200985 * math.sqrt(601 / 1_080_000))
    assert detectable(2, 2) == 1.0
    with pytest.raises(ValueError, match="got 0 and 5"):
        detectable(0, 5)
    values = [auroc(*draw(seed)).value for seed in range(400)]
    assert 0.5 + stats.norm.ppf(0.975) * np.std(values) == pytest.approx(detectable(300, 300), abs=0.005)


def test_tpr_threshold_by_hand():
    reference = np.arange(1.0, 21.0)  # 20 others; 2 of them may exceed the threshold: 18
    scores, member = [18, 18.5, 30, 2, 19, 18, 1, 0], [1, 1, 1, 1, 0, 0, 0, 0]
    got = tpr_at_fpr(scores, member, [0] * 8, 0.1, reference=reference)
    assert (got.value, got.realised_fpr, got.status) == (0.5, 0.25, "coarse")
    exact = stats.binomtest(2, 4).proportion_ci(method="exact")
    assert (got.low, got.high) == pytest.approx((exact.low, exact.high))
    tied = tpr_at_fpr([5, 6, 5, 7, 5], [1, 1, 1, 1, 0], [0] * 5, 0.4, reference=[1, 1, 5, 5, 5])
    assert (tied.value, tied.realised_fpr) == (0.5, 0.0)
    # two non-members of each client score its number, so that either half holds 0..49 and sets the threshold 44
    halves = tpr_at_fpr(np.arange(150) // 3, np.tile([True, False, False], 50), np.arange(150) // 3, 0.1)
    assert (halves.value, halves.realised_fpr) == (0.1, 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_tpr_threshold_is_the_smallest_that_is_allowed(seed):
    rng = np.random.default_rng(seed)
    reference = rng.integers(0, 30, 100).astype(float)
    for fpr in ("0.01", "0.07", "0.29", "0.58"):  # 0.29 * 100 and 0.58 * 100 fall short of an integer in floating point
        allowed = math.floor(Fraction(fpr) * 100)
        threshold = min(t for t in reference if (reference > t).sum() <= allowed)
        scores, member = np.append(np.arange(31.0), 0.0), np.append(np.ones(31, bool), False)
        got = tpr_at_fpr(scores, member, np.zeros(32), float(fpr), reference=reference)
        assert got.value == (np.arange(31) > threshold).mean()


def test_tpr_status_counts_the_non_members_that_set_the_threshold():
    scores, member, client = draw(0)  # 300 non-members, 150 in either half
    status = {fpr: tpr_at_fpr(scores, member, client, fpr).status for fpr in (0.1, 0.06, 0.01, 0.001)}
    assert status == {0.1: "ok", 0.06: "coarse", 0.01: "coarse", 0.001: "not measurable (150)"}
    nothing = tpr_at_fpr(scores, member, client, 0.001)
    assert all(math.isnan(v) for v in (nothing.value, nothing.low, nothing.high, nothing.realised_fpr))
    edges = {n: tpr_at_fpr(scores, member, client, 0.01, reference=np.arange(n)).status for n in (99, 100, 999, 1000)}
    assert edges == {99: "not measurable (99)", 100: "coarse", 999: "coarse", 1000: "ok"}
    assert tpr_at_fpr([1, 2], [1, 0], [0, 0], 0.5).status == "not measurable (0)"


def test_tpr_crossfit_averages_members_and_holds_the_nominal_rate():
    rates = []
    for seed in range(200):
        scores, member, client = draw(seed, signal=1.0)
        got = tpr_at_fpr(scores, member, client, 0.1)
        assert (got.value * 600) == pytest.approx(round(got.value * 600))  # halves, where the two thresholds disagree
        rates.append(got.realised_fpr)
    expected = 16 / 151  # (k + 1) / (n + 1)
    assert abs(np.mean(rates) - expected) < 3 * np.std(rates) / math.sqrt(200)


def test_tpr_intervals_cover():
    tpr = fpr = 0
    for seed in range(200):
        scores, member, client = draw(seed, signal=0.5, signal_sd=0.7)
        reference = np.random.default_rng([seed, 1]).normal(size=20_000)
        got = tpr_at_fpr(scores, member, client, 0.02, reference=reference)
        tpr += covered(got, stats.norm.sf((stats.norm.isf(0.02) - 0.5) / math.sqrt(1.49)))
        fpr += got.realised_low <= 0.02 <= got.realised_high
    assert tpr >= COVERED
    assert fpr >= COVERED


def test_tpr_interval_is_korn_and_graubards():
    scores, member, client = np.zeros(40), np.tile([True, False], 20), np.arange(40) // 10
    scores[[0, 2, 4, 6, 10]] = 1.0  # members of 4 clients of 5: 4, 1, 0 and 0 above the threshold
    got = tpr_at_fpr(scores, member, client, 0.1, reference=np.zeros(100))
    variance = 4 / 3 * ((4 - 1.25) ** 2 + (1 - 1.25) ** 2 + 2 * 1.25**2) / 20**2
    n = 0.25 * 0.75 / variance * (stats.t.ppf(0.975, 19) / stats.t.ppf(0.975, 3)) ** 2
    low, high = stats.beta.ppf(0.025, 0.25 * n, n - 0.25 * n + 1), stats.beta.ppf(0.975, 0.25 * n + 1, n - 0.25 * n)
    assert (got.value, got.low, got.high) == pytest.approx((0.25, low, high))
    exact = stats.binomtest(0, 20).proportion_ci(method="exact")
    assert (got.realised_low, got.realised_high) == pytest.approx((exact.low, exact.high))
    scores[:] = 0  # clients more alike than chance would have them, 1, 1, 1 and 2 of 5: no more than all records count
    scores[[0, 10, 20, 30, 32]] = 1.0
    got = tpr_at_fpr(scores, member, client, 0.1, reference=np.zeros(100))
    exact = stats.binomtest(5, 20).proportion_ci(method="exact")
    assert (got.low, got.high) == pytest.approx((exact.low, exact.high))


def test_tpr_thresholds_per_client():
    scores, member, client = draw(0, signal=1.0)
    rng = np.random.default_rng(1)
    references = {c: rng.normal(size=1000 + c) for c in range(12)}
    apart = {c: values + 100 * c for c, values in references.items()}
    got = tpr_at_fpr(scores + 100 * client, member, client, 0.01, reference=apart)
    assert got == tpr_at_fpr(scores, member, client, 0.01, reference=references)
    own = {c: (scores[client == c], member[client == c], client[client == c]) for c in range(12)}
    assert got.value == pytest.approx(np.mean([tpr_at_fpr(*own[c], 0.01, reference=references[c]).value for c in own]))
    few = tpr_at_fpr(scores, member, client, 0.01, reference=references | {3: np.zeros(50)})
    assert few.status == "not measurable (50)"
    with pytest.raises(ValueError, match="it has none for 11"):
        tpr_at_fpr(scores, member, client, 0.01, reference={c: references[c] for c in range(11)})


def best_on_itself(scores, member):
    """The error that cross-fitting avoids: the best threshold for the records that are then reported."""
    fpr, tpr, _ = roc_curve(member, scores)
    return ((1 + tpr - fpr) / 2).max()


def test_balanced_accuracy_on_null_data_is_one_half_and_the_naive_one_is_not():
    honest, own, naive, hits = [], [], [], 0
    for seed in range(200):
        scores, member, client = draw(seed, levels=3)
        got = balanced_accuracy(scores, member, client)
        honest.append(got.value)
        own.append(balanced_accuracy(scores, member, client, per_client=True).value)
        naive.append(best_on_itself(scores, member))
        hits += covered(got, 0.5)
    for values in (honest, own):
        assert abs(np.mean(values) - 0.5) < 3 * np.std(values) / math.sqrt(200)
    assert np.mean(naive) - 0.5 > 20 * np.std(naive) / math.sqrt(200)
    assert hits >= COVERED


def test_balanced_accuracy_of_a_signal_is_near_the_best():
    scores, member, client = draw(0, each=400, signal=2.0)
    got = balanced_accuracy(scores, member, client)
    assert got.value == pytest.approx(stats.norm.cdf(1.0), abs=0.02)
    assert covered(got, stats.norm.cdf(1.0))


def test_balanced_accuracy_by_hand():
    # Any split of 4 + 4 separable records cuts between 2 and 7, so all are right, in 2 clients.
    scores, member, client = [1, 2, 1, 2, 7, 8, 7, 8], [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1]
    got = balanced_accuracy(scores, member, client)
    assert (got.value, got.high, got.how) == (1.0, 1.0, "exact binomial(2)")
    assert got.low == pytest.approx(0.025**0.5)
    # The sign is fixed: reversed scores are not turned round; the best is then to call all alike.
    assert balanced_accuracy(scores, np.logical_not(member), client).value == 0.5
    # 30 of 40 non-members score 0, all else 1: in every half the best cut is 0.5, though more non-members pass it.
    scores, member = np.repeat([0, 1, 1], [30, 10, 4]), np.arange(44) >= 40
    assert balanced_accuracy(scores, member, np.zeros(44)).value == (1 + 0.75) / 2
    # Either half holds 0..5, odd ones members. Cuts at 0.5, 2.5 and 4.5 are equally good; at 2.5 one client in three of
    # either kind is wrong, a sum over clients of 1/54 for either kind, times 3 / 2.
    value = np.arange(12) // 2
    got = balanced_accuracy(value, value % 2 == 1, value)
    assert (got.value, got.se) == pytest.approx((2 / 3, math.sqrt(1 / 18)))


def test_balanced_accuracy_interval_is_cluster_robust():
    scores, member, client = draw(0, signal=1.0, signal_sd=1.5)
    clustered, plain = balanced_accuracy(scores, member, client), balanced_accuracy(scores, member, np.zeros(600))
    assert clustered.value == pytest.approx(plain.value, abs=0.02)
    sd = math.sqrt(plain.value * (1 - plain.value) / 600)
    assert plain.se == pytest.approx(sd, rel=0.1)
    assert clustered.se > 1.5 * plain.se
    assert (clustered.dof, plain.dof) == (11, None)


def test_balanced_accuracy_per_client():
    scores, member, client = draw(0, signal=2.0)
    moved = scores + 100 * (-1) ** client * client
    assert balanced_accuracy(moved, member, client).value < 0.6
    own = balanced_accuracy(moved, member, client, per_client=True)
    assert own.value == balanced_accuracy(scores, member, client, per_client=True).value > 0.75
    few = (client > 0) | (np.cumsum(member) > 24)  # client 0 keeps one member
    left = balanced_accuracy(moved[few], member[few], client[few], per_client=True)
    assert (left.clients, left.members, left.nonmembers) == (11, 275, 275)
    with pytest.raises(ValueError, match="at least 2 members and 2 non-members"):
        balanced_accuracy([1, 2, 3], [True, False, False], [0, 0, 0])


def test_infinite_scores_are_scores():
    scores, member = [-np.inf, -np.inf, np.inf, np.inf], [False, False, True, True]
    assert auroc(scores, member, [0] * 4).value == 1.0
    assert balanced_accuracy([1, 1, np.inf, np.inf], member, [0] * 4).value == 1.0
    assert balanced_accuracy(scores, member, [0] * 4).value == 1.0
    assert roc_band(scores, member, [0] * 4, fpr_grid=[0.0], resamples=5)[0].tolist() == [1.0]
    assert tpr_at_fpr(scores, member, [0] * 4, 0.5, reference=[-np.inf] * 4).value == 1.0


def test_roc_is_the_largest_tpr_at_or_below_each_fpr():
    scores, member, client = uneven(0)
    grid = np.array([0.0, 0.05, 0.1, 0.5, 1.0])
    tpr, _, _ = roc_band(scores, member, client, fpr_grid=grid, resamples=2)
    for g, value in zip(grid, tpr, strict=True):
        cuts = [t for t in [*scores, np.inf] if (scores[~member] >= t).mean() <= g]
        assert value == max((scores[member] >= t).mean() for t in cuts)


def test_roc_band_brackets_the_curve_is_monotone_and_repeatable():
    scores, member, client = draw(1, signal=1.0, signal_sd=0.5)
    grid = np.linspace(0, 1, 41)
    tpr, low, high = roc_band(scores, member, client, fpr_grid=grid)
    assert ((low <= tpr) & (tpr <= high)).all()
    assert (low[3:20] < high[3:20]).all()
    assert all((np.diff(curve) >= 0).all() for curve in (tpr, low, high))
    assert np.array_equal(low, roc_band(scores, member, client, fpr_grid=grid)[1])
    assert not np.array_equal(low, roc_band(scores, member, client, fpr_grid=grid, seed=1)[1])


def test_roc_band_is_that_of_a_bootstrap_by_indices():
    scores, member, client = uneven(5, size=150)
    grid, rng, curves = np.array([0.1, 0.3, 0.6]), np.random.default_rng(0), []
    for _ in range(800):
        chosen = []
        for c in rng.integers(0, 7, 7):
            for kind in (member, ~member):
                group = np.flatnonzero((client == c) & kind)
                chosen.extend(rng.choice(group, len(group)) if len(group) else [])
        fpr, tpr, _ = roc_curve(member[chosen], scores[chosen])
        curves.append([tpr[fpr <= g].max() for g in grid])
    slow = np.quantile(curves, [0.1, 0.9], axis=0)
    _, low, high = roc_band(scores, member, client, fpr_grid=grid, resamples=800, confidence=0.8)
    assert np.array([low, high]) == pytest.approx(slow, abs=0.05)


def test_roc_band_leaves_out_resamples_without_a_kind():
    scores, member, client = draw(0, clients=2)
    tpr, low, high = roc_band(scores, member, np.where(member, 0, 1), fpr_grid=[0.2, 0.5])
    assert np.isfinite([tpr, low, high]).all()
    with pytest.raises(ValueError, match="fpr_grid must lie in"):
        roc_band(scores, member, client, fpr_grid=[1.5])


def test_holm_by_hand_and_against_statsmodels():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = np.random.default_rng(0).random(50) ** 3
    p[10] = p[20]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    assert len(holm([])) == 0
    for bad in (math.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match=r"p_values must lie in \[0, 1\]"):
            holm([0.5, bad])


def test_p_value_is_five_percent_where_the_interval_ends_at_one_half():
    for seed in range(40):
        scores, member, client = draw(seed, each=8, signal=0.4)
        for groups in (client, np.zeros_like(client)):
            got = auroc(scores, member, groups)
            assert (auroc_p_value(got) < 0.05) == (not covered(got, 0.5))
            at_limit = auroc(scores, member, groups, confidence=1 - auroc_p_value(got))
            assert min(abs(at_limit.low - 0.5), abs(at_limit.high - 0.5)) < 1e-9


def test_p_value_without_variance_is_the_exact_one():
    _, member, client = draw(0)
    for scores, expected in ((member, 2 * 0.5**12), (~member, 2 * 0.5**12), (np.zeros(600), 1.0)):
        assert auroc_p_value(auroc(np.asarray(scores, float), member, client)) == pytest.approx(expected)
    most = auroc(np.tile([1.0, 0.0, 1.0, 0.0, 0.0], 8), np.tile([1, 0, 1, 0, 1], 8), np.arange(40) // 5)
    assert most.se == 0.0
    k = 8 * 5 / 6
    tail = stats.beta.cdf(0.5, k, 9 - k)  # P(X >= k), continued to k that are no integers
    assert auroc_p_value(most) == pytest.approx(2 * tail)


def test_p_value_is_uniform_without_a_leak():
    p = [auroc_p_value(auroc(*draw(seed, each=12))) for seed in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.001
