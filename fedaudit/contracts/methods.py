"""Contracts of every method, whatever it trains: each is a function of a method in a tiny world."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaudit.attacks.base import View
from fedaudit.contracts.method_worlds import CLIENTS, ROUNDS, WORLDS, World, with_rates
from fedaudit.machinery.plugins import Plugin
from fedaudit.privacy.settings import Privacy
from fedaudit.terms.threat_models import ACTIVE_SERVER, PEER, RELEASED_MODEL, SERVER
from fedaudit.trainers.base import Method, Participation, State, Update, Upload, generator
from fedaudit.trainers.learners import MethodFacts, facts
from fedaudit.trainers.maple import DualMessages, DualMethod
from fedaudit.trainers.messages import MethodMessages
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import PromptMethod
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.steps import PrivateMessages, PrivateMethod
from fedaudit.trainers.transcript import Transcript

# what others call, and a method overrides
BASES = (Method, PrivateMethod, PromptMethod, DualMethod, MethodMessages, PrivateMessages, PromptMessages, DualMessages)
SLOW = 1e-4  # a learning rate at which gradients hardly change within a round
TURNED = (1, 2, 0)  # another order of the clients that is not its own mirror image


@dataclass(frozen=True, eq=False)
class MethodInWorld:
    """A method in its world."""

    method: Method[Any]
    world: World
    plugin: Plugin[MethodFacts]
    path: Path

    @property
    def trains(self) -> bool:
        return self.plugin.facts.trains

    @property
    def adversaries(self) -> list[str]:
        """The threat models in which there is something of it to attack."""
        sends = dict.fromkeys((RELEASED_MODEL, SERVER, ACTIVE_SERVER), self.method.sends)
        kinds = sends | {PEER: bool(self.method.by_client)}
        named = facts(self.plugin.facts.learner).adversaries(self.plugin.facts) if self.trains else ()
        return [name for name in named if kinds.get(name, True)]

    def again(self, name: str, **how: Any) -> Transcript:
        return self.world.run(self.method, self.path / name, **how)

    @functools.cached_property
    def run(self) -> Transcript:
        return self.again("run")

    def with_rates(self, rate: float, name: str, **settings: Any) -> MethodInWorld:
        """This method with these learning rates and settings, wherever they stand."""
        world = self.world.with_rates(rate, **settings)
        states: Any = self.method
        method = dataclasses.replace(states, params=with_rates(states.params, rate))
        if isinstance(method, PrivateMethod):
            method = dataclasses.replace(method, settings=world.learner.settings)
        return MethodInWorld(method, world, self.plugin, self.path / name)

    @property
    def start(self) -> State:
        return self.method.start(self.world.learner.initial(generator(0, "initial")))

    def moment(self, r: int) -> tuple[State, list[State], list[Participation]]:
        """The server's state before a round, what the clients hold, and the clients."""
        states = [self.run.private(r - 1, k) if r else self.run.broadcast(0) for k in range(CLIENTS)]
        return self.run.server(r), states, self.world.clients(r, range(r))

    def updates(self, server: State, states: Sequence[State], clients: Sequence[Participation]) -> list[Update]:
        sent = self.method.broadcast(server)
        received = [self.method.download(sent, client) for client in clients]
        done: list[Update] = self.world.learner.work(self.method, received, states, clients)
        return done

    def uploads(self, r: int) -> list[Upload]:
        """The messages that the server received in a round, and what clients computed with on shares, which no file
        holds."""
        about, shared = self.run.round(r)["uploads"], self.plugin.facts.on_shares
        sealed: list[State] = [one.sealed for one in self.updates(*self.moment(r))] if shared else [{}] * CLIENTS
        return [
            Upload(k, about[str(k)]["records"], self.run.upload(r, k), about[str(k)]["facts"], sealed[k])
            for k in range(CLIENTS)
        ]

    def aggregate(self, r: int, uploads: Sequence[Upload]) -> State:
        """The server's next state after a round with these messages."""
        return self.method.aggregate(self.run.server(r), uploads, self.world.site(r))


Contract = Callable[[MethodInWorld], None]


# --- the contracts --------------------------------------------------------------------------------------------------


def signatures(subject: MethodInWorld) -> None:
    """Every function that the base classes call has their parameters."""
    for cls in (type(subject.method), type(subject.method.messages)):
        for base in (one for one in cls.__mro__ if one in BASES):
            for name, function in vars(base).items():
                if inspect.isfunction(function) and inspect.isfunction(overriding := getattr(cls, name)):
                    both = [[*inspect.signature(one).parameters] for one in (overriding, function)]
                    assert both[0] == both[1], f"{name} takes {both[0]}, and not {both[1]}"


