"""Attacks on prompts: against slow loops and hand calculations, under no leak and a planted one, and the contract of every file in the folder."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedaudit.attacks import gradnorm, likelihood, lira, maxrenyi, outputfree, quantile, rmia, shadow, trajectory
from fedaudit.attacks.answers import log_odds
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Knowledge, Shadows, own_class
from fedaudit.attacks.likelihood import likelihood_ratios
from fedaudit.contracts import attacks as attack_contracts
from fedaudit.contracts.knowledge_toy import auroc, classified, log_probs_of, scores_of, shadows_of, toy_seen
from tests import inference_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
INF, NAN = math.inf, math.nan


def with_shadows(seen, shadows, **changes):
    """The same with other fields of its own, and of what is known of its shadows."""
    return dataclasses.replace(seen, shadows=dataclasses.replace(seen.shadows, **shadows), **changes)


def some_seen(target, shadows, member, labels, known=None):
    """A `Knowledge` of these probabilities [n, C] and [S, n, C], the public start uniform."""
    with np.errstate(divide="ignore"):
        target, shadows = np.log(target), np.log(shadows)
    n, C = target.shape
    uniform = np.full((n, C), -math.log(C))
    return classified(
        tuple(map(str, range(n))), np.array(labels), np.zeros(n, bool) if known is None else np.array(known), target,
        uniform, uniform, shadows=shadows_of(np.array(member, bool), shadows, np.array(labels)),
    )  # fmt: skip


def grids():
    """Random sizes, few levels of probability (many ties), constants, records in all, none and one of the shadows."""
    rng, found = np.random.default_rng(0), {}
    for case in range(16):
        n, S, C, levels = rng.integers(1, 40), rng.integers(1, 12), rng.integers(2, 5), (1, 2, 3, 1000)[case % 4]
        p = rng.integers(1, levels + 1, (S + 1, n, C)) + 0.0
        p /= p.sum(-1, keepdims=True)
        member = rng.random((S, n)) < rng.choice([0.1, 0.5, 0.9])
        labels = rng.integers(0, C, n)
        found[f"{case}: {n}x{S}, {levels}"] = some_seen(p[0], p[1:], member, labels, rng.random(n) < 0.4)
    return found


GRIDS = grids()


EVERY = [(plugin, contract) for plugin in ATTACKS.values() for contract in attack_contracts.contracts_of(plugin)]


@pytest.mark.parametrize(
    ("plugin", "contract"), [pair for pair in EVERY if "text" not in pair[1].__name__], ids=attack_contracts.named
)
def test_every_attack_keeps_its_contracts(plugin, contract):
    contract(plugin)


@pytest.mark.parametrize("order", [0.5, 1, 2, INF])
def test_the_renyi_entropy_of_a_prediction_by_hand(order):
    p = np.array([[0.5, 0.25, 0.25], [1, 0, 0], [0.2, 0.3, 0.5]])
    attack = maxrenyi.MaxRenyi(maxrenyi.Params(order=order))
    found = attack.score(some_seen(p, p[None], [[True] * 3], [0, 1, 2]))["maxrenyi"]
    by_hand = {
        0.5: 2 * np.log(np.sqrt(p).sum(1)),
        1: [1.5 * math.log(2), 0, -sum(x * math.log(x) for x in p[2])],
        2: -np.log((p**2).sum(1)),
        INF: -np.log(p.max(1)),
    }
    np.testing.assert_allclose(found, -np.array(by_hand[order]), atol=1e-14)


def test_the_gradient_norm_is_taken_as_it_is():
    seen, _ = toy_seen(leak=0.0)
    np.testing.assert_array_equal(gradnorm.GradNorm(gradnorm.Params()).score(seen)["gradnorm"], -seen.gradient_norms)


@pytest.mark.parametrize("variance", ["prior", "fixed", "per-record"])
def test_lira_equals_the_loop_over_records(variance):
    for case, seen in GRIDS.items():
        found = lira.LiRA(lira.Params(variance)).score(seen)
        target, *shadows = (
            [oracle.phi(row, y) for row, y in zip(rows, seen.labels, strict=True)]
            for rows in (seen.log_probs, *log_probs_of(seen.shadows))
        )
        expected = oracle.lira(np.array(target), np.array(shadows), seen.shadows.member, variance=variance)
        np.testing.assert_allclose([*found.values()], expected, rtol=1e-8, atol=1e-8, err_msg=case)


def test_lira_with_a_prior_by_hand():
    """The same record: nothing to fit, so that d is infinite. Outside N(0, 1 + 1/3). Inside the shift is the record's own, c = 2."""
    values, member = np.array([[1.0], [3.0], [-1.0], [0.0], [1.0]]), np.array([[1], [1], [0], [0], [0]], bool)
    online, offline = likelihood_ratios(np.array([2.0]), values, member)
    assert offline[0] == pytest.approx(2 / math.sqrt(4 / 3))
    k = 2 / (1 / 3)  # the variance inside over the error of the mean outside
    inside = stats.norm.logpdf(2, 2, math.sqrt(2 * (k + 3) / (k + 2)))
    assert online[0] == pytest.approx(inside - stats.norm.logpdf(2, 0, math.sqrt(4 / 3)))


