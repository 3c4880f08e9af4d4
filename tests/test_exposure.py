"""The tables about records, classes and agreement of attacks: hand calculations on a few records, and planted leaks."""

import io
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.stats import spearmanr

from fedaudit.audits import membership
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.statistics.classification import accuracy_at
from fedaudit.audits.tables.records import CLASSES, evidence
from fedaudit.audits.tables.tokens import panels
from fedaudit.machinery.store import claim
from fedaudit.reports.evidence import TABLES
from fedaudit.tasks.base import Record
from tests.prompt_scores import HELD, SIGNALS, changed, made_up, with_scores

PLACE = {"threat_model": "prompt-user", "way": "prompt", "client": "client-00"}


IMAGE = np.full((300, 400, 3), 7, np.uint8)


def tables(run):
    pictures = {r: Record(r, label, IMAGE, f"<image> what is {r}?", f"a {label}") for r, label in run.group.items()}
    return evidence(run, pictures, confidence=0.95)


def by_hand(a, b, facts=None, held=HELD[0], names=("shadow", "loss")):
    """One target: members m0 m1, held-out h0 h1, canary x0, left-out canary x1, reference r0, other client's o0."""
    records = ["m0", "m1", "h0", "h1", "x0", "x1", "r0", "o0"]
    group = dict(zip(records, ["cat", "dog", "cat", "dog", "cat", "dog", "cat", "cow"], strict=True))
    scores = pd.DataFrame(dict(zip(names, (a, b), strict=True)), pd.Index(records, name="record"), dtype=float)
    facts = None if facts is None else pd.DataFrame(facts, scores.index)
    truth = {"m0": True, "m1": True, "h0": False, "h1": False, "x0": True, "x1": False}
    run = ScoredRun(
        models=[ScoredModel(*held, 0, 3, scores, facts=facts)], headlines={name: (name,) for name in names},
        signals={name: name for name in names}, blind={}, records={0: records[:4]}, reference={0: ["r0"]},
        others={0: ["o0"]}, truth=truth, group=group, canaries={0: ["x0", "x1"]}, few=True, guesses=["shadow"],
    )  # fmt: skip
    return changed(run, blind={place: dict.fromkeys(asked, 0.0) for place, asked in run.rows.items()})


SHADOW = [9, -1, -2, 3, 8, -5, 100, 100]
LOSS = [5, 4, 1, 1, 6, math.nan, 100, 100]


def test_records_by_hand():
    found = tables(by_hand(SHADOW, LOSS))["records"]
    assert found.columns.tolist() == [
        "threat_model",
        "way",
        "client",
        "record",
        "label",
        *TABLES["records"].split()[4:],
        "shadow",
        "loss",
    ]
    kinds = ["canary", "left-out canary", "reference", "other client"]
    assert found.kind.tolist() == ["member"] * 2 + ["held-out"] * 2 + kinds
    assert found.member.tolist() == [True, True, False, False, True, False, False, False]
    assert found.label.tolist() == ["cat", "dog", "cat", "dog", "cat", "dog", "cat", "cow"]
    # shares ranked no higher: shadow 6 3 2 4 5 1 of 6; loss 4 3 1.5 1.5 5 of 5; means .9, .55, .317, .483, .917, .167
    assert found["rank"].tolist()[:6] == [2, 3, 5, 4, 1, 6]
    assert found.percentile.tolist()[:6] == [100, 100, 0, 50, 100, 0]
    assert found[["rank", "percentile"]].tail(2).isna().all(axis=None)
    assert found.shadow.tolist() == SHADOW
    found = tables(by_hand([1, 1, 0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 0, 0]))["records"]
    assert found["rank"].tolist()[:6] == [1, 1, 4, 4, 1, 4]
    assert found.percentile.tolist()[:6] == [100, 100, 0, 0, 100, 0]
    run = by_hand(SHADOW, [0, 1, 2, 3, 4, 5, 6, 7])
    second = changed(run, signals={"shadow": "shadow", "loss": "shadow"}, headlines={"shadow": ("shadow",)})
    one = tables(second)["records"]
    assert one["rank"].tolist()[:6] == [1, 4, 5, 3, 2, 6]
    assert one.loss.tolist() == list(range(8))


