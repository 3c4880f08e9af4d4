"""The verdict rules as truth tables, the families' correction by hand, and the alarms of controls."""

import dataclasses
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedaudit.audits import verdicts
from fedaudit.audits.comparisons import comparisons
from fedaudit.audits.findings import WHOLE_RANKING
from fedaudit.audits.membership import Params, findings
from fedaudit.audits.permutation_test import FAMILIES, by_coin, named_row, primary_rows
from fedaudit.audits.statistics.intervals import cross_fitted
from fedaudit.audits.statistics.permutation import PERMUTATIONS
from fedaudit.audits.statistics.ranking import auroc
from fedaudit.audits.verdicts import SHARES, control_p_value, corrected, judged, together
from fedaudit.terms.verdicts import VERDICTS
from tests.test_membership import NAMES, SIGNALS, claims, coins_of, made_up, with_canaries


def interval(low, high):
    """Whatever has these ends."""
    found = auroc([1.0, 2, 3, 4], [1, 0, 1, 0], [0] * 4)
    return type(found)(**{**vars(found), "value": (low + high) / 2, "low": low, "high": high})


ABOVE, BELOW, COVERS = interval(0.55, 0.7), interval(0.3, 0.45), interval(0.45, 0.6)
MORE, LESS, SAME = interval(0.05, 0.2), interval(-0.2, -0.05), interval(-0.1, 0.1)


def test_where_coins_decided():
    cases = {"leak": [(4, 0.001), (4, 0.05)], "leak, score reversed": [(-4, 0.001)]}
    cases["no leak found"] = [(4, 0.0501), (-4, 0.0501), (0, 1)]
    for word in cases:
        assert {verdicts.by_the_coin(z, p, level=0.05) for z, p in cases[word]} == {word}


# verdict where no control is off, of an attack and its differences to the controls that there are
TABLE = {
    "leak": [(ABOVE, (MORE, MORE)), (ABOVE, (MORE,))],
    "leak, score reversed": [(BELOW, (LESS, LESS)), (BELOW, (LESS,))],
    "no leak found": [(COVERS, (MORE, MORE)), (COVERS, (LESS, SAME)), (COVERS, ())],
    "inconclusive": [
        *((ABOVE, to) for to in ((MORE, SAME), (SAME, MORE), (MORE, LESS), (LESS, LESS), (SAME, SAME), ())),
        *((BELOW, to) for to in ((LESS, SAME), (MORE, MORE), ())),
    ],
}


@pytest.mark.parametrize(("word", "attack", "controls"), [(word, *case) for word in TABLE for case in TABLE[word]])
def test_where_no_coin_of_ours_decided(word, attack, controls):
    assert {*TABLE, "confounded"} == set(VERDICTS), "every word comes up"
    assert verdicts.by_controls(attack, [], controls, exchangeable=True) == word
    # of two distributions a model learns more than its members: there is never a leak
    other = verdicts.by_controls(attack, [], controls, exchangeable=False)
    assert other == ("no leak found" if word == "no leak found" else "confounded")
    for off, alike in itertools.product((["base"], ["blind"], ["base", "blind"]), (True, False)):
        assert verdicts.by_controls(attack, off, controls, exchangeable=alike) == "confounded"


def test_a_control_is_off_in_either_direction_and_at_one_percent():
    """Its p-value is below 1 % exactly where its 99 % interval excludes 0.5; the 95 % one excludes it earlier."""
    rng, seen = np.random.default_rng(0), set()
    member, client = np.arange(120) % 2 == 0, np.arange(120) % 5
    for shift in np.linspace(-1.2, 1.2, 41):
        scores = rng.normal(size=120) + shift * member
        wide, narrow = (auroc(scores, member, client, confidence=level) for level in (0.99, 0.95))
        excludes = not wide.low <= 0.5 <= wide.high
        assert (control_p_value(narrow) < 0.01) == (control_p_value(wide) < 0.01) == excludes
        seen.add((excludes, wide.value > 0.5, narrow.low <= 0.5 <= narrow.high))
    assert {(True, True, False), (True, False, False), (False, True, False), (False, False, False)} <= seen


