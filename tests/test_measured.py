"""Measured epsilon from scores to words: which score and model stand for an adversary, which canaries count, what is
printed beside claimed and provable, and when a bound is said to contradict them."""

import functools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import fedaudit
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.epsilon import measured
from fedaudit.audits.findings import MeasuredEpsilon
from fedaudit.audits.measured import NOT_GUESSED, Hypothesis, bounds, guess, words
from fedaudit.audits.statistics import one_run, trade_off
from fedaudit.audits.statistics.regression import Message
from fedaudit.audits.subject import Result, Subject
from fedaudit.command.gates import parse
from fedaudit.command.terminal import show
from fedaudit.machinery.errors import InputError
from fedaudit.privacy.clipping import add_noise
from fedaudit.reports.measured import contradictions, count_testable
from fedaudit.tasks.canaries import Canaries, insert, shares
from tests.evidence import plain_page
from tests.pages import Reader
from tests.prompt_evidence import prompt_evidence
from tests.test_canaries import _federation

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
NAMES = {"run": "r", "method": "promptfl", "task": "glyphs", "seed": 0}
DELTA = 1e-5


def names_of(k: int, n: int) -> list[str]:
    return [f"client-{k:02d}-canary-{i:04d}" for i in range(n)]


def coins_of(clients: int, n: int) -> dict[int, dict[str, bool]]:
    rng = np.random.default_rng(0)
    return {k: dict(zip(names_of(k, n), (rng.random(n) < 0.5).tolist(), strict=True)) for k in range(clients)}


def model(threat: str, way: str, client: int | None, scores: dict[str, dict[str, float]]) -> ScoredModel:
    return ScoredModel(threat, way, client, 4, pd.DataFrame(scores))


def run_of(models: list[ScoredModel], headlines: dict[str, tuple[str, ...]] | None = None) -> ScoredRun:
    headlines = headlines or {"loss": ("loss",)}
    signals = {s: attack for attack, some in headlines.items() for s in some}
    return ScoredRun(models=models, headlines=headlines, signals=signals, blind={}, records={}, reference={}, truth={})


def told(coins: dict[int, dict[str, bool]], k: int, *, right: bool = True) -> dict[str, float]:
    """Scores that tell every coin of a client, or its contrary."""
    return {name: float(used == right) for name, used in coins[k].items()}


class TestWhoGuesses:
    @pytest.mark.parametrize("shared", [False, True])
    def test_a_client_is_guessed_from_its_own_model_or_all_from_one(self, shared) -> None:
        coins = coins_of(3, 20)
        models = [model("prompt-user", "prompt", k, {"loss": told(coins, k)}) for k in coins]
        if shared:
            models = [replace(models[0], client=None, scores=pd.concat([m.scores for m in models]))]
        found = guess(run_of(models), coins, "prompt-user")
        assert (found.canaries, found.clients, found.guesses, found.correct) == (60, 3, 12, 12)
        assert found.inserted == sum(used for own in coins.values() for used in own.values())
        assert guess(run_of(models), coins, "server") is None

    def test_by_the_first_attack_that_sees_something_there(self) -> None:
        """The second attack would be right about all; the first one asked for stands, and is wrong about all."""
        coins = coins_of(1, 50)
        scores = {"entropy": told(coins, 0, right=False), "loss": told(coins, 0)}
        headlines = {"fedmia": ("fedmia/1",), "entropy": ("entropy",), "loss": ("loss",)}
        found = guess(run_of([model("owner", "true state", 0, scores)], headlines), coins, "owner")
        assert (found.attack, found.signal, found.correct) == ("entropy", "entropy", 0)

    def test_from_the_freshest_model_that_reaches_half_of_the_canaries(self) -> None:
        coins = coins_of(3, 10)
        exact = [model("server", "exact", 0, {"loss": told(coins, 0)})]
        newest = [model("server", "newest", k, {"loss": told(coins, k, right=False)}) for k in coins]
        few, most = guess(run_of(exact + newest), coins, "server"), guess(run_of(newest[1:] + exact), coins, "server")
        assert (few.way, few.correct) == ("newest", 0)
        assert most.way == "exact"

    def test_no_canary_is_dropped(self) -> None:
        """Of a client without a model nothing can be said; its canaries count all the same, and are guessed about last."""
        coins = coins_of(4, 10)
        found = guess(run_of([model("owner", "true state", 0, {"loss": told(coins, 0)})]), coins, "owner")
        assert (found.canaries, found.guesses, found.correct, found.clients) == (40, 8, 8, 4)

    def test_two_different_models_are_never_compared_by_their_scale(self) -> None:
        """The second one gives all canaries more, and few of its canaries were inserted."""
        coins = {k: {name: i < used for i, name in enumerate(names_of(k, 50))} for k, used in enumerate((25, 5))}
        scaled = {name: 1000 + 100 * x for name, x in told(coins, 1).items()}
        models = [model("owner", "true state", k, {"loss": own}) for k, own in enumerate((told(coins, 0), scaled))]
        found = guess(run_of(models), coins, "owner")
        assert found.correct == found.guesses == 20


