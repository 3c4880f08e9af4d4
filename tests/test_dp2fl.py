"""DP2FL: aggregation weights against a slow transcription of the equations, every degenerate case, a round by hand."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.attacks.attacked_models import Target, Wanted
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.attacks.questions.classes import ClassQuestions
from fedaudit.attacks.threats import LacksCapability, require
from fedaudit.audits.comparisons import comparisons
from fedaudit.command.cli import read_command
from fedaudit.contracts import maple_toy
from fedaudit.contracts.in_process import message_answers
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import permitted
from fedaudit.pipeline.methods import method_of
from fedaudit.privacy.ledger import Ledger
from fedaudit.terms.populations import MEMBERS_GIVEN_AWAY, MEMBERS_THAT_TRAINED
from fedaudit.trainers.base import Participation, Schedule, State
from fedaudit.trainers.dp2fl import DP2FL, Params, global_weights, local_weights
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.maple import DualStep, Settings
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests import prompt_toy
from tests.prompt_scores import changed, made_up
from tests.toy import trained

ALPHA, BETA = 1.2, 0.2
METHOD = DP2FL(Params())
ALL = {"Pt", "Pd", *METHOD.by_client}


def sets(before: float, loss: Sequence[float]) -> tuple[list[int], list[int]]:
    """Eqs. 6 and 7: positive and retained clients."""
    positive = [i for i, own in enumerate(loss) if own < before]
    retained = [i for i, own in enumerate(loss) if before <= own < ALPHA * before]
    return positive, retained


def slow_weights(before: float, loss: Sequence[float], distance: Sequence[float]) -> list[float]:
    """Eqs. 6 to 14 for one client, line by line, with the outcomes that trainers/dp2fl.py decides."""
    w = [(before - own) / d if d else 0.0 for own, d in zip(loss, distance, strict=True)]  # eq. 11
    positive, retained = sets(before, loss)
    found = [0.0] * len(loss)
    if not positive:
        total = sum(w[j] for j in retained)
        for i in retained:
            if len(retained) == 1:
                found[i] = BETA
            elif total == 0:
                found[i] = BETA / len(retained)
            else:
                found[i] = BETA * (total - w[i]) / (total * (len(retained) - 1))
        return found
    largest = max([abs(w[i]) for i in retained], default=0.0)
    gamma = min(w[i] for i in positive) / largest / 3 if largest else 0.0
    raw = {i: w[i] for i in positive} | {i: gamma * abs(w[i]) for i in retained}
    total = sum(raw.values())
    for i, weight in raw.items():
        found[i] = weight / total if total else 0.0
    return found


def fast(before: Sequence[float], loss: Sequence[Sequence[float]], distance: Sequence[Sequence[float]]) -> Tensor:
    columns = (torch.tensor(rows, dtype=torch.float64).T for rows in (loss, distance))
    return local_weights(torch.tensor(before, dtype=torch.float64), *columns, alpha=ALPHA, beta=BETA)


@pytest.mark.parametrize("seed", range(5))
def test_global_weights_are_eq_5(seed: int) -> None:
    loss = np.random.default_rng(seed).gamma(1.0, size=(7, 7))
    everything = sum(map(sum, loss))
    expected = [(everything - sum(loss[k])) / (everything * 6) for k in range(7)]
    found = global_weights(torch.from_numpy(loss).sum(1))
    np.testing.assert_allclose(found, expected)
    assert found.sum() == pytest.approx(1)
    assert found.argmax() == loss.sum(1).argmin()


def test_global_weights_of_one_client_and_of_no_loss() -> None:
    assert global_weights(torch.tensor([3.0])).tolist() == [1]
    assert global_weights(torch.tensor([0.0])).tolist() == [1]
    assert global_weights(torch.zeros(4)).tolist() == [0.25] * 4
    assert global_weights(torch.full((4,), 2.0)).tolist() == [0.25] * 4


def test_local_weights_are_the_equations() -> None:
    """Losses near what they are compared with, so that every set occurs; each weighs as the equations say."""
    kinds = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        K = int(rng.integers(1, 9))
        before = rng.gamma(2.0, size=K)
        loss = before[:, None] * rng.uniform(0.5 + seed % 3 / 4, 1.6, size=(K, K))  # [k, i]; for some nobody is better
        distance = rng.gamma(2.0, size=(K, K)) * (rng.random((K, K)) < 0.9)
        found = fast(before.tolist(), loss.tolist(), distance.tolist()).numpy()
        for k in range(K):
            expected = slow_weights(before[k], loss[k].tolist(), distance[k].tolist())
            np.testing.assert_allclose(found[:, k], expected, atol=1e-12)
            positive, retained = sets(before[k], loss[k].tolist())
            kinds.add((min(len(positive), 2), min(len(retained), 2)))
            assert (found[:, k] >= 0).all()
            moving = any(distance[k][i] for i in positive)
            assert found[:, k].sum() == pytest.approx(float(moving) if positive else BETA if retained else 0.0)
            if moving and retained:
                assert max(found[i, k] for i in retained) <= min(found[i, k] for i in positive) / 3 + 1e-12
    assert kinds == {(p, r) for p in range(3) for r in range(3)}


@pytest.mark.parametrize(
    ("before", "loss", "distance", "expected"),
    [
        # two better by 0.4 and 0.2, one worse by 0.1, one beyond alpha: gamma = 1/3 (0.2 / 0.1), raw .4, .2, .0667
        (1.0, [0.6, 0.8, 1.1, 1.3], None, [0.6, 0.3, 0.1, 0.0]),
        (1.0, [0.6, 0.8], [2.0, 1.0], [0.5, 0.5]),  # distance divides
        (1.0, [1.1, 5.0], None, [BETA, 0]),  # who is retained alone weighs beta
        (1.0, [1.05, 1.15, 1.1, 9.0], None, [BETA * w / 0.6 for w in (0.25, 0.15, 0.2, 0)]),  # and several so together
        (1.0, [1.0] * 4, None, [BETA / 4] * 4),  # none is better: weights of eq. 11 are 0, eq. 12 would divide by them
        (1.0, [0.6, 1.0, 1.19], None, [0.75, 0.0, 0.25]),  # as printed, the worst would weigh everything
        (1.0, [1.1] * 4, None, [BETA / 4] * 4),
        (1.0, [0.5, 1.0], None, [1.0, 0.0]),  # eq. 14 would divide by 0
        (1.0, [1.2, 3.0], None, [0, 0]),  # 1.2 is discarded: eq. 8 has the equal sign
        (0.0, [0.0, 0.5], None, [0, 0]),  # nothing is below alpha times nothing
        (1.0, [0.5], [0.0], [0]),  # equal prompts weigh nothing
        (1.0, [0.5, 0.8, 1.1], [0.0, 1.0, 1.0], [0, 1, 0]),
        (1.0, [1.1], [0.0], [BETA]),  # of nowhere to go
        (1.0, [0.4], None, [1]),
        (1.0, [2.0], None, [0]),
    ],
)
def test_by_hand(before: float, loss: list[float], distance: list[float] | None, expected: list[float]) -> None:
    far = distance or [1.0] * len(loss)
    assert fast([before], [loss], [far])[:, 0].tolist() == pytest.approx(expected)
    assert slow_weights(before, loss, far) == pytest.approx(expected)


def test_baselines_of_soft_prompts_train_in_one_run() -> None:
    """By the learner that can train them all, with its batch and epochs, and without noise unless it is asked for."""
    plan = read_command(["--method", "dp2fl,local,fedprox,pfedme"]).plan
    assert (plan.learner, plan.task) == ("maple", "fewshots")
    assert list(plan.methods) == ["dp2fl", "local", "fedprox", "pfedme"]
    assert {cell.variant.privacy.epsilon for cell in plan.cells[1:]} == {math.inf}
    assert method_of(plan.cells[1]).settings == Settings()
    noised = read_command(["--method", "dp2fl,fedprox", "--epsilon", "1"]).plan
    assert list(noised.methods) == ["dp2fl", "fedprox:epsilon=none", "fedprox:epsilon=1"]
    assert read_command(["--method", "local,fedprox", "--task", "fewshots"]).plan.learner == "prompts"


@pytest.mark.parametrize(
    ("words", "shadows"), [("dp2fl", 30), ("dp2fl,local", 30), ("local", 50), ("dp2fl --shadows 8", 8)]
)
def test_dual_prompts_have_fewer_shadow_models(words: str, shadows: int) -> None:
    assert read_command(f"--attack loss,lira --method {words}".split()).plan.adversary.shadows == shadows


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--method dp2fl,local,fedavg", "these train different things and cannot share one run"),
        ("--method dp2fl --attack decompose", "does not work on dual prompts, whose messages"),
        ("--method dp2fl --epsilon 1", "--epsilon"),
    ],
)
def test_what_dual_prompts_cannot_do_is_said(words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_command(words.split())


@pytest.mark.parametrize("n", [1, 2, 3, 10, 57])
def test_a_list_is_divided_once_and_for_all(n: int) -> None:
    records = [f"r{i}" for i in range(n)]
    training, held_back = METHOD.divided(records, 3, 0)
    assert sorted(training + held_back, key=records.index) == records
    assert len(held_back) == (0 if n == 1 else max(1, round(0.2 * n)))
    assert METHOD.divided(records, 3, 0) == (training, held_back)
    assert n < 4 or METHOD.divided(records, 4, 0) != (training, held_back)
    used = METHOD.messages.used_records(records, client=3, seed=0, rounds=[1], settings=Settings(local_epochs=1))
    assert used <= set(training)
    assert len(used) == len(training) - (len(training) % 4 if n > 4 else 0)  # what fills no batch of four waits
    assert METHOD.messages.used_records(records, client=3, seed=0, rounds=[], settings=Settings()) == set()
    assert METHOD.messages.shared_records(records, client=3, seed=0) == set(held_back)
    assert prompt_toy.made("fedprox", {}).messages.shared_records(records, client=3, seed=0) == set()


def run(path: Any, schedule: Schedule) -> Transcript:
    world, learner = prompt_toy.federation(), maple_toy.learner()
    bench = Bench(learner, world.training, world.test)
    own = [[world.labels[t] in (k % 5, (k + 1) % 5) for t in world.test] for k in range(3)]
    return trained(path, METHOD, schedule, bench, evaluation=Recognition(own))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return run(tmp_path_factory.mktemp("whole"), Schedule(3, 3, per_round=3, seed=1))


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return run(tmp_path_factory.mktemp("partly"), Schedule(4, 3, per_round=2, seed=3))


def test_a_run_is_the_paper_s_algorithm(whole: Transcript) -> None:
    """Every aggregate against a slow transcription from what clients sent, losses by one model and client at a time."""
    seen, learner, world = whole, maple_toy.learner(), prompt_toy.federation()
    own = {k: seen.broadcast(0)["Pd"] for k in range(3)}
    divided = [METHOD.divided(ids, k, 1) for k, ids in enumerate(world.training)]

    def lost(Pt: Tensor, Pd: Tensor, k: int) -> float:
        logs = learner.log_probs(METHOD, [{"Pt": Pt, "Pd": Pd}], divided[k][1])[0]
        return float(-np.mean(logs[np.arange(len(logs)), learner.labels(divided[k][1]).numpy()]))

    for r in range(3):
        server, sent = seen.broadcast(r), seen.uploads(r)
        before = [lost(server["Pt"], own[k], k) for k in range(3)]
        for k in range(3):
            assert float(sent[k]["loss"]) == pytest.approx(before[k], abs=1e-5)
            start = {"Pt": server["Pt"], "Pd": own[k]}
            client = Participation(k, r, 1, world.training[k], learner, tuple(range(r)))
            (again,) = learner.work(METHOD, [start], [{}], [client])
            torch.testing.assert_close(again.upload["Pd"], sent[k]["Pd"], atol=1e-5, rtol=1e-4)
        loss = [[lost(sent[i]["Pt"], sent[i]["Pd"], k) for k in range(3)] for i in range(3)]
        total = sum(map(sum, loss))
        w_t = [(total - sum(loss[i])) / (2 * total) for i in range(3)]
        for name in ("Pt", "Pd"):
            expected = sum(w * sent[i][name] for i, w in enumerate(w_t))
            torch.testing.assert_close(seen.broadcast(r + 1)[name], expected, atol=1e-5, rtol=1e-4)
        for k in range(3):
            distance = [float((sent[i]["Pd"] - own[k]).norm()) for i in range(3)]
            w_d = slow_weights(before[k], [loss[i][k] for i in range(3)], distance)
            own[k] = own[k] + sum(w * (sent[i]["Pd"] - own[k]) for i, w in enumerate(w_d))
            model = seen.personal(r, k)
            torch.testing.assert_close(model["Pd"], own[k], atol=1e-5, rtol=1e-4)
            assert torch.equal(model["Pt"], seen.broadcast(r + 1)["Pt"])


def test_whose_model_a_state_is(whole: Transcript) -> None:
    last, sent = whole.broadcast(3), whole.upload(2, 2)
    trained = whole.own_model(2, 2)
    assert all(torch.equal(trained[name], sent[name]) for name in ("Pt", "Pd"))  # the owner holds what it trained
    assert torch.equal(whole.released(2)["Pd"], last["personal"][2])
    assert torch.equal(METHOD.model(last)["Pd"], last["Pd"])
    assert torch.equal(last["trained"][2], sent["Pd"])  # all clients are sent all data prompts


def test_validation_records_are_in_the_transcript(whole: Transcript) -> None:
    """With the first message, and their bytes: up once, down to the two other clients; data prompts to all others."""
    seen, world = whole, prompt_toy.federation()
    held_back = {str(k): METHOD.divided(ids, k, 1)[1] for k, ids in enumerate(world.training)}
    picture = 3 * 32 * 32
    pictures = picture * sum(map(len, held_back.values()))
    assert maple_toy.learner().clip.picture_bytes == picture
    for r in range(3):
        about = seen.round(r)
        assert {k: u["facts"]["validation"] for k, u in about["uploads"].items()} == held_back
        first = pictures if r == 0 else 0
        prompts = {n: t.nbytes for n, t in seen.upload(r, 0).items()}
        assert about["bytes_up"] == 3 * sum(prompts.values()) + first
        assert about["bytes_down"] == 3 * (prompts["Pt"] + prompts["Pd"]) + 2 * (first + 3 * prompts["Pd"])
    assert seen.round(0)["revealed"] == {"validation": held_back}
    assert "revealed" not in seen.round(1)


def test_clients_may_sit_out(partly: Transcript) -> None:
    """Two of three a round: who was away keeps its data prompt, who was never there starts from the global model."""
    there: set[int] = set()
    for r in range(4):
        server, after = partly.broadcast(r), partly.broadcast(r + 1)
        for k in partly.cohort(r):
            received = METHOD.download(server, Participation(k, r, 3, (), None, (0,) if k in there else ()))
            assert torch.equal(received["Pd"], server["personal"][k] if k in there else server["Pd"])
        for k in there - set(partly.cohort(r)):
            assert torch.equal(after["personal"][k], server["personal"][k])
        there |= set(partly.cohort(r))
    assert there == {0, 1, 2}


def test_a_peer_holds_every_data_prompt_as_it_was_trained(whole: Transcript) -> None:
    last = whole.broadcast(3)

    def held(threat_model: str, client: int) -> State:
        target, view = Target(client, ["0-0"], []), View(whole, threat_model)
        (one,) = ClassQuestions().collect_models(view, METHOD, target, Wanted(), (), ())
        return one.read()

    for k in range(3):
        model = held("peer", k)
        assert torch.equal(model["Pd"], whole.upload(2, k)["Pd"])
        assert torch.equal(model["Pt"], last["Pt"])
    assert torch.equal(held("released-model", 0)["Pd"], last["Pd"])
    words = r"does not see others' parts \(these do: peer, server, active-server\)"
    for other in ("released-model", "owner", "prompt-user"):
        with pytest.raises(LacksCapability, match=words):
            View(whole, other).others_part(METHOD, 0)
    for capability in ("uploads", "private states", "personal prompts"):
        with pytest.raises(LacksCapability):
            require("peer", capability)


@pytest.mark.parametrize(
    ("threat_model", "seen"),
    [("released-model", {"Pt", "Pd"}), ("owner", {"Pt", "Pd"}), ("peer", ALL), ("server", ALL)],
)
def test_data_prompts_are_shown_to_those_alone_who_are_sent_them(whole: Any, threat_model: str, seen: Any) -> None:
    with pytest.raises(LacksCapability, match="does not see broadcasts"):
        View(whole, "prompt-user").broadcast(1)
    view = View(whole, threat_model)
    for r in (1, 2):
        found, last = view.broadcast(r), whole.broadcast(r)
        assert found.keys() == seen
        assert all(torch.equal(tensor, last[name]) for name, tensor in found.items())
        model = METHOD.model(found)
        assert all(torch.equal(model[name], last[name]) for name in ("Pt", "Pd"))
    assert view.broadcast(0).keys() == view.public.keys() == {"Pt", "Pd"}


def test_only_methods_that_pass_parts_on_have_peers() -> None:
    plan = read_command(["--method", "dp2fl,fedprox", "--attack", "loss"]).plan
    found = {cell.method: permitted.refusal_reasons(cell, "peer")["loss"] for cell in plan.cells}
    assert found == {"dp2fl": None, "fedprox": "this method passes no part of a client on to others"}
    with pytest.raises(InputError, match="peer sees nothing here"):
        read_command(["--method", "promptfl", "--attack", "loss", "--fail-if", "peer leak"])


def test_everybody_s_ledger_is_unbounded() -> None:
    ledger = Ledger(steps=(), exposures=(), shared=METHOD.shared)
    for threat_model in ("released-model", "peer", "server", "owner", "prompt-user"):
        for whose in ("own", "other"):
            assert "validation records" in ledger.view(threat_model, whose=whose).clear


def test_the_server_rebuilds_every_client_as_it_was_trained(partly: Transcript) -> None:
    messages = ReplayedMessages(View(partly, "server"), METHOD, maple_toy.learner())
    for k in range(3):
        found, own = messages.rebuilt(k).state, partly.own_model(partly.participations(k)[-1], k)
        assert found.keys() == own.keys() == {"Pt", "Pd"}
        assert all(torch.equal(tensor, own[name]) for name, tensor in found.items())


def test_losses_and_cosines_equal_a_loop_over_rounds_clients_and_records(partly: Transcript) -> None:
    """A record's gradient is that of a batch of it alone, where the target began: at its own mixture if it has one."""
    seen, learner, world = partly, maple_toy.learner(), prompt_toy.federation()
    target, records = 1, [world.training[1][0], world.training[0][3], world.test[0]]
    found = message_answers(ReplayedMessages(View(seen, "server"), METHOD, learner), target, records, [0, 1, 2, 3])
    before: list[tuple[int, ...]] = []
    for r in range(4):
        server, sent = seen.broadcast(r), seen.uploads(r)
        own = {k: server["personal"][k] if seen.participations(k, r) else server["Pd"] for k in sent}
        began = {k: {"Pt": server["Pt"], "Pd": own[k]} for k in sent}
        away = [k for k in range(3) if k not in sent]
        assert np.isnan(found.loss[r, away]).all()
        assert np.isnan(found.cosine[r, away if target in sent else slice(None)]).all()
        for k, (i, record) in itertools.product(sent, enumerate(records)):
            loss = learner.losses(sent[k]["Pt"][None], sent[k]["Pd"][None], [([record], 1)])
            assert found.loss[r, k, i] == pytest.approx(float(loss), abs=1e-5)
            if target in sent:
                start = began[target]
                up = DualStep(learner, [[record]], [frozenset()]).gradients(start["Pt"][None], start["Pd"][None])
                down = -torch.cat([part.flatten() for part in up]).double()
                moved = torch.cat([(sent[k][n] - began[k][n]).flatten() for n in ("Pt", "Pd")]).double()
                expected = float(torch.cosine_similarity(moved, down, dim=0))
                assert found.cosine[r, k, i] == pytest.approx(expected, abs=1e-5)
        before.append(tuple(seen.participations(target, r)))
    assert {len(rounds) for rounds in before} >= {0, 1}
    assert np.nanmax(found.cosine) - np.nanmin(found.cosine) > 0.1


