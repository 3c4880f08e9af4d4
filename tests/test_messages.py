"""What a server makes of the messages of prompt methods: clients rebuilt, losses and cosines, against the truth and against slow loops."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.attacks.answers import Floats
from fedaudit.attacks.base import View
from fedaudit.attacks.gradients import gradient_norms
from fedaudit.attacks.messages.prompts import ReplayedMessages, losses
from fedaudit.attacks.questions.classes import ClassQuestions
from fedaudit.attacks.threats import LacksCapability
from fedaudit.audits.tables.coverage import coverage_table
from fedaudit.contracts.in_process import message_answers
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers import dpfpl
from fedaudit.trainers.base import Schedule, State
from fedaudit.trainers.prompts import Learner, PromptMethod
from fedaudit.trainers.transcript import Transcript
from tests import prompt_oracle
from tests.prompt_toy import SCHEDULE, SETTINGS, close, federation, made, named, run, with_noise

FEW = replace(SCHEDULE, rounds=6, per_round=2)  # somebody is away in every round
NOISY = Privacy(epsilon=1, clip_norm=0.5)
EXACT: list[tuple[str, dict[str, Any]]] = [
    ("promptfl", {}),
    ("fedotp", {"match": "sum"}),
    ("fedpgp", {"rank": 2, "mu": 0.0}),
    ("fedpgp", {"rank": 2, "mu": 1.0}),
    ("dpfpl", {"rank": 0}),
]
Trained = Callable[..., tuple[PromptMethod, Transcript]]

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A method and its run, each trained once; `noisy` with clipping and noise."""

    @functools.cache
    def once(name: str, params: str, schedule: Schedule, noisy: bool) -> tuple[PromptMethod, Transcript]:
        method = made(name, json.loads(params), schedule=schedule)
        if noisy:
            method = with_noise(method, NOISY, dict.fromkeys((*method.local, *method.shared), 0.05))
        return method, run(tmp_path_factory.mktemp("run"), method, federation(), schedule)

    return lambda name, params, schedule=FEW, noisy=False: once(name, json.dumps(params), schedule, noisy)


def messages_of(method: PromptMethod, transcript: Transcript) -> ReplayedMessages:
    return ReplayedMessages(View(transcript, "server"), method, federation().learner())


def relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


@pytest.mark.parametrize(
    ("name", "params", "schedule"), [*((*case, FEW) for case in EXACT), (*EXACT[1], SCHEDULE)], ids=named
)
def test_without_noise_clients_are_rebuilt(trained: Trained, name: str, params: Any, schedule: Schedule) -> None:
    """The last prompts, and the own parts before and after every round."""
    method, transcript = trained(name, params, schedule)
    messages, owner = messages_of(method, transcript), View(transcript, "owner")
    start = method.model(transcript.broadcast(0))["prompt"]
    for k in range(3):
        found, true = messages.rebuilt(k).state, owner.private(k)
        assert found.keys() == true.keys() == {"prompt"}
        close(found["prompt"], true["prompt"], atol=1e-6)
        assert relative(start, true["prompt"]) > 0.05
    for r, exchange in messages.exchanges.items():
        assert exchange.clients == transcript.cohort(r)
        for i, k in enumerate(exchange.clients):
            earlier = transcript.participations(k, before=r)
            began = transcript.private(earlier[-1], k) if earlier else transcript.broadcast(0)
            for tensor in method.local or (("p_L",) if name == "dpfpl" else ()):
                close(exchange.own[tensor][i], began[tensor], atol=1e-6)
                close(exchange.after[tensor][i], transcript.private(r, k)[tensor], atol=1e-6)


def test_of_dpfpl_the_server_takes_the_expected_step(trained: Trained) -> None:
    """One replayed round is the mean over the client's chance: over 1,000 draws of Q, each step computed by itself."""
    method, transcript = trained("dpfpl", {"rank": 2}, SCHEDULE)
    exchange = messages_of(method, transcript).exchanges[0]
    p_L, G = transcript.broadcast(0)["p_L"], exchange.upload["gradient"]
    generator = torch.Generator().manual_seed(0)
    steps = []
    for _ in range(1000):
        u, v = dpfpl.power_iteration(p_L, torch.randn(p_L.shape[-1], 2, generator=generator))
        steps.append(dpfpl.full_gradient(u, v, G @ v.mT, u.mT @ G))
    spread, mean = torch.stack(steps).std(0), torch.stack(steps).mean(0)
    found = (p_L - exchange.after["p_L"]) / SETTINGS.local_rate
    off = (found - mean).norm() / spread.norm()
    assert 0.5 < float(off) * math.sqrt(dpfpl.GUESSES) < 2