def bounds_of(
    said: dict[str, Hypothesis], *, right: bool = True, n: int = 100, delta: float = DELTA
) -> list[MeasuredEpsilon]:
    coins = coins_of(1, n)
    models = [model("prompt-user", "prompt", 0, {"loss": told(coins, 0, right=right)})]
    return bounds(run_of(models), coins, names=NAMES, delta=delta, hypotheses=said)


class TestBounds:
    def test_two_where_a_gaussian_is_proven(self) -> None:
        any_, gaussian = bounds_of({"prompt-user": Hypothesis(1.0, 0.8, trade_off.GAUSSIAN)})
        right = {"correct": 20, "guesses": 20, "canaries": 100}
        assert any_.value == any_.ceiling == one_run.epsilon_lower_bound(**right, delta=DELTA)
        assert gaussian.value == gaussian.ceiling == trade_off.epsilon_lower_bound(**right, delta=DELTA)
        assert any_.p_provable == one_run.p_value(**right, epsilon=0.8, delta=DELTA)
        mu = trade_off.GAUSSIAN.mu(1.0, DELTA)
        assert gaussian.p_claimed == trade_off.p_value(trade_off.gaussian(mu), **right)
        assert "at least 1.82 (95 %" in any_.sentence
        assert "20 of 20 guesses about 100 canaries" in any_.sentence
        assert "at least 3.24 if the mechanism is Gaussian" in gaussian.sentence

    def test_one_where_nothing_is_noised(self) -> None:
        (only,) = bounds_of({}, delta=0.0)
        assert (only.metric, only.claimed, only.provable) == ("measured", "inf", "inf")
        assert only.p_claimed is only.p_provable is None
        assert "Gaussian" not in words([only], "prompt-user")

    def test_p_values_and_bounds_agree(self) -> None:
        """A bound lies above an epsilon where the p-value of that is at most 5 %, and nowhere else."""
        for eps in (0.2, 1.0, 1.8, 1.83, 3.2, 3.3):
            for found in bounds_of({"prompt-user": Hypothesis(eps, eps, trade_off.GAUSSIAN)}):
                assert found.p_claimed == found.p_provable is not None
                assert (found.value >= eps) == (found.p_provable <= 0.05 + 1e-9), (eps, found.metric)

    def test_in_words(self) -> None:
        found = bounds_of({"prompt-user": Hypothesis(1.0, 0.8, trade_off.GAUSSIAN)})
        any_, gaussian = words(found, "prompt-user").split("; ")
        assert any_ == "at least 1.82: of at most 1.82 with 100 coins, 20 guessed about"
        assert gaussian == "at least 3.24 (of at most 3.24) if the mechanism is Gaussian"
        assert words(found, "server") == NOT_GUESSED
        wrong = bounds_of({}, right=False)
        assert words(wrong, "prompt-user") == "at least 0: of at most 1.82 with 100 coins, 20 guessed about"


class TestAudit:
    def test_without_noise_one_bound_stands_beside_what_is_proven(self) -> None:
        coins = coins_of(1, 100)
        models = [model("owner", "true state", 0, {"loss": told(coins, 0)})]
        given = dict.fromkeys(("transcript", "method", "privacy")) | {"threat_models": ("owner", "server")}
        subject = Subject(**given, names=NAMES, attacked=run_of(models), canaries=coins)  # type: ignore[arg-type]
        found = measured(subject, {})
        assert [f.metric for f in found] == ["measured"]
        rows = [("owner", "own", math.inf, math.inf, "no noise"), ("server", "own", math.inf, math.inf, "no noise")]
        table = pd.DataFrame(rows, columns=["threat_model", "whose", "claimed", "provable", "why"])
        done = {"epsilon": Result(found, {"privacy": table})}
        said = replace(subject, before=done).claims("owner")
        assert (said["claimed"], said["provable"]) == ("none", "infinity: no noise")
        assert said["measured"].startswith("at least 1.82: ")
        assert replace(subject, before=done).claims("server")["measured"] == NOT_GUESSED
        assert measured(replace(subject, attacked=None), {}) == []
        assert "measured" not in replace(subject, canaries={}, before=done).claims("owner")