@pytest.mark.parametrize(("d", "s2", "c", "k"), [(5.0, 2.0, 0.0, 0.0), (3.0, 0.5, 1.0, 2.0), (8.0, 1.0, -2.0, 0.3)])
def test_the_predictive_is_the_integral_over_mean_and_variance(d, s2, c, k, monkeypatch):
    """Bayes' rule on a grid of means and of logarithms of variances, for three values and every place of a further one."""
    values, further = np.array([0.3, 1.1, 2.4]), np.array([-2.0, 0.5, 1.3, 4.0])
    seen = likelihood.Values.of(values[:, None], np.ones((3, 1), bool))
    monkeypatch.setattr(likelihood.Values, "_centre", lambda self, variance, without: (np.full(1, c), np.full(1, k)))
    found = stats.t.pdf(further[:, None], *seen.predictive(d, s2, seen if k else None))[:, 0]
    mean, log_variance = np.meshgrid(np.linspace(-30, 30, 1501), np.linspace(-6, 9, 301), indexing="ij")
    variance = np.exp(log_variance)
    prior = stats.invgamma.pdf(variance, d / 2, scale=d * s2 / 2) * variance  # of the logarithm
    if k:
        prior = prior * stats.norm.pdf(mean, c, np.sqrt(variance / k))
    posterior = prior * np.prod([stats.norm.pdf(x, mean, np.sqrt(variance)) for x in values], axis=0)
    slow = [(posterior * stats.norm.pdf(x, mean, np.sqrt(variance))).sum() / posterior.sum() for x in further]
    np.testing.assert_allclose(found, slow, rtol=2e-3)


@pytest.mark.parametrize(("d", "s2"), [(4.0, 0.5), (12.0, 3.0), (math.inf, 2.0)])
def test_the_prior_of_variances_is_recovered(d, s2):
    """Of 4,000 records with 3 to 9 values each; the fit is not told how they differ in their means."""
    rng = np.random.default_rng(7)
    n = 4000
    variance = np.full(n, s2) if math.isinf(d) else d * s2 / rng.chisquare(d, n)
    values = 50 * rng.standard_normal(n) + np.sqrt(variance) * rng.standard_normal((9, n))
    used = np.arange(9)[:, None] < rng.integers(3, 10, n)
    freedom, scale = likelihood.Values.of(values, used).variances()
    assert scale == pytest.approx(s2, rel=0.06)
    assert 1 / freedom == pytest.approx(1 / d, abs=0.02)


