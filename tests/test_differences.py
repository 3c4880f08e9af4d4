"""Differences between methods: against slow versions and by hand, null calibration, a planted difference, and where
nothing can be paired."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, t, ttest_rel
from sklearn.metrics import roc_auc_score

from fedaudit.audits import differences as audit
from fedaudit.audits.run_comparison import AuditedRun
from fedaudit.audits.shared_records import Shared, shared_records
from fedaudit.audits.statistics.intervals import holm, quantile
from fedaudit.audits.statistics.paired import LEAST, p_by_interval, rate_difference
from tests.differing_runs import SIGNAL, World
from tests.test_ranking import psi

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def table(*runs: AuditedRun) -> pd.DataFrame:
    return audit.differences(runs, audit.Params()).tables["differences"]


def shared(a: AuditedRun, b: AuditedRun) -> Shared:
    found = shared_records((a, b), (a.findings[0], b.findings[0]))
    assert isinstance(found, Shared), found
    return found


def called(only_a: int, only_b: int, both: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.zeros((2, n), dtype=bool)
    a[: only_a + both] = True
    b[only_a : only_a + both + only_b] = True
    return a, b


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(3, 0, 40), (7, 2, 60), (0, 0, 30), (30, 30, 90), (25, 0, 25)])
def test_rate_difference_is_bonett_and_prices_formula(only_a, only_b, n):
    a, b = called(only_a, only_b, 0, n)
    found = rate_difference(a, b, np.arange(n))
    p, q = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    reach = quantile(n + 1, 0.95) * math.sqrt((p + q - (p - q) ** 2) / (n + 1))
    assert found.value == pytest.approx((only_a - only_b) / n)
    assert found.ends(0.95) == pytest.approx((p - q - reach, min(1, p - q + reach)))


@pytest.mark.parametrize(("only_a", "only_b"), [(3, 0), (5, 0), (6, 0), (8, 1), (10, 2), (20, 8), (40, 40)])
def test_p_of_a_rate_difference_is_near_the_exact_one_of_mcnemar(only_a, only_b):
    a, b = called(only_a, only_b, 10, 200)
    exact = binomtest(only_a, only_a + only_b).pvalue
    assert p_by_interval(rate_difference(a, b, np.arange(200)).ends) == pytest.approx(exact, rel=0.3)


def test_records_of_one_client_that_all_agree_count_as_one():
    a, b = called(20, 0, 0, 40)
    clients = np.repeat(np.arange(4), 10)
    by_record, by_client = rate_difference(a, b, np.arange(40)), rate_difference(a, b, clients)
    assert by_record.ends(0.95)[0] > 0 > by_client.ends(0.95)[0]
    with pytest.raises(ValueError, match="one length"):
        rate_difference([], [], [])
    with pytest.raises(ValueError, match="one length"):
        rate_difference([True], [True], ["a", "b"])


def test_p_by_interval_is_that_of_the_law_of_the_interval():
    for value, se, dof in ((0.1, 0.05, 7), (-0.3, 0.1, 11), (0.01, 0.5, 3)):
        found = p_by_interval(lambda c, v=value, s=se, d=dof: (v - quantile(d, c) * s, v + quantile(d, c) * s))
        assert found == pytest.approx(2 * t.sf(abs(value) / se, dof), rel=1e-4)
    assert p_by_interval(lambda level: (-level, level)) == 1.0
    assert p_by_interval(lambda level: (0.0, 0.0)) == 1.0
    assert p_by_interval(lambda level: (0.5, 0.6)) == LEAST


def test_paired_auroc_is_delongs_by_counting_placements():
    """Few clients: records are the units, and the variance is that of DeLong, counted pair by pair in each client."""
    world = World(clients=2, records=24)
    one = shared(world.run("a", 1, 0.3), world.run("b", 2, 1.2))
    c = one.candidates
    variance, value = 0.0, 0.0
    for client in np.unique(c.client):
        rows = c.client == client
        members, others = (np.flatnonzero(rows & kind) for kind in (c.member, ~c.member))
        first, second = (c.scores[name] for name in ("a", "b"))
        wins = np.array([[psi(second[i], second[j]) - psi(first[i], first[j]) for j in others] for i in members])
        value += wins.mean() / 2
        variance += (wins.mean(axis=1).var(ddof=1) / len(members) + wins.mean(axis=0).var(ddof=1) / len(others)) / 4
    found, reach = one.auroc(), quantile(None, 0.95) * math.sqrt(variance)
    assert c.unit == "records"
    assert found.b - found.a == pytest.approx(value)
    assert found.ends(0.95) == pytest.approx((value - reach, value + reach))


def test_paired_auroc_over_clients_is_students_and_its_p_near_that_of_every_exchange():
    a, b = World().run("a", 1, 0.2, spread=0.4), World().run("b", 2, 0.6, spread=0.4)
    own = [by_client(a), by_client(b)]
    row = table(a, b).set_index("metric").loc["auroc"]
    assert row.p == pytest.approx(ttest_rel(*own).pvalue, rel=1e-4)
    assert (row.value_a, row.value_b) == pytest.approx([np.mean(x) for x in own])
    assert row.difference == pytest.approx(row.value_b - row.value_a)
    # the exact test of a difference that is symmetric in each client: all 2 ** 12 ways to exchange the two
    for noise in range(5):
        a, b = World(seed=noise).run("a", 1, 0.2), World(seed=noise).run("b", 2, 0.5)
        d = np.subtract(by_client(b), by_client(a))
        every = np.array([*itertools.product((1, -1), repeat=len(d))]) @ d
        exact = (np.abs(every) >= abs(d.sum()) - 1e-12).mean()
        assert table(a, b).set_index("metric").p["auroc"] == pytest.approx(exact, rel=0.5, abs=0.004)


def by_client(run):
    """The AUROC of every client."""
    records = run.tables["records"]
    candidates = records[records.kind.isin(["member", "held-out"])]
    return [roc_auc_score(rows.member, rows[SIGNAL]) for _, rows in candidates.groupby("client")]


def test_tpr_and_named_records_by_hand():
    one = shared(World(clients=4).run("a", 1, 0.3), World(clients=4).run("b", 2, 1.5))
    c, reference = one.candidates, one.reference
    for name, value in (("a", one.tpr(0.1).a), ("b", one.tpr(0.1).b)):
        cut = {k: np.sort(part[name])[-13] for k, part in reference.groupby("client")}  # 12 of 120 are above it
        above = np.array([s > cut[k] for s, k in zip(c.scores[name], c.client, strict=True)])
        assert value == pytest.approx(above[c.member].mean())
    rank = c.scores.groupby(c.client).rank(ascending=False)
    for name, value in (("a", one.named(8).a), ("b", one.named(8).b)):
        assert value == pytest.approx(sum(c.member[rank[name] <= 2]))  # two of each of four clients
    third = {name: sum(c.member[rank[name] == 3]) for name in ("a", "b")}
    assert one.named(10).b == pytest.approx(one.named(8).b + third["b"] / 2)  # four records share two places


def test_two_copies_of_one_method_differ_as_often_as_chance_allows():
    """Both leak, by the same amount in each client, with noise of their own: at most 8 of 60 p-values below .05, but
    for once in 500; the AUROC's not none, as it is no cautious one."""
    found = [
        table(w.run("a", 1, 0.5, spread=0.5), w.run("b", 2, 0.5, spread=0.5)).set_index("metric").p
        for w in (World(seed=s, records=24, reference=60) for s in range(60))
    ]
    below = (pd.DataFrame(found) <= 0.05).sum()
    assert set(below.index) == {"auroc", "tpr@10%", "named@8"}
    assert below.max() <= 8
    assert below["auroc"] >= 1