ONE = bounds_of({})[0]


def found_of(
    p: float | None, *, metric: str = "measured", method: str = "a", claimed: float | None = None
) -> dict[str, object]:
    mechanism = "Gaussian" if metric == "measured/gaussian" else ""
    values = {"metric": metric, "method": method, "mechanism": mechanism, "p_provable": p, "p_claimed": claimed}
    return asdict(ONE) | values | {"provable": 0.8, "claimed": 1.0}


class TestContradictions:
    def test_the_error_is_divided_among_all_that_could_be_said(self) -> None:
        alone = [found_of(0.04)]
        assert len(contradictions(alone)) == 1
        two = [found_of(0.04), found_of(0.5, metric="measured/gaussian")]
        assert contradictions(two) == []
        assert count_testable(two) == 2
        assert len(contradictions([found_of(0.024), two[1]])) == 1
        assert len(contradictions([*alone, found_of(None, method="b"), found_of(None, method="c")])) == 1

    def test_what_they_say(self) -> None:
        (above,) = contradictions([found_of(0.001, claimed=0.002)])
        assert "measured above provable: the code, the ledger or the proof is wrong" in above
        assert "any mechanism with epsilon 0.8, as is proven, 20 of 20 right guesses" in above
        (claim,) = contradictions([found_of(0.9, claimed=0.002, metric="measured/gaussian")])
        said = "the claim does not hold. Of a mechanism that is Gaussian with epsilon 1, as is claimed"
        assert f"measured above claimed: {said}" in claim

    def test_a_report_of_sound_methods_rarely_says_anything(self) -> None:
        """8 adversaries and tests with randomised response of just the epsilon that is proven: at most 41 of 500 reports."""
        rng, m, r, said = np.random.default_rng(0), 1000, 200, 0
        q = 1 / (1 + math.exp(-1.0))
        p = [one_run.p_value(correct=c, guesses=r, canaries=m, epsilon=1.0, delta=0.0) for c in range(r + 1)]
        for _ in range(500):
            said += bool(contradictions([found_of(p[c]) for c in rng.binomial(r, q, 8)]))
        assert said <= 41


class TestWhereItIsShown:
    @pytest.fixture
    def evidence(self):
        e = prompt_evidence("dpfpl", 0.4)
        sound = bounds_of({"prompt-user": Hypothesis(9.0, 8.0, trade_off.GAUSSIAN)})
        names = {name: e.findings[0][name] for name in NAMES}
        found = [*e.findings, *(asdict(replace(m, **names)) for m in sound)]
        json.dumps(found, allow_nan=False)
        return replace(e, findings=found)

    def page(self, evidence) -> str:
        return Reader(plain_page([evidence])).text

    def worse(self, evidence, p: float = 1e-4):
        """What is proven does not hold with this p-value, for any mechanism; nothing else is contradicted."""
        said = {"p_provable": 0.9, "p_claimed": 0.9, "ceiling": 10.0}
        more = {"measured": said | {"p_provable": p}, "measured/gaussian": said}
        return replace(evidence, findings=[f | more.get(f["metric"], {}) for f in evidence.findings])

    def test_on_the_page(self, evidence) -> None:
        text = self.page(evidence)
        assert "100 1 20 of 20 1.82 (1.82) 3.24 (3.24) n/a 8 9" in text
        assert "No bound here can contradict what is proven or claimed: even if every guess were right" in text
        assert "they would show an ε of 3.24" in text
        text = self.page(self.worse(evidence, 0.9))
        assert "None of the 2 bounds that could contradict what is proven or claimed does" in text
        assert "measured above provable: the code, the ledger or the proof is wrong" in self.page(self.worse(evidence))
        assert "if Gaussian" not in self.page(prompt_evidence("dpfpl", 0.4)), "without canaries"

    def test_in_the_terminal(self, evidence, capsys) -> None:
        show(self.worse(evidence).findings, None)
        said = " ".join(capsys.readouterr().out.split())
        assert "prompt-user · 100 canaries loss 20 of 20 1.82 (10) 3.24 (10) 8 9" in said
        assert "measured above provable" in said

    @pytest.mark.parametrize(
        ("gate", "crossed"),
        [("measured > 1.8", 1), ("measured > 1.9", 0), ("measured/gaussian >= 3", 1), ("prompt-user measured > 1", 1)],
    )
    def test_in_gates(self, gate, crossed, evidence) -> None:
        found = parse(gate).crossed(evidence.findings)
        assert len(found) == crossed
        assert all("guesses about 100 canaries are right" in line for line in found)

    @pytest.mark.parametrize(
        ("gate", "p", "crossed"),
        [
            ("measured > provable", 0.024, 1),
            ("measured > provable", 0.026, 0),  # of two bounds
            ("prompt-user measured > provable", 0.001, 1),
            ("measured/gaussian > provable", 0.001, 0),
            ("measured > claimed", 0.001, 0),
        ],
    )
    def test_a_gate_says_above_provable_where_the_report_does(self, gate, p, crossed, evidence) -> None:
        worse = self.worse(evidence, p).findings
        found = parse(gate).crossed(worse)
        assert len(found) == crossed
        assert len(contradictions(worse)) == (p <= 0.025)
        assert all(f"{gate}: " in line and "measured above provable" in line for line in found)

    def test_gates_about_what_is_provable_that_are_none(self, evidence) -> None:
        nothing = [f | {"p_provable": None} if f["metric"].startswith("measured") else f for f in evidence.findings]
        with pytest.raises(InputError, match="no finite epsilon is provable"):
            parse("measured > provable").crossed(nothing)
        with pytest.raises(InputError, match="there is no such row"):
            parse("server measured > claimed").crossed(nothing)
        for wrong in ("auroc > provable", "measured < provable", "measured >= claimed"):
            with pytest.raises(InputError, match="only measured, measured/gaussian, measured/messages can be > "):
                parse(wrong)

    @pytest.mark.parametrize(
        ("ask", "said"),
        [
            (lambda _: parse("measured.low > 1"), r"lower bound by itself; leave out \.low"),
            (lambda _: parse("measured > 1e7"), "between 0 and 1000000"),
            (lambda _: parse("measured > 1").check("prompts", [], 0), "there are no canaries; add --canaries"),
            (lambda _: parse("measured > 1").check("prompts", [], 10), "nothing is attacked; add --attack"),
            (lambda found: parse("server measured > 1").crossed(found), "there is no such row"),
        ],
    )
    def test_gates_that_cannot_be_answered(self, ask, said, evidence) -> None:
        with pytest.raises(InputError, match=said):
            ask(evidence.findings)


