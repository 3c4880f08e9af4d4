"""The audit of mutual information: a planted leak of known bits, nothing where nothing leaks, its table, findings and section; `--audit`."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedaudit.audits import mutual_information as audit
from fedaudit.audits.findings import INFORMATION
from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.command.cli import read_command
from fedaudit.machinery.errors import InputError
from fedaudit.reports.section import Page
from fedaudit.reports.sections.mutual_information import section
from tests import closed_information as closed
from tests.prompt_scores import changed, made_up, with_scores
from tests.test_report import ONE

SIGNALS = {"lira/online": "lira", "loss": "loss"}
SERVER = (("server", "rebuilt"),)
NAMES = {"run": "r", "method": "m", "task": "t", "seed": 0}


@pytest.fixture(autouse=True)
def fewer_exchanges(monkeypatch):
    monkeypatch.setattr(audit, "EXCHANGES", 99)


def world(seed, leak=0.0, coins=True, **fields):
    """Two targets of 200 records, each with a scale of its own; a member's score is shifted by `leak` standard deviations."""
    usual = {"each": 100, "classes": 0.0, "shadows": 0, "others": 0, "known": 4, "signals": SIGNALS, "held": SERVER}
    run = made_up(seed, leak=leak, **{**usual, **fields})
    own = {r: (r, str(k)) for k in run.records for r in run.records[k]} if coins else {}
    return changed(run, coins=own, seed=seed)


def table(run, **params):
    return audit.information(run, audit.Params(**params)).set_index("signal")


@pytest.mark.parametrize("leak", [0.7, 3.0])
def test_a_planted_leak_is_measured_within_its_interval(leak):
    """Of 12 intervals at least 9 hold it (0.998 of the binomial)."""
    exact = closed.shifted_gaussian(leak) * mi.BITS
    found = [table(world(seed, leak)).loc["loss"] for seed in range(12)]
    assert sum(row.low <= exact <= row.high for row in found) >= 9
    assert np.mean([row.bits for row in found]) == pytest.approx(exact, abs=0.04)
    assert all(row.p_adjusted <= 0.05 and row.bits > row.null_high for row in found[:3]) or leak < 1
    assert all(row.ceiling == pytest.approx(1.0) for row in found)


def test_permuted_membership_holds_nothing():
    """No leak: intervals hold 0, p of 5 % or less comes in at most 5 of 20 (0.999 of the binomial), corrected as seldom."""
    found = [table(world(seed, 3.0 * (seed % 2))) for seed in range(4)]
    mixed = []
    for seed in range(20):
        run, rng = world(seed, 2.0), np.random.default_rng(seed)
        pairs = [pair for own in run.records.values() for pair in zip(own, rng.permutation(own), strict=True)]
        mixed.append(table(changed(run, truth={r: run.truth[other] for r, other in pairs})))
    assert sum(t.low["loss"] <= 0 <= t.high["loss"] for t in mixed) >= 16
    assert sum((t.p <= 0.05).any() for t in mixed) <= 7
    assert sum((t.p_adjusted <= 0.05).any() for t in mixed) <= 5
    assert (found[1].p <= 0.01).all()
    assert (found[0].p > 0.01).all()


def test_what_a_score_holds_depends_on_the_order_of_its_values_alone():
    run = world(0, 1.0)
    pd.testing.assert_frame_equal(table(run), table(with_scores(run, lambda scores: np.exp(scores / 3) - 5)))
    one = dataclasses.replace(run.models[0], scores=run.models[0].scores * 1000 + 50)
    pd.testing.assert_frame_equal(table(run), table(changed(run, models=[one, *run.models[1:]])))
    # half of the members score 1, nobody else: I = H(1/4) - H(1/2) / 2 bits
    run = world(0)

    def half(scores):
        member = np.array([run.truth.get(r, False) for r in scores.index])
        return scores.assign(loss=(member & (np.cumsum(member) % 2 == 0)).astype(float))

    exact = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75)) - 0.5
    row = table(with_scores(run, half)).loc["loss"]
    assert row.bits == pytest.approx(exact, abs=0.03)
    assert row.low <= exact <= row.high


def test_the_base_stands_beside_it_and_exchanges_are_within_clients():
    row, alone = (table(world(3, leak=2.0, base_leak=base)).loc["loss"] for base in (2.0, 0.0))
    assert row.base_bits == pytest.approx(row.bits, abs=0.15)
    assert alone.base_bits < 0.05
    with_coins, without = (table(world(5, 2.0, coins=coins)) for coins in (True, False))
    assert without.bits["loss"] == with_coins.bits["loss"]
    assert without.p["loss"] <= 0.01
    assert abs(without.null_high["loss"] - with_coins.null_high["loss"]) < 0.02
    assert "of the clients" in table(changed(world(1, 1.0, targets=8, each=30), few=False)).interval["loss"]
    assert "of the clients" not in table(world(1, 1.0)).interval["loss"]


