"""The membership audit on made-up scores: null calibration, a planted leak, a shifted control, laws."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fedaudit.audits.blind import blind_scores
from fedaudit.audits.comparisons import ScoredModel, ScoredRun, by_round, comparisons
from fedaudit.audits.findings import Finding
from fedaudit.audits.membership import Params, cells, findings
from fedaudit.audits.permutation_test import by_coin
from fedaudit.audits.statistics import ranking
from fedaudit.audits.tables.curves import rounds_table
from fedaudit.audits.verdicts import judged, together
from fedaudit.tasks.base import Record
from tests import prompt_scores

SIGNAL = "renyi/2/10/caption"
SIGNALS = (SIGNAL, "loss/base", "loss")


NAMES = {"run": "r", "method": "m", "task": "t", "seed": 0}
CLIENTS, POOL = 8, 24


def claims(_):
    return {"claimed": "none", "provable": "infinity"}


def frame(records, rng, shift=None):
    scores = pd.DataFrame({"record": list(records)} | {s: rng.normal(size=len(records)) for s in SIGNALS})
    if shift is not None:
        for s in SIGNALS:
            scores[s] += np.array([shift.get(r, 0.0) for r in records])
    return scores.set_index("record", drop=False)


def made_up(seed, *, leak=0.0, base_leak=0.0, blind_leak=0.0, novel_shift=0.0):
    """Eight clients with 24 candidates each; `leak` moves members' scores in every model that an adversary holds."""
    rng = np.random.default_rng(seed)
    records = {k: [f"c{k}-{i}" for i in range(POOL)] for k in range(CLIENTS)}
    reference = {k: [f"r{k}-{i}" for i in range(30)] for k in range(CLIENTS)}
    novel = [f"n{i}" for i in range(40)]
    coins = {k: rng.permutation([True, False] * (POOL // 2)) for k in records}
    truth = {r: bool(m) for k in records for r, m in zip(records[k], coins[k], strict=True)}
    pool = [r for k in records for r in records[k]]
    everything = [*pool, *[r for k in reference for r in reference[k]], *novel]
    shift = {r: leak * used for r, used in truth.items()} | dict.fromkeys(novel, -novel_shift)
    base_shift = {r: base_leak * used for r, used in truth.items()} | dict.fromkeys(novel, -novel_shift)
    blind = {r: rng.normal() + blind_leak * truth.get(r, False) for r in everything}
    models = [("released-model", "round", None, 1, frame(pool[::2], rng, shift))]
    models += [("released-model", "final", None, 2, frame(everything, rng, shift))]
    for way, threat in (("exact", "server"), ("true state", "owner")):
        for k in range(CLIENTS):
            own = [*records[k], *reference[k], *novel]
            models.append((threat, way, k, 2, frame(own, rng, shift)))
    base = frame(everything, rng, base_shift).assign(**{"loss/base": 0.0})
    cohorts = [list(range(0, CLIENTS, 2)), list(range(1, CLIENTS, 2))]
    return ScoredRun(
        models=[ScoredModel(*model, base) for model in models], headlines={"a": SIGNALS[:2]}, signals=dict.fromkeys(SIGNALS, "a"),
        blind={(None, "held-out"): blind, (None, "novel objects"): blind}, records=records, reference=reference, novel=novel,
        truth=truth, cohorts=cohorts, coins=coins_of(records), seed=seed,
    )  # fmt: skip


def coins_of(records, kind=""):
    """Every record of clients has a coin of its own, exchanged within the client."""
    return {r: (r, f"c{k}{kind}") for k in records for r in records[k]}


def elsewhere(run):
    """The same run, trained by somebody else: no coin of ours decided."""
    return dataclasses.replace(run, coins={})


def aurocs(run, **where):
    """AUROCs as the report of this one run says them."""
    found = findings(run, Params(), names=NAMES, epsilon=claims)
    sizes = Counter(test.family for test in by_coin(run).scores.values())
    said = judged([dataclasses.asdict(f) for f in found], together([by_coin(run).largest]), sizes)
    rows = [Finding(**{k: v for k, v in f.items() if k != "schema"}) for f in said if f["metric"] == "auroc"]
    return [f for f in rows if all(getattr(f, k) == v for k, v in where.items())]


KINDS = {  # made-up runs by what is trained; a leak of prompts is as large beside what differs between classes
    "LoRA": made_up,
    "prompts": lambda seed, leak=0.0, **more: prompt_scores.made_up(seed, leak=4 * leak, **more),
}
EACH_KIND = pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)


def test_a_planted_leak_is_found_everywhere():
    rows = aurocs(made_up(0, leak=2.0), nonmembers="held-out")
    assert {(f.threat_model, f.population) for f in rows} == {
        ("released-model", "all members"), ("released-model", "last-round members"), ("server", "own members"), ("owner", "own members"),
    }  # fmt: skip
    assert all(f.verdict == "leak" and f.low > 0.6 for f in rows)
    assert all(f.sentence.startswith("Leak: ") for f in rows)


@pytest.mark.parametrize(
    ("kind", "threat", "signal"), [("LoRA", "released-model", SIGNAL), ("prompts", "prompt-user", "loss")]
)
def test_no_leak_no_finding(kind, threat, signal):
    """Null calibration over made-up runs: one row, each verdict; leak at most as often as a 5 % test allows (99.9 % binomial limit)."""
    few = {} if kind == "LoRA" else {"held": prompt_scores.HELD[:1], "shadows": 0, "signals": {"loss": "loss"}}
    runs = [KINDS[kind](seed, **few) for seed in range(20 if kind == "LoRA" else 30)]
    alone = [dataclasses.replace(r, models=[m for m in r.models if m.threat_model == threat]) for r in runs]
    verdicts = [aurocs(run, nonmembers="held-out", signal=signal)[0].verdict for run in alone]
    assert verdicts.count("leak") <= (5 if kind == "LoRA" else 6)
    assert verdicts.count("no leak found") >= 0.7 * len(runs)


@EACH_KIND
def test_members_and_nonmembers_swapped_gives_one_minus_auroc(made):
    run = made(2, leak=1.0)
    swapped = dataclasses.replace(run, truth={r: not m for r, m in run.truth.items()})
    where = {"nonmembers": "held-out", "best_of": None}
    for one, other in zip(aurocs(run, **where), aurocs(swapped, **where), strict=True):
        assert one.value == pytest.approx(1 - other.value, abs=1e-12)
        assert one.low == pytest.approx(1 - other.high, abs=1e-12)


@EACH_KIND
def test_a_control_off_one_half_is_confounded_whatever_the_attack_says(made):
    rows = aurocs(elsewhere(made(3, leak=2.0, blind_leak=3.0)), nonmembers="held-out")
    assert {f.verdict for f in rows} == {"confounded"}
    rows = aurocs(elsewhere(made(4, leak=2.0, base_leak=8.0)), nonmembers="held-out")
    based = {(f.verdict, "a model that learnt none of them" in f.sentence) for f in rows if f.base_value is not None}
    assert based == {("confounded", True)}


@pytest.mark.parametrize("planted", [{"blind_leak": 2.0}, {"base_leak": 2.0}, {"base_leak": -2.0}])
@pytest.mark.parametrize("leak", [0.0, 2.0])
def test_where_coins_decided_a_control_off_one_half_is_an_alarm_and_no_verdict(planted, leak):
    run = made_up(4, leak=leak, **planted)
    rows, calm = (aurocs(one, nonmembers="held-out", signal=SIGNAL) for one in (run, made_up(4, leak=leak)))
    assert {f.verdict for f in rows} == {f.verdict for f in calm} == {"leak" if leak else "no leak found"}
    assert all(f.alarm.startswith("Control off: check the pipeline") for f in rows)
    assert all(f.alarm is None for f in calm)
    word = "never sees a model" if "blind_leak" in planted else "learnt none of them"
    assert all(word in f.alarm for f in rows)


def test_novel_objects_never_count_as_a_leak():
    """Members and novel records differ in distribution by design: whatever the attack scores there is no evidence,
    and a shift is seen in the base as well."""
    rows = aurocs(made_up(10, leak=3.0), nonmembers="novel objects")
    assert {(f.low > 0.5, f.verdict) for f in rows} == {(True, "confounded")}
    shifted = aurocs(made_up(5, novel_shift=3.0), nonmembers="novel objects", signal=SIGNAL)
    assert {(min(f.value, f.base_value) > 0.9, f.verdict) for f in shifted} == {(True, "confounded")}


def test_the_blind_controls_interval_is_widened_for_its_folds():
    run = made_up(6)
    where = {"threat_model": "released-model", "population": "all members", "nonmembers": "held-out"}
    (f,) = aurocs(run, signal=SIGNAL, **where)
    final = next(c for c in comparisons(run) if c.way == "final" and c.population == "all members")
    plain = ranking.auroc(final.blind, final.member, final.client)
    assert f.blind_high - f.blind_value == pytest.approx(1.5 * (plain.high - plain.value))
    assert f.blind_value - f.blind_low == pytest.approx(1.5 * (plain.value - plain.low))


def test_a_control_counts_from_one_percent_on_and_on_either_side_of_one_half():
    """Of runs from elsewhere, where a score has the blind control only: *confounded* exactly where its p is below 1 %."""
    seen, run = set(), elsewhere(made_up(0, leak=2.0))
    run = dataclasses.replace(run, models=[m for m in run.models if m.way == "final"], headlines={"a": ("loss/base",)})
    for seed, leak in itertools.product(range(4), (0.0, 0.5, -0.5, 0.9, -0.9)):
        rng = np.random.default_rng(seed)
        blind = {r: rng.normal() + leak * run.truth.get(r, False) for r in run.blind[None, "held-out"]}
        blinded = dataclasses.replace(run, blind=dict.fromkeys(run.blind, blind))
        found = findings(blinded, Params(), names=NAMES, epsilon=claims)
        f = next(f for f in found if (f.metric, f.population, f.nonmembers) == ("auroc", "all members", "held-out"))
        assert (f.verdict == "confounded") == (f.blind_p < 0.01)
        seen.add((f.blind_value > 0.5, f.blind_p < 0.01, f.blind_p < 0.05))
    assert len(seen) == 6


def test_controls_that_separate_perfectly_or_whose_score_is_constant():
    few = made_up(11, blind_leak=1000.0)
    few = dataclasses.replace(few, models=[m for m in few.models if m.client is None or m.client < 2])
    rows = aurocs(elsewhere(few), threat_model="server", nonmembers="held-out")
    assert {(f.blind_value, f.verdict) for f in rows} == {(1.0, "confounded")}
    assert all(f.alarm for f in aurocs(few, threat_model="server", nonmembers="held-out"))
    for f in aurocs(made_up(6), signal="loss/base"):
        assert f.base_value is None
        began = ", where all these clients began" if f.nonmembers == "held-out" else ""
        assert f.base_note == f"n/a: constant on the base{began}"


def with_earlier(run, leak=0.0):
    """The clients of the second cohort were asked about under the model that they began with."""
    rng, later = np.random.default_rng(run.seed), [r for k in run.cohorts[1] for r in run.records[k]]
    earlier = frame(later, rng, {r: leak * run.truth[r] for r in later})
    return dataclasses.replace(run, models=[dataclasses.replace(m, before_first_round=earlier) for m in run.models])


def test_a_score_that_is_constant_on_the_base_has_earlier_models_as_its_control():
    """Its clients' AUROCs, never pooled, and the coins' statistic of just these; other scores keep the base."""
    plain, run = (f(made_up(6)) for f in (lambda run: run, with_earlier))
    note = "the released model before each of 4 of 8 clients first took part"
    for before, f in zip(aurocs(plain, nonmembers="held-out"), aurocs(run, nonmembers="held-out"), strict=True):
        if f.signal != "loss/base":
            assert (f.base_value, f.base_z, f.base_note) == (before.base_value, before.base_z, None)
            continue
        assert f.base_note == note.replace("8 clients", "4 clients") if f.population == "last-round members" else note
        own = [roc_auc_score([run.truth[r] for r in run.records[k]], run.models[1].before_first_round["loss/base"][run.records[k]])
               for k in run.cohorts[1]]  # fmt: skip
        assert f.base_value == pytest.approx(np.mean(own))
        assert (f.value, f.verdict, f.alarm) == (before.value, before.verdict, None)
        assert f.base_z is not None
    for f in aurocs(run, nonmembers="novel objects", signal="loss/base"):
        assert (f.base_value, f.base_note) == (None, "n/a: constant on the base")


def test_an_earlier_model_that_knows_members_is_an_alarm_and_confounds_a_run_from_elsewhere():
    run = with_earlier(made_up(7), leak=3.0)
    for f in aurocs(run, nonmembers="held-out", signal="loss/base"):
        assert f.base_value > 0.9
        assert "the same attack on a model that learnt none of them" in f.alarm
    rows = aurocs(elsewhere(run), nonmembers="held-out", signal="loss/base")
    assert {f.verdict for f in rows} == {"confounded"}
    run = with_earlier(made_up(8))
    twin = {r: run.records[k - 1][i] for k in (1, 3) for i, r in enumerate(run.records[k])}
    shared = dataclasses.replace(run, coins=run.coins | {r: run.coins[first] for r, first in twin.items()})
    (f,) = [f for f in aurocs(shared, nonmembers="held-out", signal="loss/base") if f.population == "all members"]
    assert f.base_note == "the released model before each of 2 of 8 clients first took part"


def test_thresholds_and_rows_that_cannot_be_measured_say_so():
    found = findings(made_up(7, leak=2.0), Params(), names=NAMES, epsilon=claims)
    rows = [f for f in found if f.metric.startswith("tpr") and f.population != "last-round members"]
    statuses = {(f.threat_model, f.metric): f.status for f in rows}
    assert statuses["server", "tpr@1%"] == "not measurable (30)"
    assert statuses["server", "tpr@10%"] == "coarse"
    assert statuses["released-model", "tpr@10%"] == "ok"
    assert statuses["released-model", "tpr@0.1%"] == "not measurable (240)"
    assert all((f.value is None) == f.status.startswith("not") for f in found if f.metric.startswith("tpr"))
    run = made_up(13)
    one = next(r for k in run.records for r in run.records[k] if run.truth[r])
    alone = dataclasses.replace(run, truth={r: r == one for r in run.truth})
    found = aurocs(alone, threat_model="server", nonmembers="held-out")
    assert {(f.value, f.status, f.members) for f in found} == {(None, "not measurable (1)", 1)}


def test_only_participants_are_members_in_every_round():
    """Clients that took part in round 1 alone are compared after round 1; last-round members are the last cohort's."""
    rows = by_round(made_up(8))
    first = next(c for c in rows if c.round == 1 and c.population == "all members")
    assert set(first.client) == {f"client-{k:02d}" for k in range(0, CLIENTS, 2)}
    last = next(c for c in comparisons(made_up(8)) if c.population == "last-round members")
    assert set(last.client) == {f"client-{k:02d}" for k in range(1, CLIENTS, 2)}
    run = made_up(8, leak=1.0)
    table = rounds_table(run, Params().confidence)
    last = table[table["round"] == table["round"].max()].set_index(["population", "signal"])
    found = [f for f in findings(run, Params(), names=NAMES, epsilon=claims) if (f.metric, f.way) == ("auroc", "final")]
    found = {(f.population, f.signal): f for f in found if f.nonmembers == "held-out"}
    assert len(last) > 1
    for place, row in last.iterrows():
        assert (row.auroc, row.low, row.high) == (found[place].value, found[place].low, found[place].high)


def with_canaries(run, rng, leak):
    """Six canaries of each client, half of them inserted, in every model's table but the rounds'."""
    canaries = {k: [f"x{k}-{i}" for i in range(6)] for k in range(CLIENTS)}
    every = [r for k in canaries for r in canaries[k]]
    truth = run.truth | {r: i % 2 == 0 for k in canaries for i, r in enumerate(canaries[k])}

    def more(table, move, of=every):
        return pd.concat([table, frame(of, rng, {r: move * truth[r] for r in of})])

    scores = [m.scores if m.way == "round" else more(m.scores, leak, every if m.client is None else canaries[m.client])
              for m in run.models]  # fmt: skip
    blind = run.blind | {(None, "left-out canaries"): {r: float(rng.normal()) for r in every}}
    base = more(run.models[0].base, 0.0).assign(**{"loss/base": 0.0})
    models = [dataclasses.replace(m, scores=s, base=base) for m, s in zip(run.models, scores, strict=True)]
    coins = run.coins | coins_of(canaries, " canaries")
    return dataclasses.replace(run, models=models, truth=truth, blind=blind, canaries=canaries, coins=coins)


def test_canaries_have_rows_of_their_own_and_change_no_other():
    plain = made_up(12, leak=1.0)
    run = with_canaries(plain, np.random.default_rng(0), 6.0)
    rows = [c for c in comparisons(run) if c.nonmembers == "left-out canaries"]
    assert [(c.threat_model, c.population, c.member.sum(), len(c.member)) for c in rows] == [
        ("released-model", "canaries", 24, 48), ("server", "canaries", 24, 48), ("owner", "canaries", 24, 48),
    ]  # fmt: skip
    assert all(r.startswith("x") for c in rows for r in c.record)
    found = findings(run, Params(), names=NAMES, epsilon=claims)
    ours = [f for f in found if f.nonmembers == "left-out canaries"]
    assert {f.metric for f in ours} == {"auroc", "balanced_accuracy"}  # reference records are of another distribution
    judged = aurocs(run, nonmembers="left-out canaries")
    assert all(f.verdict == "leak" and f.population == "canaries" and f.family == "secondary" for f in judged)
    before = findings(plain, Params(), names=NAMES, epsilon=claims)
    others = [f for f in found if f.nonmembers != "left-out canaries"]
    for one, other in zip(others, before, strict=True):  # by how many scores share the error another leak is detectable
        free = {"detectable": one.detectable, "detectable_named": one.detectable_named}
        assert dataclasses.replace(other, **free) == one
    kept = cells(run, 0.95)
    assert kept[kept.nonmembers != "left-out canaries"].reset_index(drop=True).equals(cells(plain, 0.95))


def test_claims_may_depend_on_the_threat_model_and_headline_is_fixed_beforehand():
    found = findings(made_up(0), Params(), names=NAMES, epsilon=lambda threat: {"claimed": "c", "provable": threat})
    rows = [f for f in found if f.metric == "auroc"]
    assert {f.provable for f in rows} == {"released-model", "server", "owner"}
    assert {f.measured for f in rows} == {"not measured: needs canaries"}
    assert all(f.headline == (f.signal != "loss") for f in aurocs(made_up(0)))


@EACH_KIND
def test_cells_of_every_score_of_every_row_are_corrected_for_their_number(made):
    run = elsewhere(made(9))
    table = cells(run, 0.95)
    assert (table.p_adjusted >= table.p).all()
    rows = table.groupby(["threat_model", "way", "population", "nonmembers"]).size()
    assert rows.tolist() == [len(run.signals)] * len(comparisons(run))
    assert table.auroc.between(0, 1).all()


def records(n, rng, word):
    images = rng.integers(0, 255, (n, 16, 16, 3)).astype(np.uint8)
    return [
        Record(f"{word}-{i}", "g", image, "<image>", f"{word} {rng.integers(50)} and {rng.integers(50)}")
        for i, image in enumerate(images)
    ]


def test_blind_baseline_sees_a_difference_of_records_and_is_calibrated_without():
    rng = np.random.default_rng(0)
    same = records(300, rng, "a")
    member = rng.random(300) < 0.5
    client = [f"c{i % 6}" for i in range(300)]
    scores = blind_scores(same, member.tolist(), client, seed=0)
    null = ranking.auroc([scores[r.id] for r in same], member, client)
    assert null.low <= 0.5 <= null.high
    different = records(60, rng, "cat") + records(60, rng, "dog")
    label = [True] * 60 + [False] * 60
    scores = blind_scores(different, label, [f"c{i % 6}" for i in range(120)], seed=0)
    assert ranking.auroc([scores[r.id] for r in different], label, np.arange(120)).low > 0.9
    # over 20 coin flips its mean AUROC is 0.5 within 3 standard errors: cross-fitting leaks nothing
    rng = np.random.default_rng(1)
    found = []
    for _ in range(20):
        sample = records(120, rng, "a")
        member = rng.random(120) < 0.5
        scores = blind_scores(sample, member.tolist(), [f"c{i % 4}" for i in range(120)], seed=0)
        found.append(ranking.auroc([scores[r.id] for r in sample], member, np.arange(120)).value)
    assert abs(np.mean(found) - 0.5) < 3 * np.std(found) / math.sqrt(20)


@pytest.mark.parametrize("confidence", [0.3, float("nan")])
def test_confidence_outside_its_range(confidence):
    with pytest.raises(ValueError, match="confidence must be at least"):
        Params(confidence=confidence)