@pytest.mark.parametrize("residual", [True, False])
def test_dpfpl_is_rebuilt_approximately(trained: Trained, monkeypatch: pytest.MonkeyPatch, residual: bool) -> None:
    """Closer than a guess of the client's chance comes, and than the public start is."""
    schedule = replace(SCHEDULE, rounds=15)
    method, transcript = trained("dpfpl", {"rank": 2, "residual": residual}, schedule)

    last, start = schedule.rounds - 1, transcript.broadcast(0)["p_L"]
    true = [transcript.private(last, k)["p_L"] for k in range(3)]

    def off() -> list[float]:
        return [*map(relative, messages_of(method, transcript).exchanges[last].after["p_L"], true)]

    own, messages = off(), messages_of(method, transcript)
    assert max(own) < 0.6
    assert all(mine < relative(start, part) for mine, part in zip(own, true, strict=True))
    for k in range(3):
        found, again = (one.rebuilt(k).state["prompt"] for one in (messages, messages_of(method, transcript)))
        assert relative(found, transcript.own_model(last, k)["prompt"]) < 0.4
        assert torch.equal(found, again)
    monkeypatch.setattr(dpfpl, "GUESSES", 1)
    assert np.mean(own) < np.mean(off())


def test_with_noise_the_replay_is_that_of_a_run_without_it(trained: Trained) -> None:
    """p_L by hand from the uploads; the client's own has noise in it."""
    method, transcript = trained("fedotp", {}, noisy=True)
    messages = messages_of(method, transcript)
    for k in range(3):
        p_L = transcript.broadcast(0)["p_L"]
        for r in (rounds := transcript.participations(k)):
            p_L = p_L - SETTINGS.local_rate * transcript.upload(r, k)["gradient"]
        found, true = messages.rebuilt(k).state, transcript.own_model(rounds[-1], k)
        close(found["prompt"], transcript.broadcast(rounds[-1] + 1)["p_G"] + p_L, atol=1e-6)
        assert relative(found["prompt"], true["prompt"]) > 0.05


def test_of_transport_the_local_prompt_stays_at_its_start(trained: Trained) -> None:
    method, transcript = trained("fedotp", {"match": "ot"}, SCHEDULE)
    found = messages_of(method, transcript).rebuilt(1).state
    assert torch.equal(found["prompt"][0], transcript.broadcast(SCHEDULE.rounds)["p_G"])
    assert torch.equal(found["prompt"][1], transcript.broadcast(0)["p_L"])


@pytest.mark.parametrize("name", ["local", "zeroshot"])
def test_who_sends_nothing_cannot_be_rebuilt_and_only_the_server_has_messages(trained: Trained, name: str) -> None:
    method, transcript = trained(name, {})
    messages = messages_of(method, transcript)
    assert messages.exchanges == {}
    assert messages.rebuilt(0).state is None
    seen = message_answers(messages, 0, federation().training[0][:2], [0, 1])
    for found in (seen.loss, seen.cosine):
        assert found.shape == (2, 3, 2)
        assert np.isnan(found).all()
    with pytest.raises(LacksCapability, match="owner does not see sums of uploads"):
        ReplayedMessages(View(transcript, "owner"), method, federation().learner())