def test_a_control_that_separates_perfectly_is_off_where_chance_hardly_would():
    few, more = (auroc(np.arange(n), np.arange(n) >= n // 2, np.arange(n) % 2) for n in (6, 14))
    assert control_p_value(few) == pytest.approx(2 / 20)
    assert control_p_value(more) == pytest.approx(2 / 3432)
    rng, member = np.random.default_rng(1), np.arange(300) % 2 == 0
    plain = auroc(rng.normal(size=300) + 0.75 * member, member, np.arange(300) % 12)
    wide = cross_fitted(plain, 5)
    assert wide.se == pytest.approx(1.5 * plain.se)
    assert control_p_value(plain) < 0.01 < control_p_value(wide)


def finding(**fields):
    row = {
        "seed": 0, "metric": "auroc", "threat_model": "server", "way": "exact", "population": "own members",
        "nonmembers": "held-out", "signal": "loss/caption", "value": 0.7, "low": 0.6, "high": 0.8, "confidence": 0.95,
        "members": 9, "nonmembers_n": 9, "interval": "mean", "best_of": None, "z": 2.5, "t": 2.5, "p": 0.01, "family": "primary",
        "part": WHOLE_RANKING, "detectable": 0.67, "detectable_named": 8, "clients": 1,
        "base_z": None, "base_value": None, "blind_p": None, "blind_value": None, "verdict": None,
    }  # fmt: skip
    return row | fields


SIZES = {"named": 1, "primary": 6, "secondary": 1000}


def table(primary):
    return pd.DataFrame({"primary": primary, "secondary": 9.0, "controls": 9.0})


def test_the_correction_by_hand():
    """Of 3 exchanges none has a largest statistic of 3 or more: p = 1 / 4, over the family's share of the error."""
    largest = together([table([9.0, 1.0, 2.6, 2.0])])
    assert corrected(3.0, "primary", largest) == pytest.approx(0.25 / SHARES["primary"])
    assert corrected(-9.5, "secondary", largest) == pytest.approx(1.0)
    assert corrected([0.1, -2.0, 3.0], "primary", largest).tolist() == pytest.approx([1.0, 1.0, 0.625])
    assert sum(SHARES.values()) == 1.0
    # each run exchanged its own coins: of every exchange the larger statistic counts
    both = together([table([9.0, 1.0, 0.5]), table([0.0, 0.2, 0.7]), pd.DataFrame()])
    assert both["primary"].tolist() == [9.0, 1.0, 0.7]
    assert together([]) == {}


@pytest.mark.parametrize("family", SHARES)
def test_the_least_leak_is_where_the_corrected_p_value_falls_to_the_level(family):
    largest = {family: np.r_[0.0, np.random.default_rng(0).random(999)]}
    needed = verdicts.least_leak(family, largest, level=0.05)
    assert corrected(needed + 1e-6, family, largest) <= 0.05 < corrected(needed - 1e-6, family, largest)


def test_words_of_a_report():
    calm = dict.fromkeys(("secondary", "controls"), np.r_[9.0, np.ones(999)]) | {"primary": np.r_[9.0, np.ones(99)]}
    changes = (
        {},
        {"t": -2.5, "value": 0.3},
        {"t": 0.5, "p": 0.5, "value": 0.6},
        {"family": "secondary"},
        {"z": None, "verdict": "x"},
    )
    rows = [finding(**more) for more in changes]
    said = judged(rows, calm, SIZES)
    assert [f["verdict"] for f in said] == ["leak", "leak, score reversed", "no leak found", "leak", "x"]
    assert said[0]["p_adjusted"] == pytest.approx(0.01 / 0.4)
    assert said[3]["p_adjusted"] == pytest.approx(0.001 / 0.1)
    assert said[1]["sentence"].startswith("Leak, score reversed: the server, from messages that held a whole model")
    assert "p 0.01 alone, 0.025 among 6 primary scores" in said[0]["sentence"]
    assert "p 0.01 alone, 0.01 among 1,000 secondary scores" in said[3]["sentence"]
    assert [f["family_n"] for f in said[:4]] == [6, 6, 6, 1000]
    assert said[2]["sentence"].startswith("No leak found: ")
    assert "covers 0.5" not in said[2]["sentence"]
    shown = "; an AUROC of 0.67, or 8 records that are named, would have been shown with a power of 80 %."
    assert said[2]["sentence"].endswith(shown)
    assert said[0]["sentence"].endswith("primary scores.")
    few = "of the 8 highest, 8 were members, where 4.0 are expected; as a whole the ranking is near chance"
    (top,) = judged([finding(part=few)], calm, SIZES)
    assert top["sentence"].endswith(f"primary scores; {few}.")
    assert said[4] == rows[4]
    (these,) = judged([finding(interval="DeLong, normal, these clients")], calm, SIZES)
    assert "[0.600, 0.800] for these clients for this row alone by" in these["sentence"]
    (named,) = judged([finding(family="named")], calm | {"named": calm["primary"]}, SIZES)
    assert "for this row alone" not in named["sentence"]


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"t": 2.0, "value": 0.6}, "inconclusive"),  # p .03 within the family, .075 at its share of the error
        ({"t": 2.0, "family": "secondary"}, "no leak found"),
        ({"t": 1.0, "value": 0.68}, "inconclusive"),  # beyond what would have been detected
        ({"t": 1.0, "value": 0.32}, "inconclusive"),
        ({"t": 1.0, "value": 0.6}, "no leak found"),
        ({"t": 3.0}, "leak"),
    ],
)
def test_what_was_named_beforehand_and_comes_close_is_undecided(fields, verdict):
    largest = dict.fromkeys(("primary", "secondary", "controls"), np.r_[9.0, [2.5] * 2, [1.5] * 97])
    (row,) = judged([finding(**fields)], largest, SIZES)
    assert row["verdict"] == verdict
    if verdict == "inconclusive":
        assert row["sentence"].startswith("Inconclusive: the server, from messages that held a whole model, may tell")
        assert row["sentence"].endswith("; more records would decide.")


