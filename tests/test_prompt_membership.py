"""The membership audit of prompts on made-up scores: planted leaks, null calibration, controls, thresholds, picking the best of many attacks."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedaudit.attacks.score_names import name_of
from fedaudit.audits import membership
from fedaudit.audits.blind import blind_controls
from fedaudit.audits.comparisons import comparisons
from fedaudit.audits.membership import Params, cells, simultaneous
from fedaudit.audits.statistics.classification import best_threshold
from fedaudit.audits.statistics.stratified import stratified_auroc
from fedaudit.tasks.base import Record
from tests.prompt_scores import HELD, SIGNALS, changed, made_up, with_scores

NAMES = {"run": "r", "method": "m", "task": "t", "seed": 0}
CLAIMS = {"claimed": "0.1", "provable": "0.348"}
USER = HELD[:1]


def findings(run, claims=CLAIMS, **where):
    found = membership.findings(run, Params(), names=NAMES, epsilon=lambda _: claims)
    return [f for f in found if all(getattr(f, k) == v for k, v in where.items())]


def aurocs(run, **where):
    return findings(run, **{"metric": "auroc", "headline": True, **where})


def of_loss(run, metric="auroc", nonmembers="held-out", **where):
    """The one finding of the loss."""
    (found,) = findings(run, signal="loss", metric=metric, nonmembers=nonmembers, best_of=None, **where)
    return found


def row(run, nonmembers="held-out"):
    (found,) = [c for c in comparisons(run) if (c.nonmembers, c.threat_model) == (nonmembers, "prompt-user")]
    return found


def test_a_planted_leak_is_found_by_every_attack_under_every_threat_model():
    found = aurocs(made_up(1, leak=8.0, canaries=24, canary_leak=12.0, classes=1.0))
    assert {(f.threat_model, f.way) for f in found} == set(HELD)
    assert {(f.population, f.nonmembers) for f in found} == {
        ("own members", "held-out"), ("own members", "other clients"), ("canaries", "left-out canaries"),
    }  # fmt: skip
    assert {(f.attack, f.signal) for f in found} == {("shadow", "shadow"), ("lira", "lira/online"), ("loss", "loss")}
    assert len(found) == 4 * 3 * 3
    assert all(f.low > 0.5 and f.clients == 2 for f in found)
    candidates, canaries = ([f for f in found if (f.population == "canaries") == few] for few in (False, True))
    assert {f.verdict for f in candidates} == {"leak"}
    assert {f.verdict for f in canaries} == {"inconclusive"}  # few, and no coin decided here
    assert all(
        f.sentence.startswith(f"{f.verdict.capitalize()}: ") and name_of(f.signal).in_sentences in f.sentence
        for f in found
    )
    assert all(f.interval.startswith(("DeLong, mean", "DeLong within class, mean", "exact binomial(")) for f in found)


def test_rows_come_adversary_by_adversary_and_the_value_is_the_mean_of_the_targets():
    seen = [(c.threat_model, c.nonmembers) for c in comparisons(made_up(0, canaries=8))]
    assert seen == [(threat, n) for threat, _ in HELD for n in ("held-out", "other clients", "left-out canaries")]
    run = made_up(1, leak=4.0, targets=3)
    c, (f,) = row(run), aurocs(run, nonmembers="held-out", threat_model="prompt-user", signal="loss")
    assert (c.unit, c.within) == ("records", None)
    expected = stratified_auroc(c.scores["loss"], c.member, c.client)
    assert (f.value, f.low, f.high) == (expected.value, expected.low, expected.high)
    assert (f.members, f.nonmembers_n, f.clients) == (216, 216, 3)
    with pytest.raises(ValueError, match="rumour"):
        comparisons(made_up(0, held=(("server", "rumour"),)))


def test_membership_is_of_the_target_not_of_the_next_one():
    """Of the other clients' records half are members of another target: here they are non-members."""
    run = made_up(3, leak=8.0)
    c = row(run, "other clients")
    stranger = pd.Series(c.record).isin([r for k in run.others for r in run.others[k]]).to_numpy()
    own = np.array([r.startswith(f"c{name[-1]}") for r, name in zip(c.record, c.client, strict=True)])
    assert (c.member == own).all()
    assert any(run.truth.get(r, False) for r in c.record[stranger & ~c.member])
    assert (~c.member).sum() == 200