def test_a_planted_difference_is_found_and_turned_round_its_negative():
    found = audit.differences([World().run("weak", 1, 0.2), World().run("strong", 2, 1.2)], audit.Params())
    rows = found.tables["differences"].set_index("metric")
    assert (rows.p_adjusted[["auroc", "tpr@10%"]] < 0.01).all()
    assert (rows.low[["auroc", "tpr@10%"]] > 0).all()
    assert rows.difference["named@8"] > 0
    assert rows.paired.all()
    assert found.sentences[0].startswith("strong leaks more than weak to the server: ")
    a, b = World().run("a", 1, 0.2), World().run("b", 2, 0.9)
    there, back = table(a, b), table(b, a)
    assert there.difference.tolist() == pytest.approx((-back.difference).tolist())
    assert there.low.tolist() == pytest.approx((-back.high).tolist())
    assert there.p.tolist() == pytest.approx(back.p.tolist(), rel=1e-3)


def test_p_values_are_corrected_for_all_differences_of_a_page():
    found = table(*(World().run(name, i, 0.1 * i) for i, name in enumerate("abc")))
    assert len(found) == 9
    assert found.p_adjusted.tolist() == pytest.approx(holm(found.p).tolist())
    found = table(*(World().run(name, i) for i, name in enumerate("abcde")))
    assert set(zip(found.a, found.b, strict=True)) == {("a", other) for other in "bcde"}
    same = audit.differences([World().run("a", 1), World().run("b", 1)], audit.Params())
    assert same.tables["differences"].p.tolist() == [1, 1, 1]
    assert same.sentences == ["No difference was shown: of 3 the smallest corrected p is 1."]


def test_further_trainings_count_as_such():
    """With three seeds of each, trainings that differ among themselves widen the interval."""
    one = [World().run("a", 1, 0.3), World().run("b", 2, 0.7)]
    alike = [run for i in range(3) for run in (World().run("a", 1, 0.3, seed=i), World().run("b", 2, 0.7, seed=i))]
    apart = [World().run("a", 10 * i + 1, 0.3, seed=i) for i in range(3)]
    apart += [World().run("b", 10 * i + 2, 0.7 + 0.5 * (i - 1), seed=i) for i in range(3)]
    widths = [(rows := table(*runs).iloc[0]).high - rows.low for runs in (one, alike, apart)]
    assert widths[0] == pytest.approx(widths[1])
    assert widths[2] > 1.3 * widths[1]
    assert table(*apart).seeds.tolist() == [3, 3, 3]