def test_the_predictive_covers_as_often_as_it_says():
    """Of new values of records whose means and variances differ, the tenth above the predictive's upper tenth: 4 values of each."""
    rng = np.random.default_rng(8)
    n, d = 20_000, 5.0
    variance, mean = d / rng.chisquare(d, n), 3 * rng.standard_normal(n)
    values = mean + np.sqrt(variance) * rng.standard_normal((4, n))
    seen = likelihood.Values.of(values, np.ones((4, n), bool))
    new = mean + np.sqrt(variance) * rng.standard_normal(n)
    for tail in (0.1, 0.01, 0.001):
        above = (stats.t.sf(new, *seen.predictive(*seen.variances())) < tail).sum()
        assert abs(above - n * tail) < 4 * math.sqrt(n * tail), tail
    normal = (stats.norm.sf(new, seen.mean, seen.deviation(per_record=True)) < 0.001).sum()
    assert normal > 10 * n * 0.001  # what a variance of each record's own says


@pytest.mark.parametrize("shadows", [4, 16, 128])
@pytest.mark.parametrize("freedom", [3.0, math.inf])
def test_a_prior_is_as_good_as_the_better_of_one_variance_and_of_many(freedom, shadows):
    """Variances that differ, and that do not: AUROC of 2,000 records' ratios, less than which 0.006 is by chance."""
    rng = np.random.default_rng(9)
    n = 2000
    variance = np.ones(n) if math.isinf(freedom) else freedom / rng.chisquare(freedom, n)
    member = rng.random((shadows + 1, n)) < 0.5
    values = 3 * rng.standard_normal(n) + member + np.sqrt(variance) * rng.standard_normal((shadows + 1, n))
    found = []
    for how in ("prior", "fixed", "per-record"):
        online, offline = likelihood_ratios(values[0], values[1:], member[1:], variance=how)
        said = ~np.isnan(online + offline)
        found.append([roc_auc_score(member[0][said], score[said]) for score in (online, offline)])
    assert (np.array(found[0]) > np.max(found[1:], axis=0) - 0.006).all()


def federations(rng, *, records, trajectories, each, level, spread):
    """Values of models [M, n] that lie along trajectories, each model with a level and a spread of its own; who was trained on
    what says nothing. The first model is the attacked one, on a trajectory of its own."""
    hard = 3 * rng.standard_normal(records)
    along = np.array([-1, *np.repeat(np.arange(trajectories), each)])
    wide = np.exp(spread * rng.standard_normal(trajectories + 1))[along, None]
    values = hard + level * rng.standard_normal(trajectories + 1)[along, None]
    values += wide * rng.standard_normal((len(along), records))
    return values, rng.random(values.shape) < 0.5, along


def test_one_scale_equals_the_loop_over_models():
    rng = np.random.default_rng(3)
    values, member, _ = federations(rng, records=70, trajectories=3, each=4, level=2.0, spread=0.7)
    known = np.arange(70) >= 70 - 24
    member[:, known] = False
    member[1:, 5] = True  # of which no shadow says what it is without it
    out = [np.mean([values[s, i] for s in range(1, 13) if not member[s, i]] or [math.nan]) for i in range(70)]
    rows, spreads = [], []
    for row in values:
        off = [row[i] - out[i] for i in range(70)]
        seen = [off[i] for i in range(70) if known[i]]
        spreads.append(math.sqrt(sum((x - sum(seen) / 24) ** 2 for x in seen) / 24))
        rows.append([x - sum(seen) / 24 for x in off])
    usual = sum(spreads[1:]) / 12
    scaled = ([out[i] + x * usual / own for i, x in enumerate(row)] for row, own in zip(rows, spreads, strict=True))
    slow = np.array([*scaled])
    target, shadows = likelihood.on_one_scale(values[0], values[1:], member[1:], known)
    np.testing.assert_allclose(np.vstack([target, shadows]), slow, rtol=0, atol=1e-12)
    assert np.isnan(slow[:, 5]).all()


def test_just_enough_known_nonmembers_set_the_scale_and_fewer_leave_values_as_they_are():
    rng = np.random.default_rng(4)
    values, member, _ = federations(rng, records=40, trajectories=2, each=3, level=2.0, spread=0.7)
    usable = np.flatnonzero((~member[1:]).any(0))  # some shadow says what they are without the record
    for count in (0, likelihood.FEWEST - 1, likelihood.FEWEST):
        known = np.isin(np.arange(40), usable[:count])
        found = np.vstack(likelihood.on_one_scale(values[0], values[1:], member[1:], known))
        if count < likelihood.FEWEST:
            np.testing.assert_array_equal(found, values)
    assert (abs(found - values)[:, known] > 0.01).mean() > 0.9