def test_classes_by_hand():
    found = tables(by_hand(SHADOW, LOSS))["classes"]
    assert found.columns.tolist() == TABLES["classes"].split() == CLASSES
    # cat: m0 at 9 is a member, h0 at -2 is none: both right; dog: m1 at -1 and h1 at 3: both wrong. Canaries do not count.
    rows = found[["label", "success", "members", "nonmembers"]].to_numpy().tolist()
    assert rows == [["cat", 1.0, 1, 1], ["dog", 0.0, 1, 1], ["mean", 0.5, 2, 2]]
    assert (found[list(PLACE)] == list(PLACE.values())).all(axis=None)
    assert (found.signal == "shadow").all()
    zero = tables(by_hand([0, *SHADOW[1:]], LOSS))["classes"]
    assert zero.success.tolist() == [0.5, 0.0, 0.25]  # 0 says: no member
    run = by_hand(SHADOW, LOSS)
    cat = tables(changed(run, group=run.group | {"h1": "cow"}))["classes"]
    assert cat.label.tolist() == ["cat", "mean"]
    assert "classes" not in tables(by_hand([math.nan] * 8, LOSS))
    assert "classes" not in tables(by_hand(SHADOW, LOSS, names=("lira", "loss")))


def test_success_weighs_members_and_held_out_records_alike_and_classes_too():
    run = made_up(0, leak=2.0, targets=1, held=HELD[:1])
    found = tables(run)["classes"].set_index("label")
    scores = run.models[0].scores.shadow
    rates = {}
    for label in {run.group[r] for r in run.records[0]}:
        own = [r for r in run.records[0] if run.group[r] == label]
        hit = {used: np.mean([(scores[r] > 0) == used for r in own if run.truth[r] == used]) for used in (True, False)}
        rates[label] = (hit[True] + hit[False]) / 2
    assert found.success.drop("mean").to_dict() == pytest.approx(rates)
    assert found.success["mean"] == pytest.approx(np.mean(list(rates.values())))
    own = run.records[0]
    truth, group = ([of[r] for r in own] for of in (run.truth, run.group))
    expected = accuracy_at(scores[own], truth, group, dict.fromkeys(rates, 0.0))
    assert (found.low["mean"], found.high["mean"]) == pytest.approx((expected.low, expected.high))


def test_agreement_by_hand():
    found = tables(by_hand(SHADOW, LOSS))["agreement"]
    assert found.columns.tolist() == TABLES["agreement"].split()
    (row,) = found.to_dict("records")
    assert (row["signal_a"], row["signal_b"]) == ("shadow", "loss")
    # five records have both scores; the top tenth is one of them, m0 for the one and x0 for the other
    assert row["spearman"] == pytest.approx(spearmanr(SHADOW[:5], LOSS[:5]).statistic)
    assert (row["overlap"], row["chance"]) == (0.0, 0.2)
    (same,) = tables(by_hand(SHADOW, [x * 3 for x in SHADOW]))["agreement"].to_dict("records")
    assert (same["spearman"], same["overlap"]) == (pytest.approx(1.0), 1.0)
    (flat,) = tables(by_hand(SHADOW, [1] * 8))["agreement"].to_dict("records")
    assert math.isnan(flat["spearman"])
    assert flat["overlap"] == pytest.approx(flat["chance"])  # any record may be in the top of a constant score
    (tied,) = tables(by_hand([2, 1, 1, 0, 2, 2, 0, 0], [3, 1, 2, 0, 3, 1, 0, 0]))["agreement"].to_dict("records")
    assert tied["overlap"] == pytest.approx(2 * 1 / 3 * 1 / 2)  # m0 and x0: each in one with 1/3, in the other with 1/2


def test_agreement_is_the_mean_of_the_targets():
    run = made_up(1, classes=0.0, others=0, held=HELD[:2])
    found = tables(run)["agreement"]
    assert len(found) == 2 * 3  # pairs of three attacks' first scores
    assert (found.signal_a + found.signal_b).nunique() == 3
    one = found.set_index(["threat_model", "signal_a", "signal_b"]).loc[("prompt-user", "shadow", "loss")]
    each = [m.scores.loc[run.records[m.client]] for m in run.models if m.threat_model == "prompt-user"]
    assert one.spearman == pytest.approx(np.mean([spearmanr(t.shadow, t.loss).statistic for t in each]))
    top = [[set(t[s].nlargest(14).index) for s in ("shadow", "loss")] for t in each]
    assert one.overlap == pytest.approx(np.mean([len(a & b) / 14 for a, b in top]))
    assert one.chance == pytest.approx(14 / 144)