def test_a_row_says_how_many_scores_look_so_by_luck():
    calm = dict.fromkeys(("secondary", "controls"), np.r_[9.0, np.full(999, 8.0)])
    (row,) = judged([finding(family="secondary", p=0.001)], calm, SIZES)
    assert (
        "p 0.001 alone, 1 among 1,000 secondary scores, of which by luck about 1 have so small a p alone"
        in row["sentence"]
    )


class TestWithoutCoins:
    """Where no coin decided, records may depend on each other."""

    def test_records_in_blocks_of_ten_widen_the_interval_by_their_root(self):
        of_records, of_clients = (dataclasses.replace(interval(0.55, 0.65), dof=dof) for dof in (None, 5.0))
        wide = verdicts.in_blocks(of_records)
        assert (wide.low, wide.high) == pytest.approx((0.6 - 0.05 * 10**0.5, 0.6 + 0.05 * 10**0.5))
        assert verdicts.in_blocks(of_clients) is of_clients

    def test_lists_that_may_be_exchanged_are_asked_for(self):
        listed = finding(p_adjusted=None, signal="loss/base")
        ask = "Were the lists of members and non-members exchanged?"
        assert verdicts.sentence(listed, "leak, score reversed").endswith(ask)
        for other in (
            listed | {"p_adjusted": 0.01, "family_n": 6},
            listed | {"signal": "loss"},
            listed | {"nonmembers": "novel objects"},
        ):
            assert ask not in verdicts.sentence(other, "leak, score reversed")
        assert ask not in verdicts.sentence(listed, "leak")