@dataclasses.dataclass
class Asked:
    """Answers of which nothing but the confidence, and minus it as the loss, is known."""

    confidence: np.ndarray
    loss = property(lambda asked: -asked.confidence)


@pytest.mark.parametrize(("factor", "more"), [(1.0, 5.0), (2.5, -3.0), (0.2, 0.0)])
@pytest.mark.parametrize(
    ("name", "own", "same"), [("lira", {}, True), ("quantile", {}, True), ("lira", {"variance": "fixed"}, False)]
)
def test_what_a_model_strays_by_as_a_whole_changes_no_score(name, own, same, factor, more):
    """The attacked model's deviations times a factor, and a level more: LiRA and the quantiles say the same of every record.
    The paper's own LiRA, which has no scale, does not."""
    rng = np.random.default_rng(5)
    values, member, _ = federations(rng, records=90, trajectories=2, each=6, level=0.0, spread=0.0)
    known = np.arange(90) < 30
    member[:, known] = False
    expected = likelihood.Values.of(values[1:], ~member[1:]).mean
    shadows = Shadows(member[1:], [Asked(row) for row in values[1:]])

    def scores(target):
        seen = Knowledge(tuple(map(str, range(90))), known, Asked(target), Asked(expected), shadows=shadows)
        return scores_of(ATTACKS[name], seen, **own)

    one, other = scores(values[0]), scores(expected + factor * (values[0] - expected) + more)
    alike = [np.allclose(one[signal], other[signal], rtol=1e-9, atol=1e-9, equal_nan=True) for signal in one]
    assert alike == [same] * len(one)


@pytest.mark.parametrize(("factor", "more"), [(2.5, -3.0), (0.2, 5.0)])
@pytest.mark.parametrize("name", ["trajectory", "outputfree"])
def test_nor_does_it_change_what_rounds_and_vectors_say(name, factor, more):
    seen, _ = toy_seen(leak=1.0, records=90, known=30, shadows=12, rounds=5)

    def strayed(target, shadows):
        expected = np.stack([likelihood.Values.of(one, ~seen.shadows.member).mean for one in shadows])
        return expected + factor * (target - expected) + more

    sequence = strayed(seen.sequence, seen.shadows.sequence.transpose(1, 0, 2))
    projections = strayed(seen.projections[None], seen.shadows.projections[None])[0]
    other = dataclasses.replace(seen, sequence=sequence, projections=projections)
    one, same = (scores_of(ATTACKS[name], each) for each in (seen, other))
    for signal in one:
        np.testing.assert_allclose(same[signal], one[signal], rtol=1e-7, atol=1e-7)


def test_thresholds_of_shadows_transfer_to_a_model_of_another_federation():
    """Null by construction: levels and spreads of whole trajectories. Of 10 % false alarms that the shadows' thresholds ask for,
    80 attacked models have 10 % on average on one scale, within four standard errors of their own spread, which is less than
    half of that without one."""
    rng = np.random.default_rng(6)
    realised = {True: [], False: []}
    for _ in range(80):
        values, member, along = federations(rng, records=240, trajectories=5, each=4, level=0.7, spread=0.3)
        known = np.arange(240) < 48
        member[:, known] = False

        def offline(s, scaled, values=values, member=member, along=along, known=known):
            beside = along != along[s] if s else along >= 0
            beside[0] = False
            pair = values[s], values[beside]
            if scaled:
                pair = likelihood.on_one_scale(*pair, member[beside], known)
            return likelihood_ratios(*pair, member[beside])[1]

        own = ~known & ~member[0]
        for scaled, rates in realised.items():
            stand_ins = np.concatenate([offline(s, scaled)[~known & ~member[s]] for s in (1, 5, 9, 13, 17)])
            rates.append((offline(0, scaled)[own] > np.quantile(stand_ins, 0.9)).mean())
    error = 4 * np.std(realised[True]) / math.sqrt(80)
    assert abs(np.mean(realised[True]) - 0.1) < error
    assert np.std(realised[True]) < np.std(realised[False]) / 2


