"""A context of its own for every class (`--class-contexts`): training, what attacks compute, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.gradients import gradient_norms, mean_gradient
from fedaudit.attacks.messages.mixtures import mixture
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.command import cli
from fedaudit.machinery.errors import InputError
from fedaudit.privacy.clipping import clipped_mean, count_longer
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.prompts import PromptMethod
from tests import prompt_oracle, prompt_toy
from tests.prompt_toy import NAMES, PRIVACY, close, federation, made, named, run
from tests.test_cli import refuse

SETTINGS = dataclasses.replace(prompt_toy.SETTINGS, class_contexts=True)
SHAPE = (len(NAMES), SETTINGS.prompt_length, 16)
SCHEDULE = Schedule(rounds=2, clients=3, per_round=3, seed=1)
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("promptfl", {}, "none"), ("promptfl", {}, "record"), ("promptfl", {}, "batch"), ("local", {}, "record"),
    ("fedotp", {"match": "sum"}, "record"), ("fedotp", {"match": "ot"}, "none"), ("fedprox", {}, "none"),
    ("pfedme", {"inner": 2}, "none"), ("dpfpl", {"rank": 0}, "none"), ("zeroshot", {}, "none"),
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def with_contexts(name: str, params: dict[str, Any], privacy: str = "none") -> PromptMethod:
    return made(name, params, PRIVACY[privacy], SCHEDULE, SETTINGS)


def contexts(*lead: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(*lead, *SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "params", "privacy"), CASES, ids=named)
def test_training_equals_classes_records_and_clients_one_by_one(
    tmp_path: Path, name: str, params: dict[str, Any], privacy: str
) -> None:
    method = with_contexts(name, params, privacy)
    transcript = run(tmp_path, method, federation(), SCHEDULE)
    slow = prompt_oracle.oracle_of(name)(federation(), method.params, SETTINGS, PRIVACY[privacy], SCHEDULE).run()
    if name == "zeroshot":  # the oracle holds the words once
        assert all(torch.equal(own, slow[-1][0]["hard"].float()) for own in transcript.broadcast(2)["hard"])
        return
    prompt_oracle.same(transcript, slow, atol=2e-5)
    states = transcript.broadcast(0), transcript.broadcast(2) | transcript.private(1, 0)
    for tensor, before in states[0].items():
        assert before.shape == SHAPE
        assert (states[1][tensor] - before).abs().amax((1, 2)).min() > 1e-3, "every class moves"
    if privacy != "none":
        (drawn, *_) = transcript.round(0)["noise"]["mechanisms"]
        assert drawn["dimension"] == int(np.prod(SHAPE))


def test_clients_in_one_problem_are_the_clients_one_by_one(tmp_path: Path) -> None:
    method = with_contexts("fedotp", {}, "record")
    runs = [run(tmp_path / str(n), method, federation(), SCHEDULE, clients_per_batch=n) for n in (50, 1)]
    for k in range(3):
        for together, alone in zip(*(one.private(1, k).values() for one in runs), strict=True):
            close(together, alone)


def test_a_gradient_is_clipped_over_all_classes() -> None:
    gradients = contexts(2, 3)  # of two records of each of three clients
    norms = gradients.flatten(2).norm(dim=2)
    limit = float(norms.median())
    scale = (limit / norms).clamp(max=1)[..., None, None, None]
    found = clipped_mean(gradients, torch.ones(2, 3), how="record", norm=limit, batch=2)
    close(found, (gradients * scale).sum(0) / 2, atol=1e-6)
    assert count_longer(gradients, torch.ones(2, 3), norm=limit) == (int((norms > limit).sum()), 6)


def test_equal_contexts_are_a_shared_one() -> None:
    """Losses are the same; the gradient in the shared context is the sum of those in the classes' contexts."""
    world, shared = federation(), contexts()[0]
    own, one = with_contexts("promptfl", {}), made("promptfl", {})
    learner, plain = world.learner(SETTINGS), world.learner()
    models: Any = [[{"prompt": p}, {"prompt": p + 0.1}] for p in (shared.expand(SHAPE), shared)]
    each = list(zip((learner, plain), (own, one), models, strict=True))
    np.testing.assert_allclose(*(it.log_probs(method, pair, world.test) for it, method, pair in each), atol=1e-4)
    np.testing.assert_array_equal(*(it.predicted(pair, world.test, method) for it, method, pair in each))
    (found,) = learner.gradients(own, models[0][0], world.test)
    (expected,) = plain.gradients(one, models[1][0], world.test)
    close(found.unflatten(1, SHAPE).sum(1).flatten(1), expected, atol=1e-4)
    np.testing.assert_allclose(learner.untrained(world.test), plain.untrained(world.test), atol=1e-4)