def test_attacks_on_gradients_and_messages_work_on_dual_prompts() -> None:
    attacks = "cosine,slope,gradnorm,fedmia,source,outputfree"
    for cell in read_command(["--method", "dp2fl,fedprox", "--attack", attacks]).plan.cells:
        assert permitted.refusal_reasons(cell, "server") == dict.fromkeys(attacks.split(","))


def test_records_given_to_others_are_a_row_of_their_own() -> None:
    """Beside all members, against the same held-out records; who was given is no coin of ours, so without a verdict."""
    whole = made_up(0, leak=0.5)
    members = {k: [r for r in own if whole.truth[r]] for k, own in whole.records.items()}
    given = {k: own[:3] for k, own in members.items()}
    found = comparisons(changed(whole, shared=given, unused=given))
    rows = {c.population: c for c in found if c.nonmembers == "held-out"}
    own, trained, shared = (rows[name] for name in ("own members", MEMBERS_THAT_TRAINED, MEMBERS_GIVEN_AWAY))
    assert set(shared.record[shared.member]) == {r for some in given.values() for r in some}
    assert set(trained.record[trained.member]) == {r for k in members for r in members[k][3:]}
    assert set(shared.record[~shared.member]) == set(own.record[~own.member]) == set(trained.record[~trained.member])
    assert (shared.descriptive, shared.coin) == (True, False)
    assert MEMBERS_GIVEN_AWAY not in {c.population for c in comparisons(whole)}