def test_other_coins_and_other_thresholds_are_not_paired_and_other_tasks_not_compared():
    a, b = World().run("a", 1), World().run("b", 2)
    records = b.tables["records"]
    coins = records.member != records.kind.isin(["member", "held-out"])  # of candidates the other side
    found = table(a, replace(b, tables={"records": records.assign(member=coins)}))
    assert not found.paired.any()
    assert set(found.why) == {"their coins fell differently"}
    assert found.metric.tolist() == ["auroc", "tpr@10%"]  # named records need the same coins
    words = "reference records", "models of the adversary"
    elsewhere = [f | {"interval": f["interval"].replace(*words)} for f in b.findings]
    found = table(a, replace(b, findings=elsewhere)).set_index("metric")
    assert found.paired.to_dict() == {"auroc": True, "tpr@10%": False, "named@8": True}
    assert "adversaries' own models" in found.why["tpr@10%"]
    found = audit.differences([a, replace(b, setting={**b.setting, "task.name": "vqa"})], audit.Params())
    assert found.empty
    assert found.tables["differences"].columns.tolist() == audit.COLUMNS


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tables": {}}, "the scores of their records are not on disk"),
        ({"setting": {"task.name": "captions", "method.name": "b", "data_seed": 7}}, "they have no data in common"),
        ({"population": "all members"}, "one adversary has a model of each client, the other one model of all"),
    ],
)
def test_why_nothing_is_paired(change, why):
    a, b = World().run("a", 1), World().run("b", 2, value=0.9, low=0.8, high=0.95)
    if "population" in change:
        change = {"findings": [f | change for f in b.findings]}
    found = table(a, replace(b, **change)).set_index("metric")
    assert set(found.why) == {why}
    auroc = found.loc["auroc"]  # by square-and-add of [.4, .5, .6] and [.8, .9, .95]
    assert auroc.difference == pytest.approx(0.4)
    assert (auroc.low, auroc.high) == pytest.approx((0.4 - math.hypot(0.1, 0.1), 0.4 + math.hypot(0.05, 0.1)))


def useful(name: str, by_client: list[float], seed: int = 0) -> AuditedRun:
    rows = [(0, f"client-{k}", "local", x) for k, x in enumerate(by_client)]
    rows.append((0, "mean", "local", float(np.mean(by_client))))
    mean = {"metric": "accuracy/local", "value": float(np.mean(by_client)), "low": 1.0, "high": 99.0, "rounds": 1}
    setting = {"task.name": "glyphs", "method.name": name, "data_seed": 0, "seed": seed}
    accuracy = pd.DataFrame(rows, columns=["round", "client", "split", "accuracy"])
    return AuditedRun(name + str(seed), name, seed, setting, [mean | {"confidence": 0.95}], {"accuracy": accuracy})


def test_accuracies_are_compared_client_by_client():
    a, b = [50.0, 60.0, 70.0, 80.0], [54.0, 62.0, 75.0, 81.0]
    (row,) = table(useful("a", a), useful("b", b)).to_dict("records")
    assert (row["metric"], row["difference"], row["clients"], row["paired"]) == ("local", 3.0, 4, True)
    assert row["p"] == pytest.approx(ttest_rel(a, b).pvalue, rel=1e-4)
    (row,) = table(useful("a", [50.0, 60.0]), useful("b", [52.0, 62.0])).to_dict("records")
    assert row["difference"] == 2
    assert math.isnan(row["p"])
    assert "no interval" in row["why"]


def test_of_answers_only_several_trainings_have_an_interval():
    def run(name, loss, seed):
        setting = {"task.name": "captions", "method.name": name, "data_seed": 0, "seed": seed}
        answers = pd.DataFrame([(-1, "global", 3.0), (0, "global", loss)], columns=["round", "model", "loss"])
        return AuditedRun(f"{name}{seed}", name, seed, setting, [], {"utility": answers})

    (one,) = table(run("a", 1.0, 0), run("b", 1.5, 0)).to_dict("records")
    assert (one["metric"], one["difference"]) == ("loss", 0.5)
    assert math.isnan(one["p"])
    a, b = [1.0, 1.1, 1.3], [1.5, 1.7, 1.75]
    runs = [run(name, x, i) for name, losses in (("a", a), ("b", b)) for i, x in enumerate(losses)]
    (three,) = table(*runs).to_dict("records")
    assert three["p"] == pytest.approx(ttest_rel(a, b).pvalue, rel=1e-3)
    assert audit.sentences(pd.DataFrame([three]), 0.9)[0].startswith("a is more useful than b: loss 1.65, not 1.13")