def test_classes_are_told_apart_by_their_own_contexts() -> None:
    world, method, learner = federation(), with_contexts("local", {}), federation().learner(SETTINGS)
    models = [{"prompt": prompt} for prompt in contexts(2)]
    found = learner.predicted(models, world.test, method)
    alike = learner.predicted([models[0]] * 2, world.test, method)
    np.testing.assert_array_equal(alike, [found[0]] * 2)
    logs = learner.log_probs(method, models, world.test)
    for i, model in enumerate(models):
        for j, record in enumerate(world.test):
            loss = float(prompt_oracle.record_loss(world, model["prompt"], record))
            assert -logs[i, j, world.labels[record]] == pytest.approx(loss, abs=1e-4)


def test_norms_and_means_of_gradients_equal_autograd() -> None:
    world, method, learner = federation(), with_contexts("promptfl", {}), federation().learner(SETTINGS)
    prompt = contexts()
    slow = torch.stack([prompt_oracle.record_gradient(world, prompt, record) for record in world.test])
    norms = gradient_norms(method, learner, {"prompt": prompt}, world.test)
    np.testing.assert_allclose(norms, slow.flatten(1).norm(dim=1).numpy(), rtol=1e-4)
    close(mean_gradient(method, learner, prompt, world.test), slow.mean(0))


@pytest.mark.parametrize(("name", "params", "_"), [c for c in CASES if c[0] not in ("local", "zeroshot") and c[2] == "none"], ids=named)  # fmt: skip
def test_the_server_rebuilds_clients_and_solves_messages(tmp_path: Path, name: str, params: Any, _: str) -> None:
    """Exactly, but for the local prompt of a transport, which stays at its start; of the batch's records nothing is left."""
    world, method = federation(), with_contexts(name, params)
    transcript = run(tmp_path, method, world, SCHEDULE)
    learner = world.learner(SETTINGS)
    messages = ReplayedMessages(View(transcript, "server"), method, learner)
    for k in range(3):
        found, true = messages.rebuilt(k).state, View(transcript, "owner").private(k)
        own, theirs = (s["prompt"][0] if params.get("match") == "ot" else s["prompt"] for s in (found, true))
        close(own, theirs, atol=1e-6)
    exchange, listed = messages.exchanges[0], world.training[0]
    arrays = messages.round(0, 0, listed, {"heard"}, 0, True)
    assert all(np.isfinite(array).all() for array in arrays.values())
    (gradients,) = learner.sent_gradients(method, messages._start(exchange, 0), listed)
    sent = method.messages.data_gradient_sum(exchange.server, exchange.own, exchange.upload, learner, method.steps(10))
    solved = mixture(method, gradients, sent[0], r=0, turn=0, listed=len(listed), complete=True)
    assert gradients.shape == (10, *SHAPE)
    assert solved.numbers == int(np.prod(SHAPE))
    if method.steps(10) == 1:
        batch = np.isin(listed, method.minibatch(world.clients(learner)[0], 0))
        np.testing.assert_allclose(solved.gradients @ batch / 4, solved.sent, atol=1e-4)


@pytest.mark.parametrize(("name", "why"), [("fedpgp", "factors u and v"), ("dpfpl", "factors u and v .* --rank 0"), ("secfpp", "clustered")])  # fmt: skip
def test_methods_of_one_prompt_refuse_it(name: str, why: str) -> None:
    with pytest.raises(InputError, match=f"--class-contexts: all classes share one context in {name}, since .*{why}"):
        made(name, {"rank": 2} if name != "secfpp" else {}, settings=SETTINGS)


@pytest.mark.parametrize("words", ["--method dp2fl", "--method zeroshot"])
def test_where_no_context_is_trained_the_flag_is_refused(capsys: Any, tmp_path: Path, words: str) -> None:
    sentence = refuse(capsys, [*words.split(), "--class-contexts", "--dry-run"])
    assert "--class-contexts: has no effect, since no method here trains soft prompts" in sentence
    assert cli.read_command(["--method", "dp2fl,promptfl", "--class-contexts"]).plan.settings.class_contexts
    sentence = refuse(capsys, ["--class-contexts", "--method", "promptfl,fedpgp", "--out", str(tmp_path)])
    assert "in fedpgp, since" in sentence
    assert not list(tmp_path.glob("runs/*")), "it is refused before anything is trained"


def test_the_command_trains_and_attacks_it(tmp_path: Path, without_pages: None) -> None:
    data = "--class-contexts --task digits --shots 4 --clients 2 --rounds 2 --prompt-length 4 --threads 1 --quiet"
    attacks = "--attack loss,cosine,decompose,gradnorm"
    words = f"{data} --method promptfl,local --epsilon none {attacks} --out {tmp_path}"
    assert cli.main(words.split()) == 0
    (file,) = tmp_path.glob("reports/*/findings.json")
    found = {(f["method"].split(":")[0], f["attack"]) for f in json.loads(file.read_text()) if f["metric"] == "auroc"}
    assert found >= {("promptfl", a) for a in ("loss", "cosine", "decompose", "gradnorm")} | {("local", "loss")}