@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.0), (2.0, 0.3), (0.5, 1.0)])
def test_rmia_equals_the_double_loop(gamma, a):
    for case, seen in GRIDS.items():
        found = rmia.RMIA(rmia.Params(gamma, a)).score(seen)
        target, shadows = (own_class(stack, seen.labels) for stack in (seen.log_probs, log_probs_of(seen.shadows)))
        expected = oracle.rmia(target, shadows, seen.shadows.member, seen.known, gamma=gamma, a=a)
        np.testing.assert_allclose([*found.values()], expected, rtol=0, atol=1e-10, err_msg=case)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, math.e])
def test_sorting_equals_the_double_loop(gamma):
    rng = np.random.default_rng(0)
    for x, z in (
        (rng.standard_normal(70), rng.standard_normal(50)),
        (rng.integers(-3, 3, 70) + 0.0, rng.integers(-3, 3, 50) + 0.0),
        (math.log(2) * rng.integers(-3, 3, 70), math.log(2) * rng.integers(-3, 3, 50)),
        (np.array([0.0, INF, -INF, NAN]), np.array([-INF, NAN, 0.0, INF, 0.0])),
        (np.array([0.1 + 0.2, 0.3]), np.array([0.3, 0.1 + 0.2])),  # equal but for rounding
        (np.zeros(1), np.zeros(1)),
        (np.zeros(2), np.zeros(0)),
        (np.zeros(2), np.full(2, NAN)),
    ):
        np.testing.assert_allclose(rmia.share_dominated(x, z, gamma), oracle.share_dominated(x, z, gamma), rtol=1e-14)