def test_targets_hold_all_canaries_and_are_all_clients_by_default() -> None:
    federation, natural = _federation(clients=3), functools.partial(Canaries, canary_kind="natural")
    found = insert(federation, natural(canaries=10), 0, holders=2)
    assert [len(c.canaries) for c in found.clients] == [5, 5, 0] == [*shares(10, 2), 0]
    assert len(found.clients[2].records) == 12
    one, other = insert(federation, natural(canaries=7), 0), insert(federation, natural(canaries=7), 0, holders=3)
    assert [len(c.canaries) for c in one.clients] == [3, 2, 2] == shares(7, 3)
    assert [c.records for c in one.clients] == [c.records for c in other.clients]
    with pytest.raises(InputError, match="valid here are 0 to 8"):
        insert(federation, Canaries(canaries=9), 0, holders=1)


def of_messages(std: float) -> tuple[ScoredRun, dict[int, dict[str, bool]]]:
    """A server that saw two messages of each of three clients, with 10 members, 10 others and 40 canaries each."""
    rng, coins = np.random.default_rng(0), coins_of(3, 40)
    models, truth, n = [], {}, 60
    for k, coin in coins.items():
        names = [f"{k}-{i}" for i in range(20)]
        used = np.array([*([1.0] * 10 + [0.0] * 10), *coin.values()])
        truth |= dict(zip(names, used[:20] > 0, strict=True))
        messages = []
        for _ in range(2):
            rows = rng.standard_normal((n, n)) / math.sqrt(n) / 100
            sent = rows @ used + std * rng.standard_normal(n)
            messages.append(Message(rows, sent, n, std**2 * rng.chisquare(500), 500, 1 / 100))
        scores = pd.DataFrame({"whitebox": rng.standard_normal(n)}, [*names, *coin])
        models.append(ScoredModel("server", "rebuilt", k, 2, scores, messages=functools.partial(list, messages)))
    run = run_of(models, {"loss": ("loss",), "whitebox": ("whitebox",)})
    return replace(run, truth=truth, records={k: [f"{k}-{i}" for i in range(20)] for k in coins}), coins