def test_controls_share_one_percent_of_a_report_and_its_distinct_blind_classifiers_count():
    largest = {"controls": np.r_[9.0, np.ones(999)]}
    for fields, blind, off in (
        ({"base_z": 1.5}, 1, {"base": 2 / 1000}),
        ({"base_z": 0.5}, 1, {}),
        ({"blind_p": 0.004}, 1, {"blind": 0.008}),
        ({"blind_p": 0.006}, 1, {}),  # half of 1 % is the base models'
        ({"blind_p": 0.004}, 2, {}),  # and two classifiers share theirs
        ({"blind_p": 0.0001, "base_z": -1.5}, 1, {"base": 2 / 1000, "blind": 0.0002}),
    ):
        assert verdicts.off_by_the_coin(finding(**fields), largest, blind) == pytest.approx(off)
    calm = dict.fromkeys(("primary", "secondary", "controls"), np.r_[9.0, np.ones(999)])
    one = finding(blind_p=0.004, blind_value=0.8)
    assert judged([one, one], calm, SIZES)[0]["alarm"].startswith("Control off: check the pipeline")
    assert judged([one, finding(blind_p=0.9, blind_value=0.5)], calm, SIZES)[0]["alarm"] is None
    assert judged([one, one | {"seed": 1}], calm, SIZES)[0]["alarm"] is None


def test_primary_rows_are_named_by_adversary_and_order():
    run = made_up(0)
    rows = [c for c in comparisons(run) if c.coin]
    assert primary_rows(rows, run.headline) == {
        (*place, "held-out", signal)
        for place in (("released-model", "final", "all members"), ("server", "exact", "own members"), ("owner", "true state", "own members"))
        for signal in SIGNALS[:2]
    }  # fmt: skip
    assert len(primary_rows(rows, SIGNALS)) <= 8
    swapped = primary_rows(rows, SIGNALS[::-1])
    assert {row[-1] for row in swapped} == set(SIGNALS[::-1][:2])


def test_a_fresher_model_of_too_few_clients_names_no_rows():
    """A rebuilt model of one client, or of two of four, beside the last messages of four, which are not so fresh."""
    run = made_up(0)
    exact = [m for m in run.models if m.way == "exact"][:4]
    for clients, way in ((1, "exact"), (2, "rebuilt")):
        fresher = [replace(m, way="rebuilt") for m in exact[:clients]]
        rows = [c for c in comparisons(replace(run, models=[*exact, *fresher])) if c.coin]
        assert {row[:2] for row in primary_rows(rows, run.headline)} == {("server", way)}
        assert named_row(rows, run.headline)[:2] == ("server", way)


def test_one_row_is_named_by_preference_and_strength():
    """The decomposition of whoever has it, the strongest first; else the calibrated loss, else what stands first."""
    run = made_up(0)
    rows = [c for c in comparisons(run) if c.coin]
    server = ("server", "exact", "own members", "held-out")
    assert named_row(rows, ["loss", "loss/base"]) == (*server, "loss/base")
    assert named_row(rows, ["loss", SIGNALS[0]]) == (*server, "loss")
    for m in (m for m in run.models if m.threat_model == "owner"):
        m.scores["decompose"] = m.scores.loss
    solved = [replace(m, base=m.base.assign(decompose=0.0)) for m in run.models]
    rows = [c for c in comparisons(replace(run, models=solved)) if c.coin]
    owner = ("owner", "true state", "own members", "held-out")
    assert named_row(rows, ["loss", "loss/base", "decompose"]) == (*owner, "decompose")
    assert named_row(rows, ["loss", "loss/base"]) == (*server, "loss/base")
    assert named_row([], ["loss"]) is None