def test_coverage_says_who_can_be_rebuilt_and_how_far_from_the_truth(trained: Trained) -> None:
    """Exact without noise, off where random factors are the client's own; of training's change, not of the prompt."""
    for name, params, exact in (("fedotp", {}, True), ("dpfpl", {"rank": 2}, False)):
        method, transcript = trained(name, params)
        messages = messages_of(method, transcript)
        table = coverage_table([messages.rebuilt(k) for k in range(3)], transcript)
        assert table.way.tolist() == ["rebuilt"] * 3
        assert table.reconstructable.all()
        assert (table.stale_rounds == 0).all()
        assert (table.distance < 1e-4).all() if exact else table.distance.between(0.01, 1).all()
        found, true = messages.rebuilt(1).state, transcript.own_model(transcript.participations(1)[-1], 1)
        start = method.model(transcript.broadcast(0))["prompt"]
        by_hand = relative(found["prompt"] - start, true["prompt"] - start)
        assert table.distance[1] == pytest.approx(by_hand, rel=1e-4, abs=1e-9)
    schedule = Schedule(rounds=1, clients=3, per_round=2, seed=1)
    method, transcript = trained("fedotp", {}, schedule)
    few = messages_of(method, transcript)
    table = coverage_table([few.rebuilt(k) for k in range(3)], transcript)
    assert table.reconstructable.sum() == 2
    assert set(table.why) == {"", "never sent anything"}
    assert [k for k in range(3) if few.rebuilt(k).state is not None] == transcript.cohort(0)


def stepped(method: PromptMethod, transcript: Transcript, r: int, k: int) -> Tensor:
    """A client's prompt right after its own step, from what it really held."""
    server, sent, kept = transcript.broadcast(r), transcript.upload(r, k), transcript.private(r, k)
    p_G = sent["p_G"] if "p_G" in sent else server["p_G"] - SETTINGS.global_rate * sent["gradient"]
    return method.prompt(server | kept | {"p_G": p_G})


def began(method: PromptMethod, transcript: Transcript, r: int, k: int) -> Tensor:
    """The prompt that a client started a round with."""
    earlier = transcript.participations(k, before=r)
    own = transcript._part(earlier[-1], f"private/{k}") if earlier else {}
    return method.prompt(transcript.broadcast(0) | own | {"p_G": transcript.broadcast(r)["p_G"]})


def updates(transcript: Transcript, r: int, k: int) -> Tensor:
    sent = transcript.upload(r, k)
    return -sent["gradient"] if "gradient" in sent else sent["p_G"] - transcript.broadcast(r)["p_G"]


def asked(world: Any) -> list[str]:
    return [world.training[1][0], world.training[0][3], world.test[0], world.training[2][1]]


@pytest.mark.parametrize(("name", "params"), [EXACT[i] for i in (0, 1, 3, 4)], ids=named)
def test_losses_and_cosines_equal_a_slow_loop(trained: Trained, name: str, params: dict[str, Any]) -> None:
    method, transcript = trained(name, params)
    records, rounds, target = asked(federation()), [0, 1, 3, 5], 2  # never the first of a cohort
    found = message_answers(messages_of(method, transcript), target, records, rounds)
    assert found.client == target
    away = 0
    for (t, r), k, (i, record) in itertools.product(enumerate(rounds), range(3), enumerate(records)):
        cohort, loss, cosine = transcript.cohort(r), math.nan, math.nan
        if k in cohort:
            loss = float(prompt_oracle.record_loss(federation(), stepped(method, transcript, r, k), record))
        if k in cohort and target in cohort:
            start = began(method, transcript, r, target)
            down = -prompt_oracle.record_gradient(federation(), start, record).flatten()
            cosine = float(torch.cosine_similarity(updates(transcript, r, k).flatten().double(), down, dim=0))
        away += math.isnan(cosine)
        assert found.loss[t, k, i] == pytest.approx(loss, abs=1e-5, nan_ok=True)
        assert found.cosine[t, k, i] == pytest.approx(cosine, abs=1e-5, nan_ok=True)
    assert away > 2 * len(records)
    assert np.nanmax(found.cosine) - np.nanmin(found.cosine) > 0.5


def test_in_a_private_run_the_servers_noise_is_no_part_of_a_clients_step(trained: Trained) -> None:
    method, transcript = trained("fedotp", {}, noisy=True)
    messages, records = messages_of(method, transcript), asked(federation())
    found = message_answers(messages, 0, records, [0])
    for i, k in enumerate(transcript.cohort(0)):
        sent = messages.exchanges[0].upload["gradient"][i]
        start = transcript.broadcast(0)
        prompt = start["p_G"] + start["p_L"] - (SETTINGS.global_rate + SETTINGS.local_rate) * sent
        expected = [float(prompt_oracle.record_loss(federation(), prompt, record)) for record in records]
        np.testing.assert_allclose(found.loss[0, k], expected, rtol=0, atol=1e-5)