def test_other_clients_are_compared_within_class_where_classes_are_shared():
    """Scores that depend on the class alone: pooled they look random here, and within class they are constant."""
    run = made_up(4, leak=8.0, held=USER)
    flat = with_scores(run, lambda t: t.assign(loss=[float(run.group[r].split()[1]) for r in t.index]))
    assert row(flat, "other clients").within is not None
    f = of_loss(flat, nonmembers="other clients")
    assert (f.value, f.low, f.high, f.verdict) == (0.5, 0.5, 0.5, "inconclusive")
    (leak,) = aurocs(flat, nonmembers="other clients", signal="shadow", threat_model="prompt-user")
    assert leak.verdict == "leak"
    assert "within the same classes" in leak.sentence


def test_other_clients_of_other_classes_never_show_a_leak():
    found = aurocs(made_up(5, leak=8.0, shared=False, held=USER), nonmembers="other clients")
    assert found
    assert all(f.low > 0.5 and f.verdict == "confounded" for f in found)
    assert all("within" not in f.sentence for f in found)
    assert not findings(made_up(5, shared=False, held=USER), nonmembers="other clients", metric="balanced_accuracy")
    # other clients' records score lower on the start of training, too
    run = made_up(6, gap=9.0, held=USER)
    moved = with_scores(run, lambda t: t - 100.0 * t.index.str.startswith("o")[:, None], "base")
    found = aurocs(moved, nonmembers="other clients")
    assert all(f.verdict == "confounded" and "a model that learnt none of them" in f.sentence for f in found)


def test_an_attack_without_a_base_is_judged_by_the_other_control_and_on_the_records_it_has():
    run = made_up(8, leak=8.0, held=USER)
    for change, note in (
        (lambda t: None, "not measurable on the base"),
        (lambda t: t.drop(columns="loss"), "not measurable on the base"),
        (lambda t: t.assign(loss=np.nan), "not measurable on the base"),
        (lambda t: t.assign(loss=0.0), "constant on the base, where all these clients began"),
    ):
        f = of_loss(with_scores(run, change, "base"))
        assert (f.base_value, f.base_note, f.verdict) == (None, f"n/a: {note}", "leak")
        assert f.blind_value is not None
    run = made_up(9, leak=8.0, held=USER)
    half = with_scores(run, lambda t: t[::2], "base")
    f = of_loss(half)
    c = row(half)
    on = c.base["loss"].notna().to_numpy()
    assert f.base_value == stratified_auroc(c.base["loss"][on], c.member[on], c.client[on]).value
    assert (f.members, f.verdict) == (144, "leak")


def test_canaries_are_no_candidates_and_have_thresholds_of_canaries():
    run = made_up(10, canaries=24, canary_leak=12.0, held=USER)
    c = row(run, "left-out canaries")
    assert {r[0] for r in c.record} == {"x"}
    assert {r[0] for r in row(run).record} == {"c"}
    assert all(f.low > 0.5 for f in aurocs(run, nonmembers="left-out canaries"))
    assert not any(f.verdict == "leak" for f in aurocs(run, nonmembers="held-out", threat_model="prompt-user"))
    # canaries score 50 higher than other records, in or out: a threshold of the others would call all of them
    # members
    run = made_up(17, leak=6.0, canaries=40, canary_leak=12.0, held=USER)

    def raised(t):
        t.loc[t.index.str.startswith("x"), list(SIGNALS)] += 50
        return t

    high = with_scores(with_scores(run, raised), raised, "shadow_targets")
    assert of_loss(high, "balanced_accuracy", "left-out canaries").low > 0.6
    rate = of_loss(high, "tpr@10%", "left-out canaries")
    assert rate.realised_low <= 0.1 <= rate.realised_high


def test_a_row_is_made_of_the_records_that_have_a_score():
    run = made_up(11, leak=4.0, held=USER)
    gone = {r for k in run.records for r in run.records[k][::3]}
    holed = with_scores(run, lambda t: t.assign(loss=t.loss.mask(t.index.isin(gone))))
    f = of_loss(holed)
    c = row(run)
    kept = ~pd.Series(c.record).isin(gone).to_numpy()
    expected = stratified_auroc(c.scores["loss"][kept], c.member[kept], c.client[kept])
    assert (f.value, f.low, f.members, f.nonmembers_n) == (
        expected.value, expected.low, c.member[kept].sum(), (~c.member[kept]).sum(),
    )  # fmt: skip
    (other,) = aurocs(holed, signal="shadow", nonmembers="held-out")
    assert other.members == 144
    run = made_up(13, leak=4.0)
    models = [m if m.threat_model == "server" else replace(m, scores=m.scores.drop(columns="loss")) for m in run.models]
    assert {f.threat_model for f in aurocs(changed(run, models=models), signal="loss")} == {"server"}


