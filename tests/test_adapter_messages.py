"""What a server computes of the messages of adapters: against loops over records, clients, tokens and layers; the projection residual by hand."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import Rounds
from fedaudit.attacks.messages.adapters import AdapterMessages, Descents, _flat, projections, residuals, row_space
from fedaudit.attacks.messages.rebuild import rebuild, round_start
from fedaudit.attacks.questions.texts import TextQuestions
from fedaudit.contracts.method_worlds import WORLDS
from fedaudit.terms.held_models import EXACT, REBUILDINGS
from fedaudit.trainers import learners
from fedaudit.trainers.base import State
from fedaudit.trainers.lora import Learner, Settings
from fedaudit.trainers.transcript import Transcript

SLOW = ("fedavg", "fedpara")  # their messages hold what those of FedPer and FedRand do, which send a part
METHODS = [*("fedper", "fedrand"), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]  # quick: the others
CLIENT, STEPS = 1, 2


@pytest.fixture(scope="module")
def world() -> Any:
    found = WORLDS["lora"]()
    return dataclasses.replace(found, learner=with_settings(found.learner, local_steps=STEPS, batch=1))


def with_settings(learner: Learner, **more: Any) -> Learner:
    found = copy.copy(learner)
    found.settings = Settings(**more)
    return found


@pytest.fixture(scope="module", params=METHODS)
def run(request: Any, world: Any, tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    method = world.make(learners.METHODS[request.param])
    found: Transcript = world.run(method, tmp_path_factory.mktemp(request.param))
    return found


def slow_began(run: Transcript, r: int) -> State:
    """By hand: the broadcast; what is not sent in round 1 is of the message of round 0, if that held it."""
    found = dict(run.broadcast(r))
    if r == 1:
        found |= {name: t for name, t in run.upload(0, CLIENT).items() if name not in run.upload(1, CLIENT)}
    return found


def slow_cosine(learner: Learner, start: State, change: State, record: str) -> float:
    leaves = {name: t.clone().requires_grad_(name in change) for name, t in start.items()}
    learner.loss(leaves, [record]).backward()
    dot, own, other = 0.0, 0.0, 0.0
    for name, t in change.items():
        gradient = leaves[name].grad
        dot -= float((gradient.double() * t.double()).sum())
        own, other = own + float((gradient.double() ** 2).sum()), other + float((t.double() ** 2).sum())
    return dot / math.sqrt(own * other) if own * other else math.nan


def slow_residual(learner: Learner, start: State, change: State, record: str) -> float:
    """Layer by layer, each projection by least squares on the rows of the change; token by token."""
    encoded, found = learner.data[record], []
    seen: dict[str, torch.Tensor] = {}
    for _, of_layers in learner.inputs(start, [record], lambda name, x: x.clone()):
        seen |= of_layers
    for name, t in change.items():
        if not name.endswith(".A") or not t.any():
            continue
        rows, inputs = t.double().T.numpy(), seen[name[:-2]][0].double().T.numpy()  # [in, r], [in, T]
        left = inputs - rows @ np.linalg.lstsq(rows, inputs, rcond=1e-6)[0]
        for place in range(encoded.prompt - 1, len(encoded.ids) - 1):
            found.append(np.linalg.norm(left[:, place]) / np.linalg.norm(inputs[:, place]))
    return float(np.mean(found)) if found else math.nan


@pytest.mark.parametrize("r", [0, 1])
def test_every_number_of_a_message_equals_its_loop(world: Any, run: Transcript, r: int) -> None:
    learner, view = world.learner, View(run, "server")
    records = [world.training[CLIENT][0], world.training[0][0]]
    found = AdapterMessages(view, learner).round(CLIENT, r, records, ("own", "heard"), 0, False)
    heard = Rounds.of(CLIENT, 3, "exact", [found])
    start = round_start(view, CLIENT, r)
    expected = slow_began(run, r)
    assert start.keys() == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in start.items())
    changes = {k: {n: t - run.broadcast(r)[n] for n, t in run.upload(r, k).items()} for k in run.cohort(r)}
    for i, record in enumerate(records):
        assert heard.start_loss[0, i] == pytest.approx(float(learner.loss(start, [record])), abs=1e-5)
        slow = slow_residual(learner, start, changes[CLIENT], record)
        assert heard.residual[0, i] == pytest.approx(slow, abs=1e-5, nan_ok=True)
        for k, change in changes.items():
            slow = slow_cosine(learner, start, change, record)
            assert heard.cosine[0, k, i] == pytest.approx(slow, abs=1e-4, nan_ok=True)
        for way in (EXACT, *REBUILDINGS):
            losses = Rounds.of(CLIENT, 3, way, [found]).loss[0]
            for k in range(3):
                state = rebuild(view, k, way, until=r + 1).state
                slow = math.nan if state is None else float(learner.loss(state, [record]))
                assert losses[k, i] == pytest.approx(slow, abs=1e-5, nan_ok=True)


def test_without_messages_only_the_clients_own_losses_are_computed(world: Any, run: Transcript) -> None:
    messages, records = AdapterMessages(View(run, "server"), world.learner), list(world.training[CLIENT][:1])
    some = messages.round(CLIENT, 1, records, ("own",), 0, False)
    whole = messages.round(CLIENT, 1, records, ("own", "heard"), 0, False)
    assert {name.partition("/")[0] for name in some} == {"own"}
    for name, values in some.items():
        np.testing.assert_array_equal(values, whole[name])
    for way in (EXACT, *REBUILDINGS):
        found = Rounds.of(CLIENT, 3, way, [some])
        np.testing.assert_array_equal(found.loss[0, CLIENT], Rounds.of(CLIENT, 3, way, [whole]).loss[0, CLIENT])
        assert np.isnan(found.loss[0, [0, 2]]).all()
        assert np.isnan(found.cosine).all()
        assert found.residual is None


def test_a_client_is_rebuilt_after_each_round_from_what_came_till_then(run: Transcript) -> None:
    view = View(run, "server")
    for way in ("literal", "newest", "server-fill"):
        first = rebuild(view, CLIENT, way, until=1)
        last = [rebuild(view, CLIENT, way, until=until).last_round for until in (1, 2, None)]
        assert last == [0, 1, 1], way
        if first.state is not None:
            assert all(torch.equal(t, first.state[name]) for name, t in run.upload(0, CLIENT).items())
    assert rebuild(view, CLIENT, "newest", until=0).state is None


def test_rounds_are_those_of_the_client_among_the_observed_ones(run: Transcript) -> None:
    view = View(run, "server")
    assert TextQuestions().heard_rounds(view, CLIENT, 20) == [0, 1]
    assert TextQuestions().heard_rounds(view, CLIENT, 1) == [0]


def test_rounds_hold_what_each_said() -> None:
    rng = np.random.default_rng(0)
    of_all = dict.fromkeys(("heard/loss/newest", "heard/cosine"), (3, 2))
    shapes = of_all | dict.fromkeys(("heard/residual", "own/loss/newest", "own/began"), (2,))
    heard = [{name: rng.random(shape) for name, shape in shapes.items()} for _ in range(4)]
    found = Rounds.of(1, 3, "newest", heard)
    for t, one in enumerate(heard):
        one["heard/loss/newest"][1] = one["own/loss/newest"]
        fields = {"loss": "heard/loss/newest", "cosine": "heard/cosine", "start_loss": "own/began"}
        for field, name in (fields | {"residual": "heard/residual"}).items():
            np.testing.assert_array_equal(getattr(found, field)[t], one[name], err_msg=field)
    assert np.isnan(Rounds.of(1, 3, "literal", heard).loss).all()


def test_one_step_of_sgd_holds_its_inputs_as_far_as_the_rank_goes() -> None:
    """The gradient in A is B^T sum_t d_t x_t^T: six inputs and rank 8 are held whole, twelve are not."""
    generator = torch.Generator().manual_seed(0)
    inputs, other = torch.randn(12, 40, generator=generator), torch.randn(5, 40, generator=generator)
    above, b = torch.randn(12, 30, generator=generator), torch.randn(30, 8, generator=generator)
    start = torch.randn(8, 40, generator=generator)
    for tokens, whole in ((6, True), (12, False)):
        gradient = sum(b.T @ above[t, :, None] @ inputs[t, None] for t in range(tokens))
        directions = row_space(-0.1 * gradient, start)
        assert len(directions) == min(8, tokens)
        of_members, of_others = residuals(inputs[:tokens], directions), residuals(other, directions)
        assert (float(of_members.max()) < 1e-5) is whole
        assert float(of_others.min()) > 0.5


def test_a_layer_that_did_not_move_says_nothing() -> None:
    start = torch.ones(2, 3)
    assert row_space(torch.zeros(2, 3), start) is None
    assert row_space(1e-8 * start, start) is None  # weight decay


def sgd_step(learner: Learner, start: State, batch: Sequence[str], rate: float = 1.0) -> State:
    """The change of all tensors by one step, gradient by gradient."""
    leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
    learner.loss(leaves, batch).backward()
    return {name: -rate * t.grad for name, t in leaves.items() if t.grad is not None}


def test_on_the_model_a_member_of_one_sgd_step_leaves_no_residual_and_others_do(world: Any) -> None:
    """Rank 64 is above the tokens of a record; B is not zero."""
    learner, (member, other) = world.learner, world.training[0][:2]
    generator = torch.Generator().manual_seed(1)
    shapes = {
        name: (64, t.shape[1]) if name.endswith(".A") else (t.shape[0], 64) for name, t in learner.parameters.items()
    }
    start = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    last = max(name.split(".mlp")[0] for name in start if ".mlp" in name)
    top = {name: t for name, t in sgd_step(learner, start, [member]).items() if name.startswith(f"{last}.mlp")}
    found = projections(learner, start, top, [member, other])
    assert found[0] < 1e-5
    assert found[1] > 0.5


def test_components_that_nobody_trains_say_nothing_of_a_message(world: Any) -> None:
    """As a base that stands beside the adapter has, or what was taken out of the backbone: rows of A and columns of B."""
    learner = world.learner
    start = {
        name: torch.randn(t.shape, generator=torch.Generator().manual_seed(i)) * 0.1
        for i, (name, t) in enumerate(learner.parameters.items())
    }
    change = {
        name: torch.randn(t.shape, generator=torch.Generator().manual_seed(9 + i))
        for i, (name, t) in enumerate(start.items())
    }
    for name, tensor in change.items():
        tensor.narrow(0 if name.endswith(".A") else 1, 0, 1).zero_()
    descents = Descents(learner, start)
    records = world.candidates[0][:3] if hasattr(world, "candidates") else [*learner.data][:3]
    (part,) = descents.parts(records)
    whole = dict(zip(start, part.split([t.numel() for t in start.values()], 1), strict=True))
    kept = [
        whole[name]
        .unflatten(1, t.shape)
        .narrow(1 if name.endswith(".A") else 2, 1, t.shape[0 if name.endswith(".A") else 1] - 1)
        .flatten(1)
        for name, t in start.items()
    ]
    assert torch.equal(descents.over(change, part), torch.cat(kept, 1))
    flat = _flat(change)
    assert len(flat) == sum(k.shape[1] for k in kept)
    assert flat.all()
    full = {name: t + 1.0 for name, t in change.items()}
    assert torch.equal(descents.over(full, part), part)


def test_with_b_zero_the_first_step_moves_no_a(world: Any) -> None:
    learner, records = world.learner, list(world.training[0][:2])
    start = learner.initial(torch.Generator().manual_seed(0))
    change = sgd_step(learner, start, records[:1])
    assert np.isnan(projections(learner, start, change, records)).all()