class TestFromMessages:
    MU = trade_off.GAUSSIAN.mu(8.0, DELTA)
    STD = math.sqrt(2) / 100 / MU  # of noise that proves epsilon 8

    HYPOTHESIS = Hypothesis(8.0, 8.0, trade_off.GAUSSIAN, STD)

    def bound(self, std: float, hypothesis: Hypothesis = HYPOTHESIS, metric: str = "measured/messages") -> Any:
        run, coins = of_messages(std)
        found = bounds(run, coins, names=NAMES, delta=DELTA, hypotheses={"server": hypothesis})
        return next(f for f in found if f.metric == metric)

    def test_a_bound_near_the_truth_and_its_sentence(self) -> None:
        one = self.bound(self.STD)
        assert 3 < one.value < 9.5
        assert (one.guesses, one.correct, one.attack, one.canaries) == (None, None, "whitebox", 120)
        assert one.expected == pytest.approx(6.5, abs=1)
        assert one.p_provable > 0.01
        assert "by a regression of messages on the coins of 120 canaries: epsilon is at least" in one.sentence
        assert "of the ledger's" in one.sentence

    @pytest.mark.parametrize(
        ("share", "means"),
        [
            (1.0, ""),
            (0.4, "hold more of a record than clipping allows"),
            (2.5, "are not those at the broadcast, or less is in"),
        ],
    )
    def test_how_much_of_a_record_is_in_them(self, share: float, means: str) -> None:
        """As much as the ledger's `share` says, or what it means where it is not; above 1 in any case."""
        length = {0.4: 2.0}.get(share, 1.0)  # of the gradients of the steps, in those that are told
        run, coins = of_messages(self.STD / 10)
        for model in run.models:
            if model.messages is not None:
                shorter = [replace(m, gradients=m.gradients / length, longest=m.longest) for m in model.messages()]
                run = replace(
                    run, models=[replace(m, messages=lambda s=shorter: s) if m is model else m for m in run.models]
                )
        found = bounds(
            run, coins, names=NAMES, delta=DELTA, hypotheses={"server": replace(self.HYPOTHESIS, share=share)}
        )
        one = next(f for f in found if f.metric == "measured/weight")
        assert one.value == pytest.approx(length, rel=0.15)
        assert one.low < one.value < one.high
        assert f"where {share:.3g} is expected" in one.sentence
        assert means in one.sentence
        assert (one.sentence.count(":") == 2) == bool(means)

    def test_a_tenth_of_the_noise_contradicts_what_is_proven_and_names_the_noise(self) -> None:
        one = self.bound(self.STD / 10)
        assert one.value > 100
        assert one.noise / self.STD == pytest.approx(0.1, rel=0.2)
        (said,) = contradictions([asdict(one)])
        assert "coins as plain in messages have a probability" in said

    def test_a_claim_from_elsewhere_is_refuted_without_a_ledger(self) -> None:
        """Of a run trained elsewhere nobody knows the noise; what it claims is compared."""
        one = self.bound(self.STD / 10, Hypothesis(claimed=8.0))
        assert (one.ledger_noise, one.expected) == (None, None)
        assert one.p_claimed < 1e-6

    def test_is_said_first_and_needs_messages(self) -> None:
        run, coins = of_messages(self.STD)
        blind = replace(run, models=[replace(m, messages=None) for m in run.models])
        said = {"server": self.HYPOTHESIS}
        found, without = (bounds(one, coins, names=NAMES, delta=DELTA, hypotheses=said) for one in (run, blind))
        assert [f.metric for f in found] == ["measured", "measured/gaussian", "measured/messages", "measured/weight"]
        assert words(found, "server").startswith(f"at least {found[2].value:.3g}: from the messages")
        assert [f.metric for f in without] == ["measured", "measured/gaussian"]


# with all of the noise; quick: a tenth of it, and both of made-up messages in TestFromMessages
@pytest.mark.parametrize("factor", [pytest.param(1.0, marks=pytest.mark.slow), 0.1])
def test_through_the_whole_pipeline(without_pages: None, tmp_path: Path, factor: float) -> None:
    """The preset of canaries, smaller, with the noise of its ledger, which proves epsilon 8, and with a tenth of it."""
    size = {"canaries": 120, "shots": 10} if factor == 1 else {"canaries": 60, "shots": 5}
    with mock.patch(
        "fedaudit.trainers.protection.add_noise", lambda mean, std, own: add_noise(mean, factor * std, own)
    ):
        audit = fedaudit.audit(
            preset="canaries", clients=2, epsilon=8, threads=1, quiet=True, out=str(tmp_path), **size
        )
    (row,) = audit.findings.query("metric == 'measured/messages'").itertuples()
    assert row.noise / row.ledger_noise == pytest.approx(factor, rel=0.15)
    (weight,) = audit.findings.query("metric == 'measured/weight'").itertuples()
    assert weight.value == pytest.approx(1, abs=0.35)
    assert (row.value < 11) if factor == 1 else (row.value > 40)