FACTS = {
    "loss": [0.1, 0.5, 2, 2, 0.1, 2, 2, 2], "base_loss": [3.0] * 8, "loss_in": [0.15, 0.6, 1, 1, 1, 1, math.nan, math.nan],
    "loss_out": [1.3, 0.9, 2, 2, 2, 2, 2, 2], "hard_right": [False, True] * 4,
}  # fmt: skip


def test_exposed_members_and_the_reason():
    found = tables(by_hand(SHADOW, LOSS, FACTS))["exposed"]
    assert found.columns.tolist() == TABLES["exposed"].split()
    rows = found[["rank", "record", "client", "label"]].to_numpy().tolist()
    assert rows == [[1, "m0", "client-00", "a cat"], [2, "m1", "client-00", "a dog"]]
    assert found.score.tolist() == pytest.approx([(6 / 6 + 4 / 5) / 2, (3 / 6 + 3 / 5) / 2])
    assert found.percentile.tolist() == [100, 100]
    assert found.reason.tolist() == [
        "In the top tenth by 1 of 2 scores; loss 0.10, where models trained with it have 0.15 and models trained without it 1.30; "
        "the hard prompt gets it wrong.",
        "In the top tenth by 0 of 2 scores; loss 0.50, where models trained with it have 0.60 and models trained without it 0.90.",
    ]
    assert Image.open(io.BytesIO(found.png[0])).size == (256, 192)
    found = tables(by_hand(SHADOW, [1] * 8))["exposed"]
    assert found.reason.str.split(" scores").str[0].tolist() == [f"In the top tenth by {n} of 2" for n in (1, 0)]
    bare = {name: FACTS[name] for name in ("loss", "base_loss")}
    assert tables(by_hand(SHADOW, LOSS, bare))["exposed"].reason[0].endswith("loss 0.10, 3.00 before training.")
    assert tables(by_hand(SHADOW, LOSS))["exposed"].reason[0] == "In the top tenth by 1 of 2 scores."


def test_the_strongest_adversary_is_fixed_beforehand():
    """The server's records are shown wherever there is a server, however well others do; the owner's only where nobody else is."""
    for held, first in ((HELD, "server"), (HELD[:2], "prompt-user"), (HELD[3:], "owner")):
        run = made_up(2, leak=4.0, held=held)
        found = tables(run)
        shown = found["exposed"]
        assert len(shown) == 8
        assert all(run.truth[r] for r in shown.record)
        mine = found["records"][found["records"].threat_model == first].set_index(["client", "record"])
        mine = mine.loc[list(zip(shown.client, shown.record, strict=True))]
        assert (mine.percentile.to_numpy() == shown.percentile.to_numpy()).all()
        assert (mine["rank"] <= 12).all()


def test_figures_hold_the_first_score_of_every_attack_that_says_something():
    run = made_up(3, leak=4.0, canaries=10)
    found = tables(run)
    headline = set(run.headline)
    assert headline == {"shadow", "lira/online", "loss"}
    for name in ("curves", "clients"):
        assert set(found[name].columns) >= set(TABLES[name].split())
        assert set(zip(found[name].threat_model, found[name].way, strict=True)) == set(HELD)
        assert set(found[name].signal) == headline
    assert set(found["scores"].columns) == {*TABLES["scores"].split(), *headline}
    assert set(found["scores"].kind) == {"member", "held-out", "canary", "left-out canary", "other client"}
    assert (found["curves"].nonmembers == "held-out").all()
    assert (found["curves"].low <= found["curves"].tpr + 0.1).all()
    assert set(SIGNALS) <= set(found["records"].columns)
    one = found["clients"].query("threat_model == 'server' and signal == 'loss' and client == 'client-01'")
    scores = next(m for m in run.models if (m.threat_model, m.client) == ("server", 1)).scores.loss
    pairs = itertools.product(*([r for r in run.records[1] if run.truth[r] == used] for used in (True, False)))
    assert one.auroc.item() == pytest.approx(np.mean([scores[a] > scores[b] for a, b in pairs]))
    run = with_scores(made_up(4, held=HELD[:1]), lambda t: t.assign(loss=np.nan))
    found = tables(run)
    assert set(found["curves"].signal) == {"shadow", "lira/online"}
    assert set(found["agreement"].signal_a) | set(found["agreement"].signal_b) == {"shadow", "lira/online"}
    assert found["records"]["rank"].notna().any()