def plain_gradient(method: PromptMethod, learner: Learner, prompt: Tensor, record: str) -> Tensor:
    """By autograd through the learner, for scores that have no oracle in double precision here."""
    leaf = prompt.clone().requires_grad_()
    text = learner.text(leaf)[None]
    images = learner.images([record], patches=method.patches)[None]
    logits = learner.scale * method.scores(text, images)[0]
    return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, learner.labels([record])), leaf)[0]


def test_of_transport_cosines_are_in_the_global_prompt_alone(trained: Trained) -> None:
    method, transcript = trained("fedotp", {"match": "ot"}, SCHEDULE)
    learner, records = federation().learner(), asked(federation())
    found = message_answers(messages_of(method, transcript), 0, records, [2]).cosine[0]
    prompt = torch.stack([transcript.broadcast(2)["p_G"], transcript.broadcast(0)["p_L"]])
    for i, record in enumerate(records):
        down = -plain_gradient(method, learner, prompt, record)[0].flatten()
        for k in range(3):
            expected = torch.cosine_similarity(updates(transcript, 2, k).flatten(), down, dim=0)
            assert found[k, i] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("records", [1, 11])
def test_norms_of_gradients_equal_autograd_record_by_record(records: int) -> None:
    """One record, and more than one backward pass takes at once; of a transport both prompts together."""
    world, g = federation(), torch.Generator().manual_seed(3)
    ids, method = world.ids[:records], made("promptfl", {})
    prompt = 0.1 * torch.randn(4, world.clip.width, generator=g)
    slow = [float(prompt_oracle.record_gradient(world, prompt, record).norm()) for record in ids]
    found = gradient_norms(method, world.learner(), {"prompt": prompt}, ids)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, slow, rtol=1e-5)
    method, both = made("fedotp", {"match": "ot"}), 0.1 * torch.randn(2, 4, world.clip.width, generator=g)
    slow = [float(plain_gradient(method, world.learner(), both, record).norm()) for record in ids]
    np.testing.assert_allclose(gradient_norms(method, world.learner(), {"prompt": both}, ids), slow, rtol=1e-5)


def history(view: View, method: PromptMethod, records: Sequence[str], rounds: Sequence[int]) -> Floats:
    """Losses [T, n] under what was sent after some rounds, as the first client reads it."""
    learner = federation().learner()
    models = [ClassQuestions().released(method, 0, view.public, view.broadcast(r)) for r in rounds]
    return losses(method, learner, models, records)


@pytest.mark.parametrize(("name", "params"), [EXACT[0], EXACT[1], EXACT[2]], ids=named)
def test_the_history_is_of_broadcasts_and_the_public_start(trained: Trained, name: str, params: dict[str, Any]) -> None:
    method, transcript = trained(name, params)
    records, rounds = asked(federation()), [0, 3, 6]
    found = history(View(transcript, "released-model"), method, records, rounds)
    assert found.shape == (3, len(records))
    public = transcript.broadcast(0)
    for t, r in enumerate(rounds):
        prompt = method.prompt(public | {"p_G": transcript.broadcast(r)["p_G"]})
        expected = [float(prompt_oracle.record_loss(federation(), prompt, record)) for record in records]
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-5)
    assert abs(found[2] - found[0]).max() > 0.01


def test_where_nothing_is_broadcast_the_history_is_flat(trained: Trained) -> None:
    method, transcript = trained("local", {})
    found = history(View(transcript, "server"), method, asked(federation()), [0, 3, 6])
    # equal prompts in one batch: kernels may differ in the last digits from row to row
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), rtol=1e-6)


def test_a_server_with_a_state_of_its_own_changes_nothing_in_the_models_after_clients_steps() -> None:
    """A client's model is what it uploads: a step of a server with momentum on that alone would go on beyond it."""

    class Heavy(type(made("promptfl", {}))):
        def broadcast(self, server: State) -> State:
            return {"p_G": server["p_G"]}

        def aggregate(self, server: State, uploads: Any, site: Any) -> State:
            after = super().aggregate(server, uploads, site)["p_G"]
            h = server.get("h", 0) + after - server["p_G"]
            return {"p_G": after + h, "h": h}

    plain = made("promptfl", {})
    heavy = Heavy(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    p_G, sent = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    assert torch.equal(heavy.messages.after_local_steps({"p_G": p_G}, {}, {"p_G": sent})["prompt"], sent)