def repeats(subject: MethodInWorld) -> None:
    """One seed gives the same transcript to the bit, however candidates are listed; another seed gives another."""
    again = subject.again("again", turned=True)
    assert files(subject.run) == files(again)
    other = subject.again("other", seed=1, until=1)
    for k in range(CLIENTS):
        assert same(subject.run.private(0, k), other.private(0, k)) == (not subject.trains)


def order(subject: MethodInWorld) -> None:
    """Neither the clients of a round nor the uploads need come in the order of their numbers."""
    for r in range(ROUNDS):
        (server, states, clients), uploads = subject.moment(r), subject.uploads(r)
        turned = subject.updates(server, [states[k] for k in TURNED], [clients[k] for k in TURNED])
        for k, update in zip(TURNED, turned, strict=True):
            assert close(update.upload, uploads[k].state)
            assert close(update.upload | update.private, subject.run.private(r, k))
            assert update.facts == uploads[k].facts
        assert close(subject.aggregate(r, [uploads[k] for k in TURNED]), subject.run.server(r + 1))


def changes_nothing_given(subject: MethodInWorld) -> None:
    """States and messages that a method is given are afterwards as they were."""
    (server, states, clients), uploads = subject.moment(1), subject.uploads(1)
    states_given = [server, *states, *(upload.state for upload in uploads)]
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in states_given]
    subject.updates(server, states, clients)
    subject.method.aggregate(server, uploads, subject.world.site(1))
    assert all(same(one, other) for one, other in zip(states_given, before, strict=True))


def rests(subject: MethodInWorld) -> None:
    """With learning rates of 0 all parties hold the public start, and their models are the start's.

    What is no part of the start is held to the model alone: a gradient is sent as it is whatever the rate, and a pair
    of factors that a client drew for itself (FedPara) is multiplied by a B of zero.
    """
    still = subject.with_rates(0.0, "rests")
    method, world, run, start = still.method, still.world, still.run, subject.start
    public = world.meaning(method.model(start))
    for r in range(ROUNDS):
        for k in range(CLIENTS):
            assert close(world.meaning(own_model(run, r, k)), public)
            assert close_where_both(run.upload(r, k) | run.private(r, k), start)
        assert close_where_both(run.server(r + 1), start)


def equals_the_plain_run(subject: MethodInWorld) -> None:
    """Clients of equal sizes count alike, however many records these are.

    With noise of 0 and nothing clipped, private training of such clients is training without privacy.
    """
    uploads = subject.uploads(1)
    few, many = ([dataclasses.replace(upload, records=n) for upload in uploads] for n in (1, 7))
    assert close(subject.aggregate(1, few), subject.aggregate(1, many))
    if isinstance(method := subject.method, PrivateMethod):
        world, silence = subject.world.equal(), dict.fromkeys((*method.local, *method.shared), 0.0)
        protection = Protection(Privacy(epsilon=1, clip_norm=10**6), silence, method.settings.batch)
        private = world.run(dataclasses.replace(method, protection=protection), subject.path / "private")
        plain = world.run(method, subject.path / "plain")
        for r in range(ROUNDS):
            assert close(private.server(r + 1), plain.server(r + 1))
            assert all(close(private.private(r, k), plain.private(r, k)) for k in range(CLIENTS))


def learns(subject: MethodInWorld) -> None:
    """Clients' own models fit their records better than the start, and nobody sends zeros; what does not train
    rests."""
    run, start, last = subject.run, subject.start, ROUNDS - 1
    losses = [subject.world.loss(subject.method, own_model(run, last, k), k) for k in range(CLIENTS)]
    public = subject.method.model(start)
    before = [subject.world.loss(subject.method, public, k) for k in range(CLIENTS)]
    assert all(map(math.isfinite, losses))
    assert (sum(losses) < sum(before) - 1e-4) == subject.trains
    for r in range(ROUNDS):
        holdings = [run.broadcast(r + 1), *(run.private(r, k) for k in range(CLIENTS))]
        for name, tensor in ((name, t) for state in holdings for name, t in state.items()):
            assert tensor.any() or (name in start and not start[name].any()), f"{name} is zero"
        assert subject.trains or all(close_where_both(state, start) for state in holdings)