def test_sorting_holds_no_matrix_of_ratios():
    x, z = np.random.default_rng(0).standard_normal((2, 10_000))
    tracemalloc.start()
    share = rmia.share_dominated(x, z, 2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
    np.testing.assert_allclose(share[:20], oracle.share_dominated(x[:20], z, 2.0), rtol=0, atol=1e-10)


def test_quantile_equals_the_loop_over_records():
    for case, seen in GRIDS.items():
        found = quantile.Quantile(quantile.Params()).score(seen)["quantile"]
        target, shadows = (log_odds(stack, seen.labels) for stack in (seen.log_probs, log_probs_of(seen.shadows)))
        slow = oracle.quantile(target, shadows, seen.shadows.member)
        np.testing.assert_allclose(found, slow, rtol=0, atol=1e-12, err_msg=case)


def test_quantile_and_difficulty_by_hand():
    """p = .5 among .2, .5 and .8 of the shadows without the record: rank (1 + 1/2) / 3; the one with it, .9, does not count."""
    p = np.array([0.5, 0.2, 0.5, 0.8, 0.9])
    p = np.stack([p, 1 - p], -1)[:, None]
    seen = some_seen(p[0], p[1:], [[False], [False], [False], [True]], [0])
    found = quantile.Quantile(quantile.Params()).score(seen)
    assert found["quantile"][0] == 0.5
    assert found["quantile/difficulty"][0] == pytest.approx(math.log(0.5) - math.log(0.2 * 0.5 * 0.8) / 3)
    always = with_shadows(seen, {"member": np.ones((4, 1), bool)})
    assert all(np.isnan(score).all() for score in quantile.Quantile(quantile.Params()).score(always).values())


def test_networks_trained_together_equal_those_trained_one_by_one():
    seen, _ = toy_seen(leak=1.0, records=40, known=8, classes=4, shadows=10)
    together = shadow.Shadow(shadow.Params(hidden=6, steps=40)).score(seen)["shadow"]
    member, log_probs = seen.shadows.member, log_probs_of(seen.shadows)
    teaches = member.any(0) & ~member.all(0)
    assert len({(teaches & (seen.labels == c)).sum() for c in range(4)}) > 1  # so that some classes are filled up
    for c in range(4):
        mine, asked = teaches & (seen.labels == c), seen.labels == c
        alone = oracle.shadow_network(log_probs[:, mine], member[:, mine], seen.log_probs[asked], hidden=6, steps=40)
        np.testing.assert_allclose(together[asked], alone, rtol=0, atol=2e-3)


def test_above_zero_the_attack_says_member():
    seen, member = toy_seen(leak=3.0, records=240, known=60, classes=3, shadows=30)
    found = shadow.Shadow(shadow.Params()).score(seen)["shadow"][~seen.known]
    assert ((found > 0) == member[~seen.known]).mean() > 0.7


def test_who_a_record_is_tells_the_networks_nothing():
    """Records that no model tells apart but by themselves: one was in 9 of 10 shadows, one in 1 of 10; both are even."""
    rng = np.random.default_rng(0)
    member = np.array([[s != 0, s == 0] for s in range(10)])
    p = np.array([[0.7, 0.2, 0.1], [0.2, 0.1, 0.7]]) * np.exp(1e-3 * rng.standard_normal((11, 2, 3)))
    p /= p.sum(-1, keepdims=True)
    found = shadow.Shadow(shadow.Params()).score(some_seen(p[0], p[1:], member, [0, 0]))["shadow"]
    assert (abs(found) < 0.2).all()  # the share of shadows alone would give +-2.2


def test_classes_without_shadows_of_both_kinds_are_nan_and_change_nothing():
    seen, _ = toy_seen(leak=1.0, classes=4)
    found = shadow.Shadow(shadow.Params()).score(seen)["shadow"]
    member = seen.shadows.member & (seen.labels != 2)
    member |= seen.labels == 3
    fewer = with_shadows(seen, {"member": member})
    again = shadow.Shadow(shadow.Params()).score(fewer)["shadow"]
    assert np.isnan(again[seen.labels >= 2]).all()
    np.testing.assert_allclose(again[seen.labels < 2], found[seen.labels < 2], rtol=0, atol=1e-3)
    nobody = with_shadows(seen, {"member": np.zeros_like(member)})
    assert np.isnan(shadow.Shadow(shadow.Params()).score(nobody)["shadow"]).all()


def test_the_control_before_training_trains_no_second_time():
    seen, _ = toy_seen(leak=1.0)
    attack = shadow.Shadow(shadow.Params())
    attack.score(seen)
    trained = shadow.fit.cache_info().misses
    attack.score(seen.before_training())
    assert shadow.fit.cache_info().misses == trained
    attack.score(seen.leave_out(0))
    assert shadow.fit.cache_info().misses == trained + 1


def test_the_trajectory_is_judged_by_fishers_weights():
    """Weights by a loop over records and models, then LiRA's own oracle on the weighed confidences."""
    seen, _ = toy_seen(leak=1.0, records=40, known=8, shadows=12, rounds=5)
    values, member = seen.shadows.sequence, seen.shadows.member
    S, T, n = values.shape
    within, delta, both, count = np.zeros((T, T)), np.zeros(T), 0, 0
    for i in range(n):
        kinds = {used: [values[s, :, i] for s in range(S) if member[s, i] == used] for used in (True, False)}
        for own in kinds.values():
            middle = sum(own) / len(own) if own else 0
            for row in own:
                within += np.outer(row - middle, row - middle)
                count += 1
        if kinds[True] and kinds[False]:
            delta += sum(kinds[True]) / len(kinds[True]) - sum(kinds[False]) / len(kinds[False])
            both += 1
    within /= count
    weights = np.linalg.solve(within + trajectory.RIDGE * np.trace(within) / T * np.eye(T), delta / both)
    weights /= np.linalg.norm(weights)
    np.testing.assert_allclose(trajectory.discriminant(values, member), weights, rtol=1e-9)
    found = scores_of(ATTACKS["trajectory"], seen)
    online, offline = oracle.lira(weights @ seen.sequence, weights @ values, member, variance="prior")
    np.testing.assert_allclose(found["trajectory"], online, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found["trajectory/offline"], offline, rtol=1e-7, atol=1e-7)
    times = np.arange(T) - (T - 1) / 2
    slopes = np.array([np.polyfit(np.arange(T), value, 1)[0] for value in values])
    own = np.polyfit(np.arange(T), seen.sequence, 1)[0]
    slow, _ = oracle.lira((times @ times) * own, (times @ times) * slopes, member, variance="prior")
    np.testing.assert_allclose(found["trajectory/slope"], slow, rtol=1e-6, atol=1e-6)


def test_more_rounds_tell_more_than_the_last_one():
    """The noise of rounds is independent here: five rounds with half of the leak each beat LiRA on the last of them."""
    seen, member = toy_seen(leak=0.7, records=600, known=100, shadows=24, rounds=5, seed=2)
    last, _ = likelihood_ratios(seen.sequence[-1], seen.shadows.sequence[:, -1], seen.shadows.member)
    found = scores_of(ATTACKS["trajectory"], seen)
    assert auroc(seen, member, found["trajectory"]) > auroc(seen, member, last) + 0.02


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("gradnorm", "gradient_norms", "gradient norms"),
        *(("trajectory", name, "of shadow models too") for name in ("shadows", "sequence")),
        *(("outputfree", name, "of shadow models too") for name in ("shadows", "projections")),
    ],
)
def test_what_an_attack_needs_is_asked_for(name, missing, message):
    seen, _ = toy_seen(leak=0.0)
    with pytest.raises(ValueError, match=message):
        scores_of(ATTACKS[name], dataclasses.replace(seen, **{missing: None}))