def test_too_few_scores_are_not_measurable():
    run = made_up(12, held=USER, targets=1)
    member = next(r for r in run.records[0] if run.truth[r])
    keep = {member, *(r for r in run.records[0] if not run.truth[r])}
    few = with_scores(run, lambda t: t.assign(loss=t.loss.where(t.index.isin(keep))))
    (f,) = findings(few, signal="loss", nonmembers="held-out")
    assert (f.metric, f.status, f.value, f.verdict, f.sentence) == ("auroc", "not measurable (1)", None, None, None)
    assert f.provable == "0.348"
    table = cells(few, 0.95).set_index(["nonmembers", "signal"])
    assert np.isnan(table.loc[("held-out", "loss"), "auroc"])
    assert [f.best_of for f in findings(few, nonmembers="held-out") if f.best_of] == [2]


def test_thresholds_come_from_the_adversarys_own_models():
    run = made_up(14, leak=6.0, held=USER)
    f = of_loss(run, "balanced_accuracy")
    rates = []
    for m in run.models:
        known = m.shadow_targets[m.shadow_targets.index.isin([*run.records[m.client], *run.reference[m.client]])]
        cut = best_threshold(known.loss, known.member)
        own = m.scores.loss.loc[run.records[m.client]]
        used = np.array([run.truth[r] for r in own.index])
        rates += [(own[used] > cut).mean(), (own[~used] <= cut).mean()]
    assert f.value == pytest.approx(np.mean(rates), abs=1e-12)
    assert f.low < f.value < f.high


def test_the_truth_moves_no_threshold():
    """With every member called a held-out record and the reverse, what was right is wrong and the two rates change places."""
    run = made_up(15, leak=6.0, canaries=20, held=USER)
    swapped = changed(run, truth={r: not m for r, m in run.truth.items()})
    pairs = list(zip(findings(run), findings(swapped), strict=True))
    right = [(a, b) for a, b in pairs if a.metric == "balanced_accuracy"]
    assert len(right) == 2 * 3
    assert all(a.value == pytest.approx(1 - b.value, abs=1e-12) for a, b in right)
    rates = [(a, b) for a, b in pairs if a.metric.startswith("tpr") and a.value is not None]
    assert rates
    assert all((a.value, a.realised_fpr) == (b.realised_fpr, b.value) for a, b in rates)


@pytest.mark.parametrize("reference", [48, 36])
def test_rates_at_a_false_positive_rate_take_it_from_known_non_members(reference):
    """Its own reference records where every target has at least 4 / FPR, else the adversary's models' non-members."""
    run = made_up(16, leak=6.0, held=USER, known=reference)
    f = of_loss(run, "tpr@10%")
    called, least = [], 10**6
    for m in run.models:
        of_models = m.shadow_targets[~m.shadow_targets.member & m.shadow_targets.index.str.match("c|r")].loss.to_numpy()
        known = m.scores.loss.loc[run.reference[m.client]].to_numpy() if reference == 48 else of_models
        cut = np.sort(known)[::-1][math.floor(0.1 * len(known))]
        least = min(least, len(of_models))
        called.append(m.scores.loss.loc[[r for r in run.records[m.client] if run.truth[r]]] > cut)
    hits = int(np.concatenate(called).sum())
    exact = stats.binomtest(hits, 144).proportion_ci(0.95)
    assert (f.value, f.low, f.high) == pytest.approx((hits / 144, exact.low, exact.high))
    whose = "reference records" if reference == 48 else "models of the adversary"
    assert f.interval == f"exact binomial; threshold from {whose}"
    assert of_loss(run, "tpr@0.1%").status == f"not measurable ({least})"
    for target in (0, 1):  # 4 / FPR are 40, so that 36 records of one are too few
        fewer = changed(run, reference=run.reference | {target: run.reference[target][:36]})
        assert of_loss(fewer, "tpr@10%").interval == "exact binomial; threshold from models of the adversary"


def test_without_models_of_its_own_an_adversary_takes_reference_records():
    run = made_up(18, leak=6.0, shadows=0, held=USER)
    found = {f.metric: f for f in findings(run, signal="loss", nonmembers="held-out", best_of=None)}
    assert found["tpr@10%"].interval == "exact binomial; threshold from reference records"
    assert found["tpr@1%"].status == "not measurable (48)"
    assert found["balanced_accuracy"].interval.startswith("cross-fitted, normal")
    part = with_scores(made_up(18, leak=6.0, held=USER), lambda t: t.drop(columns="loss"), "shadow_targets")
    assert of_loss(part, "balanced_accuracy").interval.startswith("cross-fitted")
    (f,) = findings(part, signal="shadow", metric="balanced_accuracy", nonmembers="held-out")
    assert f.interval.startswith("exact binomial")
    run = made_up(19, held=USER)
    with pytest.raises(ValueError, match="indexed by the client's records, got 0"):
        comparisons(with_scores(run, lambda t: t.reset_index(drop=True), "shadow_targets"))