def listens(subject: MethodInWorld) -> None:
    """A broadcast moves every client that receives something, and what a client sends moves the server."""
    for r in range(ROUNDS):
        server, states, clients = subject.moment(r)
        for k, update in enumerate(subject.updates(nudged(server), states, clients)):
            if subject.method.download(subject.method.broadcast(server), clients[k]):
                assert not close(update.upload | update.private, subject.run.private(r, k))
        uploads = subject.uploads(r)
        for k, upload in enumerate(uploads):
            sent = dataclasses.replace(upload, state=nudged(upload.state), sealed=nudged(upload.sealed))
            moved = subject.aggregate(r, [*uploads[:k], sent, *uploads[k + 1 :]])
            assert close(moved, subject.run.server(r + 1)) == (not upload.state and not upload.sealed)


def weighs_nothing(subject: MethodInWorld) -> None:
    """A record of weight 0 counts as the others do, in n_k and in batches, and nobody sees what it holds."""
    left_out = frozenset(record for states in subject.world.training for record in states[::2])
    world = dataclasses.replace(subject.world, left_out=left_out)
    run = world.run(subject.method, subject.path / "without")
    disguised = world.disguised(left_out).run(subject.method, subject.path / "disguised")
    assert files(run) == files(disguised)
    for r in range(ROUNDS):
        counted, about = (one.round(r)["uploads"] for one in (subject.run, run))
        assert [about[k]["records"] for k in about] == [counted[k]["records"] for k in counted]
    moved = [not same(run.private(ROUNDS - 1, k), subject.run.private(ROUNDS - 1, k)) for k in range(CLIENTS)]
    assert any(moved) == subject.trains  # it was in a batch


def releases_nobody(subject: MethodInWorld) -> None:
    """No tensor of the released model lists what every client sent or holds: such a table is its clients'
    (`by_client`)."""
    run = subject.run
    for r in range(ROUNDS):
        holdings = [run.private(r, k) | own_model(run, r, k) for k in range(CLIENTS)]
        for table in run.sent_to_all(r + 1).values():
            for name in holdings[0]:
                rows = [states[name] for states in holdings]
                listed = table.shape[:1] == (CLIENTS,) and table.shape[1:] == rows[0].shape
                assert not listed or not all(torch.equal(*pair) for pair in zip(table, rows, strict=True)), name


def explains(subject: MethodInWorld) -> None:
    """Attacks are told the truth about a message of prompts: what its records made of it (`data_gradient_sum`) is the
    sum over the steps of their coefficients times the batch's gradient where the client began, to first order in rates.
    What the client has kept is nudged, since at these rates its traces in the next message would be too small.

    What clients put into a sum on shares is such a message too, in which every record is once.
    """
    if not isinstance(subject.method, PromptMethod) or not subject.method.sends:
        return
    subject = subject.with_rates(SLOW, "explains", local_steps=3, momentum=0.5)
    method, learner = subject.method, subject.world.learner
    assert isinstance(method, PromptMethod)
    for r in range(ROUNDS):
        server, states, clients = subject.moment(r)
        states = [nudged(state) for state in states] if r else states
        for client, holdings, update in zip(clients, states, subject.updates(server, states, clients), strict=True):
            sent = method.broadcast(server)
            received = {name: t for name, t in sent.items() if update.upload and name not in method.by_client}
            received |= method.download(sent, client)
            steps = method.steps(len(client.records))
            message = update.upload or {"gradient": update.sealed["gradient"]}
            of_cohort = (of_one(received), of_one(holdings), of_one(message))
            computed = method.messages.data_gradient_sum(*of_cohort, learner, steps)[0]
            start = method.messages.round_start(received, holdings)
            batches = [method.minibatch(client, step) for step in range(steps)] if update.upload else [client.records]
            counts = method.messages.step_coefficients(steps) if update.upload else [1.0]
            each = torch.cat([*learner.sent_gradients(method, start, client.records)])
            means = [each[[client.records.index(record) for record in batch]].mean(0) for batch in batches]
            weighed = [float(count) * mean for count, mean in zip(counts, means, strict=True)]
            expected = torch.stack(weighed).sum(0)
            assert (computed - expected).norm() < 0.03 * expected.norm()