def test_the_released_vectors_are_judged_as_a_confidence_is():
    seen, _ = toy_seen(leak=1.0, records=40, known=8)
    found = scores_of(ATTACKS["outputfree"], seen)
    expected = oracle.lira(seen.projections, seen.shadows.projections, seen.shadows.member, variance="prior")
    np.testing.assert_allclose(found["outputfree"], expected[0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found["outputfree/offline"], expected[1], rtol=1e-8, atol=1e-8)
    middle = [np.mean([p[i] for p in seen.shadows.projections]) for i in range(40)]
    np.testing.assert_allclose(found["outputfree/projection"], seen.projections - middle, atol=1e-12)


def test_a_record_without_gradient_has_no_score_and_moves_none():
    seen, _ = toy_seen(leak=1.0)
    kept = np.arange(len(seen.projections)) != 3
    member, own, others = seen.shadows.member, seen.projections, seen.shadows.projections
    of_shadows = {"member": member[:, kept], "projections": others[:, kept]}
    fewer = with_shadows(seen, of_shadows, known=seen.known[kept], projections=own[kept])
    blank = with_shadows(seen, {"projections": np.where(kept, others, NAN)}, projections=np.where(kept, own, NAN))
    attack = outputfree.OutputFree(outputfree.Params())
    part = attack.score(fewer)
    for name, score in attack.score(blank).items():
        assert np.isnan(score[3])
        np.testing.assert_allclose(score[kept], part[name], rtol=1e-9, atol=1e-9)


def test_a_shadow_in_the_targets_place_has_none_of_its_trajectory_beside_it():
    seen, _ = toy_seen(leak=1.0, shadows=12)
    along = np.arange(12) % 3
    shadows = dataclasses.replace(seen.shadows, trajectory=along)
    left = dataclasses.replace(seen, shadows=shadows).leave_out(4)
    kept = along != along[4]
    for name in ("member", "confidence", "sequence", "projections"):
        np.testing.assert_array_equal(getattr(left.shadows, name), getattr(shadows, name)[kept], err_msg=name)
    for name, own in (("confidence", left.answers), ("sequence", left), ("projections", left)):
        np.testing.assert_array_equal(getattr(own, name), getattr(shadows, name)[4], err_msg=name)
    for alone in (None, np.zeros(12, int)):  # each its own, or all on one: only the shadow itself goes
        one = dataclasses.replace(shadows, trajectory=alone).without(4)
        np.testing.assert_array_equal(one.member, shadows.member[np.arange(12) != 4])