def test_the_best_of_the_attacks_has_the_interval_of_all():
    run = made_up(20, leak=3.0, held=USER)
    (best,) = findings(run, nonmembers="held-out", best_of=3)
    rivals = aurocs(run, nonmembers="held-out")
    assert best.value == max(f.value for f in rivals)
    top = next(f for f in rivals if f.value == best.value)
    assert (best.signal, best.attack, best.headline, best.metric) == (top.signal, top.attack, False, "auroc")
    assert best.low < top.low < top.high < best.high
    c = row(run)
    expected = stratified_auroc(c.scores[best.signal], c.member, c.client, confidence=1 - 0.05 / 3)
    assert (best.low, best.high, best.confidence) == (expected.low, expected.high, 0.95)
    assert "the best of 3 attacks" in best.sentence
    assert "simultaneous over 3 attacks" in best.interval
    assert best.detectable > top.detectable
    table = cells(made_up(21, leak=2.0, canaries=20), 0.95)
    assert len(table) == 4 * 3 * len(SIGNALS)
    assert (table.simultaneous_low <= table.low).all()
    assert (table.simultaneous_high >= table.high).all()
    assert simultaneous(0.95, 1) == pytest.approx(0.95)


def test_one_attack_is_not_picked_and_what_was_measured_is_said_as_the_claims_are():
    assert not [f for f in findings(made_up(0, signals={"lira/online": "lira", "lira/offline": "lira"})) if f.best_of]
    claimed = {"claimed": "c", "provable": "p", "measured": "0.5"}
    found = aurocs(made_up(22), claims=claimed, nonmembers="held-out")
    assert {(f.claimed, f.provable, f.measured) for f in found} == {tuple(claimed.values())}


def test_the_best_of_thirty_attacks_without_a_leak_covers_one_half():
    rng, level = np.random.default_rng(0), simultaneous(0.95, 30)
    member, client = np.arange(160) % 2 == 0, np.repeat([0, 1], 80)
    covered = single = 0
    for _ in range(80):
        attacks = rng.normal(size=(30, 160))
        together = [stratified_auroc(scores, member, client, confidence=level) for scores in attacks]
        best = int(np.argmax([i.value for i in together]))
        alone = stratified_auroc(attacks[best], member, client)
        covered += together[best].low <= 0.5 <= together[best].high
        single += alone.low <= 0.5 <= alone.high
    assert covered >= 69
    assert single < 56  # the ordinary interval of the best does not: in theory 0.975^30 = 47 % of the times


def records_of(run, rng, look=lambda r: 0):
    def one(r):
        image = rng.integers(0, 200, (16, 16, 3)).astype(np.uint8) + np.uint8(look(r))
        group = run.group.get(r, "class 0")
        return Record(r, group, image, "<image>", group)

    return {r: one(r) for asked in run.rows.values() for r in asked}


def test_blind_controls_of_every_row_but_for_too_few_records():
    run = made_up(23, each=30, canaries=8, shared=False, held=USER)
    rng = np.random.default_rng(0)
    # target 1's pictures are brighter: no membership, but a tell between clients
    found = blind_controls(records_of(run, rng, lambda r: 40 * r.startswith("c1")), run.rows, seed=0)
    assert set(found) == set(run.rows)
    assert all(set(found[place]) == set(asked) for place, asked in run.rows.items())
    assert not any(np.isnan(list(found[k, "left-out canaries"].values())).any() for k in (0, 1))

    def auroc(*place):
        asked = run.rows[place]
        return stratified_auroc([found[place][r] for r in asked], [*asked.values()], [0] * len(asked))

    null, tell = auroc(1, "held-out"), auroc(1, "other clients")
    assert null.low <= 0.5 <= null.high
    assert tell.value == 1
    run = made_up(24, leak=8.0, canaries=4, canary_leak=12.0, targets=1, held=USER)
    few = dict.fromkeys(run.canaries[0], math.nan)
    blind = changed(run, blind=run.blind | {(0, "left-out canaries"): few})
    f = of_loss(blind, nonmembers="left-out canaries")
    assert f.blind_value is None
    assert f.verdict is not None
    controls = blind_controls(records_of(run, np.random.default_rng(0)), run.rows, seed=0)
    assert np.isnan(list(controls[0, "left-out canaries"].values())).all()