def test_every_row_that_coins_decided_is_in_one_family():
    run = with_canaries(made_up(1, leak=1.0), np.random.default_rng(0), 3.0)
    found = by_coin(run)
    places = {c.nonmembers for c in comparisons(run)}
    assert "novel objects" in places
    assert {row[3] for row in found.scores} == {"held-out", "left-out canaries"}
    assert Counter(t.family for t in found.scores.values()).items() >= {"named": 1, "primary": 5}.items()
    assert all(t.family == "secondary" for row, t in found.scores.items() if row[3] == "left-out canaries")
    assert len(found.largest) == PERMUTATIONS + 1
    for family in FAMILIES:
        of_scores = [test.t for test in found.scores.values() if test.family == family]
        statistics = found.base.values() if family == "controls" else of_scores
        assert found.largest[family][0] == pytest.approx(max(map(abs, statistics)))
    alone = by_coin(made_up(1, leak=1.0))
    for row, test in alone.scores.items():  # canaries move no other row
        assert (found.scores[row].p, found.scores[row].family) == (test.p, test.family)
        assert found.scores[row].z == pytest.approx(test.z)
    found = by_coin(replace(made_up(0), coins={}))
    assert (len(found.scores), len(found.base), len(found.largest)) == (0, 0, 0)


def test_a_record_without_a_score_is_left_out_and_its_coin_still_exchanged():
    run = made_up(2, leak=1.0)
    first = run.records[0][:10]
    holed = [replace(m, scores=m.scores.assign(**{SIGNALS[0]: m.scores[SIGNALS[0]].mask(m.scores.index.isin(first))}))
             for m in run.models]  # fmt: skip
    before, after = by_coin(run).scores, by_coin(replace(run, models=holed)).scores
    moved = {row[-1] for row in before if abs(before[row].z - after[row].z) > 1e-9}
    assert moved == {SIGNALS[0]}


def test_two_clients_that_hold_one_picture_share_its_coin():
    """With all of a client's records held by another one too, there are half as many coins, and statistics are smaller."""
    run = made_up(3, leak=1.0)
    pairs = {r: run.records[k - 1][i] for k in (1, 3, 5, 7) for i, r in enumerate(run.records[k])}
    truth = run.truth | {r: run.truth[first] for r, first in pairs.items()}
    alike = [replace(m, scores=m.scores.copy()) for m in run.models]
    for scores, (record, first) in itertools.product([m.scores for m in alike], pairs.items()):
        if {record, first} <= {*scores.index}:
            scores.loc[record, list(SIGNALS)] = scores.loc[first, list(SIGNALS)]
    twice = replace(run, models=alike, truth=truth)
    shared = coins_of({k: run.records[k] for k in (0, 2, 4, 6)})
    once = replace(twice, coins=shared | {r: shared[first] for r, first in pairs.items()})
    row = ("released-model", "final", "all members", "held-out", SIGNALS[0])
    assert by_coin(twice).scores[row].z == pytest.approx(2**0.5 * by_coin(once).scores[row].z, rel=0.05)


def test_a_score_that_is_the_same_for_all_records_shows_nothing():
    """Whether coins decided or controls do; a model that leaks is behind it."""
    run = made_up(0, leak=3.0)
    run = replace(run, models=[replace(m, scores=m.scores.assign(**{SIGNALS[0]: 0.25})) for m in run.models])
    found = [vars(f) for f in findings(run, Params(), names=NAMES, epsilon=claims) if f.signal == SIGNALS[0]]
    largest, sizes = together([by_coin(run).largest]), {"named": 1, "primary": 1, "secondary": 1}
    rows = [row for row in judged(found, largest, sizes) if row["low"]]
    assert {row["verdict"] for row in rows} == {"inconclusive", None}  # rows that only describe have none
    assert {row["detectable"] for row in rows} == {None}
    said = [row["sentence"] for row in rows if row["verdict"]]
    assert {"novel objects", "held-out"} <= {row["nonmembers"] for row in rows if row["verdict"]}
    assert all("which is the same for all of these records" in sentence for sentence in said)