def uses(subject: MethodInWorld) -> None:
    """A client's records change what is trained where `used_records` says so, and no others do but those that it
    sends."""
    client, records = max(enumerate(subject.world.training), key=lambda pair: len(pair[1]))
    messages, settings = subject.method.messages, subject.world.learner.settings
    rounds = range(ROUNDS if subject.trains else 0)
    used = messages.used_records(records, client=client, seed=0, rounds=rounds, settings=settings)
    private = set(records) - messages.shared_records(records, client=client, seed=0)
    moments = [subject.moment(r) for r in rounds]

    def computed(world: World, r: int) -> State:
        """All that the client computes in a round."""
        server, states, _ = moments[r]
        there = dataclasses.replace(subject, world=world)
        (update,) = there.updates(server, [states[client]], [world.clients(r, range(r))[client]])
        return update.upload | update.private | update.sealed

    before = [computed(subject.world, r) for r in rounds]
    for record in private & used:
        without = [computed(subject.world.disguised({record}), r) for r in rounds]
        assert not all(map(same, without, before)), f"{record} changes nothing"
    if unused := private - used:
        other = dataclasses.replace(subject, world=subject.world.disguised(unused)).again("without the unused")
        assert all(same(subject.run.private(ROUNDS - 1, k), other.private(ROUNDS - 1, k)) for k in range(CLIENTS))


def keeps_apart(subject: MethodInWorld) -> None:
    """In a first round a client's records change what that client computes, and nobody else's update; but for those
    that it sends as they are."""
    messages = subject.method.messages
    server, states, clients = subject.moment(0)
    before = subject.updates(server, states, clients)
    for k, records in enumerate(subject.world.training):
        private = set(records) - messages.shared_records(records, client=k, seed=0)
        world = subject.world.disguised(private)
        after = dataclasses.replace(subject, world=world).updates(server, states, world.clients(0, ()))
        for other in set(range(CLIENTS)) - {k}:
            assert close(before[other].upload, after[other].upload), f"client {other} sends what client {k} has"
            assert close(before[other].private, after[other].private), f"client {other} keeps what client {k} has"


def is_audited(subject: MethodInWorld) -> None:
    """Every adversary has models like the public one, under which each record has a loss, and so has the evaluation of
    every round."""
    public = subject.method.model(subject.run.broadcast(0))
    mine = subject.world.training[0]
    for threat_model in subject.adversaries:
        view = View(subject.run, threat_model, users=[CLIENTS - 1])
        for model, loss in subject.world.attacked(subject.method, view):
            assert model.keys() == public.keys()
            assert loss.shape == (len(mine),)
            assert np.isfinite(loss).all()
    run = subject.again("examined", evaluation=subject.world.evaluation)
    measured = [n for r in range(ROUNDS) for of in run.round(r)["utility"].values() for n in of.values()]
    assert measured
    assert all(map(math.isfinite, measured))


def files(run: Transcript) -> dict[str, str]:
    """The hash of every file of a transcript."""
    paths = sorted(path for path in run.folder.path.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run.folder.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def own_model(run: Transcript, r: int, k: int) -> State:
    """The model of its own that a client has after a round."""
    model = run.own_model(r, k)
    assert model is not None
    return model


def of_one(state: State) -> State:
    """A client's state as that of a cohort of one."""
    return {name: tensor[None] for name, tensor in state.items()}


def nudged(state: State) -> State:
    """Not by the same number everywhere, which a layer norm would take out again."""
    g = torch.Generator().manual_seed(0)
    return {name: tensor + 0.05 * torch.randn(tensor.shape, generator=g) for name, tensor in state.items()}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def close(one: State, other: State) -> bool:
    return one.keys() == other.keys() and close_where_both(one, other)


def close_where_both(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-4, atol=2e-6) for name in one.keys() & other.keys())


CONTRACTS: tuple[Contract, ...] = (
    signatures, repeats, order, changes_nothing_given, rests, equals_the_plain_run, learns, listens, weighs_nothing,
    releases_nobody, explains, uses, keeps_apart, is_audited,
)  # fmt: skip


def refuses_with_a_reason(subject: MethodInWorld) -> None:
    """All that it refuses are contracts, each with a reason of several words."""
    refused = subject.method.refuses
    assert refused.keys() <= {contract.__name__ for contract in CONTRACTS}, f"{[*refused]} are not all contracts"
    assert all(len(why.split()) > 3 for why in refused.values()), "a reason is too short"


def breaks(contract: Contract, subject: MethodInWorld) -> None:
    """Raise AssertionError if a method keeps a contract."""
    try:
        contract(subject)
    except AssertionError:
        return
    raise AssertionError


def subject_of(
    plugin: Plugin[MethodFacts], path: Path, alter: Callable[[type], type] = lambda cls: cls
) -> MethodInWorld:
    """A method in its learner's world, or what `alter` makes of its class; it keeps its runs in the folder `path`."""
    world = WORLDS[plugin.facts.learner]()
    method = world.make(plugin)
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return MethodInWorld(alter(type(method))(**fields), world, plugin, path)