def test_records_without_a_score_are_left_out():
    found = table(with_scores(world(2, 1.0), lambda scores: scores.assign(loss=scores.loss[50:])))
    assert found.members["loss"] + found.nonmembers_n["loss"] == 300
    assert found.members["lira/online"] + found.nonmembers_n["lira/online"] == 400
    gone = with_scores(world(2, 1.0), lambda scores: scores.assign(loss=np.nan))
    assert list(table(gone).index) == ["lira/online"]


def test_findings_and_section_say_what_the_table_says():
    run = world(0, 1.0)
    constant = with_scores(run, lambda base: base * 0 + 1, part="base")
    rows = audit.information(constant, audit.Params())
    found = audit.findings(rows, audit.Params(), names=NAMES)
    assert [(f.signal, f.value) for f in found] == list(zip(rows.signal, rows.bits, strict=True))
    assert {f.metric for f in found} == {INFORMATION}
    assert {f.base_value for f in found} == {None}
    assert all(f.low < f.value < f.high and 0 < f.p <= f.p_adjusted <= 1 for f in found)
    assert section(Page([ONE], map)) is None
    rows = audit.information(world(0, 3.0), audit.Params())
    page = Page([dataclasses.replace(ONE, tables={**ONE.tables, "information": rows})], map)
    shown = section(page)
    assert [row["bits"] for row in shown.context["information"][0]["shown"]["rows"]] == list(rows.bits)
    assert list(shown.tables) == ["information"]


def releasing(prompts):
    """A transcript whose clients release prompts."""
    return SimpleNamespace(released=lambda client: {"prompt": prompts[client]})


class TestPrompts:
    @staticmethod
    def of(move, clients=24):
        """Clients of which some hold more of the first class; their prompts are moved along one direction by `move` times that."""
        run = world(0, targets=clients, each=10)
        share = {k: sum(run.truth[r] for r in run.records[k][: 2 * (k + 1) % 20]) for k in run.records}
        group = {r: f"class {i >= 2 * (k + 1) % 20}" for k in run.records for i, r in enumerate(run.records[k])}
        chance = torch.Generator().manual_seed(0)
        prompts = {k: move * share[k] * torch.ones(2, 3) + 0.1 * torch.randn(2, 3, generator=chance) for k in share}
        return audit.of_prompts(releasing(prompts), changed(run, group=group), audit.Params())

    def test_prompts_that_follow_classes_and_prompts_that_do_not(self):
        (row,), (none,) = (self.of(move).itertuples() for move in (1.0, 0.0))
        assert row.bits > row.null_high
        assert row.p < 0.02
        assert row.clients == 24
        assert row.spread > 0.9
        assert none.null_low <= none.bits <= none.null_high

    def test_few_clients_or_equal_prompts_say_nothing(self):
        assert len(self.of(1.0, clients=7)) == 0
        run = world(0, targets=9, each=10)
        assert len(audit.of_prompts(releasing([torch.ones(2)] * 9), run, audit.Params())) == 0


class TestOnRequest:
    def test_runs_where_it_is_named_and_moves_no_training(self):
        words = ("", "--audit mutual_information --neighbours 7", "--audit all")
        usual, asked, every = (read_command(f"--method promptfl --attack loss {w}".split()).plan for w in words)
        assert "mutual_information" not in usual.audits
        assert asked.audits["mutual_information"].neighbours == 7
        assert set(asked.audits) == set(every.audits) == {*usual.audits, "mutual_information"}
        assert asked.cells[0].training_key == usual.cells[0].training_key
        assert asked.cells[0].analysis_key != usual.cells[0].analysis_key
        named = read_command("--attack loss --audit communication,membership".split()).plan
        assert named.cells[0].analysis_key == read_command("--attack loss".split()).plan.cells[0].analysis_key

    def test_what_cannot_be(self):
        for words, said in (
            ("--attack loss --audit mutualinformation", "did you mean 'mutual_information'"),
            ("--method promptfl --audit mutual_information", "--audit mutual_information: needs an attack"),
            ("--audit utility", "--audit utility: needs records that are classes"),
            ("--attack loss --audit ,", "no such audit"),
            ("--neighbours 3", "--neighbours"),
        ):
            with pytest.raises(InputError, match=said):
                read_command(words.split())