def test_changing_the_truth_changes_no_rank_and_tables_survive_the_disk(tmp_path):
    run = made_up(5, leak=4.0, held=HELD[:1])
    swapped = changed(run, truth={r: not used for r, used in run.truth.items()})
    assert tables(run)["records"]["rank"].equals(tables(swapped)["records"]["rank"])
    folder = claim(tmp_path)
    for name, table in tables(made_up(6, canaries=6, held=HELD[:1])).items():
        folder.write_table(f"{name}.parquet", table)
        assert folder.read_table(f"{name}.parquet").columns.tolist() == table.columns.tolist()


def test_records_that_are_neither_members_nor_held_out_count_nowhere():
    """A training record that was in no batch is left out of `records`; every model was asked about it all the same."""
    run = made_up(7, leak=4.0, each=30, held=HELD[:1])
    gone = {r for k in run.records for r in run.records[k][:20]}
    parts = {"records": run.records, "others": run.others}
    left = {name: {k: [r for r in own if r not in gone] for k, own in part.items()} for name, part in parts.items()}
    less = rest = changed(run, **left)
    for part in ("scores", "shadow_targets"):
        rest = with_scores(rest, lambda t: t[~t.index.isin(gone)], part)
    for name, table in tables(less).items():
        pd.testing.assert_frame_equal(table, tables(rest)[name])
    about = {"names": {"run": "r", "method": "m", "task": "t", "seed": 0}, "epsilon": lambda _: {}}
    one, other = (membership.findings(made, membership.Params(), **about) for made in (less, rest))
    assert one == other


def together(ways=(("released-model", "final"),), extra=None):
    """Two clients with one model for both, or a model each; client 1 has the larger scores."""
    own = {k: [f"{kind}{k}{i}" for kind in "mh" for i in range(2)] for k in (0, 1)}
    truth = {r: r[0] == "m" for records in own.values() for r in records}
    scores = pd.DataFrame({"loss": [4.0, 1, 2, 3, 14, 11, 12, 13]}, [r for records in own.values() for r in records])
    models = [ScoredModel(*held, k, 2, scores) for held, clients in ways for k in clients] if extra is None else extra
    run = ScoredRun(
        models=models or [ScoredModel("released-model", "final", None, 2, pd.concat([scores, NOVEL]))],
        headlines={"loss": ("loss",)}, signals={"loss": "loss"}, blind={}, records=own, reference={0: [], 1: []},
        truth=truth, group=dict.fromkeys(truth, "cat") | dict.fromkeys(NOVEL.index, "cow"), cohorts=[[0, 1], [0]],
        novel=list(NOVEL.index),
    )  # fmt: skip
    blind = dict.fromkeys([*truth, *NOVEL.index], 0.0)
    return changed(run, blind={(None, kind): blind for kind in ("held-out", "novel objects")})


NOVEL = pd.DataFrame({"loss": [5.0, 6.0]}, ["n0", "n1"])


def test_one_model_for_all_clients_ranks_each_clients_records_among_themselves():
    found = tables(together(extra=[]))
    by_record = found["records"].set_index("record")
    of_client = {"m{}0": 1, "m{}1": 4, "h{}0": 3, "h{}1": 2}
    assert by_record["rank"].to_dict() == {r.format(k): rank for k in (0, 1) for r, rank in of_client.items()}
    assert by_record.client.tolist() == ["client-00"] * 4 + ["client-01"] * 4
    # of two that are first among their own the one with the higher score is shown first
    shown = found["exposed"]
    assert shown.record.tolist() == ["m10", "m00", "m11", "m01"]
    assert shown.score.tolist() == [1.0, 1.0, 0.25, 0.25]
    assert shown[["asked", "label"]].iloc[0].tolist() == ["what is m10?", "a cat"]
    assert found["scores"].set_index("record").kind[["m00", "h00", "n0"]].tolist() == ["member", "held-out", "novel"]
    assert (found["scores"].kind == "novel").sum() == 2
    assert panels(found) == {"member": "m10", "non-member": "h10"}
    assert panels({}) == {}
    of_one = tables(changed(together(extra=[]), cohorts=[[0], [0]]))
    assert set(of_one["records"].client) == {"client-00"}


def test_the_freshest_way_that_reaches_half_of_the_clients_is_shown():
    new, fill, own = ("server", "newest"), ("server", "server-fill"), ("owner", "true state")
    both = ((fill, (0, 1)), (own, (0, 1)))
    for ways, way in ((both, "server-fill"), (((new, (1,)), *both), "newest")):
        assert set(tables(changed(together(ways=ways), novel=[]))["exposed"].way) == {way}
