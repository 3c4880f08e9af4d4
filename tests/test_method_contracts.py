"""What every method promises, whatever it trains; methods are found by looking into the folder.

A contract is a function of a method in a tiny world. Every contract is also shown methods with a planted fault,
which it must refuse.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, generator
from fedaudit.trainers.learners import METHODS, facts
from fedaudit.trainers.maple import DualMessages, DualMethod
from fedaudit.trainers.messages import MethodMessages
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import PromptMethod
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.steps import PrivateMessages, PrivateMethod
from fedaudit.trainers.transcript import Transcript
from tests.method_worlds import CLIENTS, ROUNDS, WORLDS, World, with_rates
from tests.whole_runs import contents

# what others call, and a method overrides
BASES = (Method, PrivateMethod, PromptMethod, DualMethod, MethodMessages, PrivateMessages, PromptMessages, DualMessages)
SLOW = 1e-4  # a learning rate at which gradients hardly change within a round
TURNED = (1, 2, 0)  # another order of the clients that is not its own mirror image

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@dataclass(frozen=True, eq=False)
class Subject:
    """A method in its world."""

    method: Method[Any]
    world: World
    plugin: Plugin
    path: Path

    @property
    def trains(self) -> bool:
        return self.plugin.facts.trains

    @property
    def adversaries(self) -> list[str]:
        """The threat models in which there is something of it to attack."""
        sends = dict.fromkeys(("released-model", "server", "active-server"), self.method.sends)
        kinds = sends | {"peer": bool(self.method.by_client)}
        named = facts(self.plugin.facts.learner).adversaries(self.plugin.facts) if self.trains else ()
        return [name for name in named if kinds.get(name, True)]

    def again(self, name: str, **how: Any) -> Transcript:
        return self.world.run(self.method, self.path / name, **how)

    @functools.cached_property
    def run(self) -> Transcript:
        return self.again("run")

    def with_rates(self, rate: float, name: str, **settings: Any) -> Subject:
        """The same with these learning rates and settings, wherever they stand."""
        world = self.world.with_rates(rate, **settings)
        method = dataclasses.replace(self.method, params=with_rates(self.method.params, rate))  # type: ignore[type-var]
        if isinstance(method, PrivateMethod):
            method = dataclasses.replace(method, settings=world.learner.settings)
        return Subject(method, world, self.plugin, self.path / name)

    @property
    def start(self) -> State:
        return self.method.start(self.world.learner.initial(generator(0, "initial")))

    def moment(self, r: int) -> tuple[State, list[State], list[Participation]]:
        """The server's state before a round, what the clients hold, and the clients."""
        own = [self.run.private(r - 1, k) if r else self.run.broadcast(0) for k in range(CLIENTS)]
        return self.run.server(r), own, self.world.clients(r, range(r))

    def updates(self, server: State, own: Sequence[State], clients: Sequence[Participation]) -> list[Update]:
        sent = self.method.broadcast(server)
        received = [self.method.download(sent, client) for client in clients]
        done: list[Update] = self.world.learner.work(self.method, received, own, clients)
        return done

    def uploads(self, r: int) -> list[Upload]:
        """What the server received in a round, and what clients computed with on shares, which no file holds."""
        about, sealed = self.run.round(r)["uploads"], [update.sealed for update in self.updates(*self.moment(r))]
        return [
            Upload(k, about[str(k)]["records"], self.run.upload(r, k), about[str(k)]["facts"], sealed[k])
            for k in range(CLIENTS)
        ]

    def aggregate(self, r: int, uploads: Sequence[Upload]) -> State:
        """The server's next state after a round with these messages."""
        return self.method.aggregate(self.run.server(r), uploads, self.world.site(r))


Contract = Callable[[Subject], None]


# --- the contracts --------------------------------------------------------------------------------------------------


def signatures(subject: Subject) -> None:
    """Every function that the base classes call has their parameters."""
    for cls in (type(subject.method), type(subject.method.messages)):
        for base in (one for one in cls.__mro__ if one in BASES):
            for name, function in vars(base).items():
                if inspect.isfunction(function) and inspect.isfunction(own := getattr(cls, name)):
                    assert list(inspect.signature(own).parameters) == list(inspect.signature(function).parameters), name


def repeats(subject: Subject) -> None:
    """One seed gives the same transcript to the bit, however candidates are listed; another seed gives another."""
    again = subject.again("again", turned=True)
    assert contents(subject.run.folder.path) == contents(again.folder.path)
    other = subject.again("other", seed=1)
    for k in range(CLIENTS):
        assert same(subject.run.private(0, k), other.private(0, k)) == (not subject.trains)


def order(subject: Subject) -> None:
    """Neither the clients of a round nor the uploads need come in the order of their numbers."""
    for r in range(ROUNDS):
        (server, own, clients), uploads = subject.moment(r), subject.uploads(r)
        turned = subject.updates(server, [own[k] for k in TURNED], [clients[k] for k in TURNED])
        for k, update in zip(TURNED, turned, strict=True):
            assert close(update.upload, uploads[k].state)
            assert close(update.upload | update.private, subject.run.private(r, k))
            assert update.facts == uploads[k].facts
        assert close(subject.aggregate(r, [uploads[k] for k in TURNED]), subject.run.server(r + 1))


def changes_nothing_given(subject: Subject) -> None:
    """What a method is given is as it was afterwards."""
    (server, own, clients), uploads = subject.moment(1), subject.uploads(1)
    given = [server, *own, *(upload.state for upload in uploads)]
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in given]
    subject.updates(server, own, clients)
    subject.method.aggregate(server, uploads, subject.world.site(1))
    assert all(same(one, other) for one, other in zip(given, before, strict=True))


def rests(subject: Subject) -> None:
    """With learning rates of 0 all parties hold the public start, and their models are the start's.

    What is no part of the start is held to the model alone: a gradient is sent as it is whatever the rate, and a pair
    of factors that a client drew for itself (FedPara) is multiplied by a B of zero.
    """
    still = subject.with_rates(0.0, "rests")
    method, world, run, start = still.method, still.world, still.run, subject.start
    public = world.meaning(method.model(start))
    for r in range(ROUNDS):
        for k in range(CLIENTS):
            assert close(world.meaning(run.own_model(r, k)), public)
            assert close_where_both(run.upload(r, k) | run.private(r, k), start)
        assert close_where_both(run.server(r + 1), start)


def equals_the_plain_run(subject: Subject) -> None:
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


def learns(subject: Subject) -> None:
    """Clients' own models fit their records better than the start, and nobody sends zeros; what does not train rests."""
    run, start, last = subject.run, subject.start, ROUNDS - 1
    losses = [subject.world.loss(subject.method, run.own_model(last, k), k) for k in range(CLIENTS)]
    public = subject.method.model(start)
    before = [subject.world.loss(subject.method, public, k) for k in range(CLIENTS)]
    assert all(map(math.isfinite, losses))
    assert (sum(losses) < sum(before) - 1e-4) == subject.trains
    for r in range(ROUNDS):
        held = [run.broadcast(r + 1), *(run.private(r, k) for k in range(CLIENTS))]
        for name, tensor in ((name, t) for state in held for name, t in state.items()):
            assert tensor.any() or (name in start and not start[name].any()), f"{name} is zero"
        assert subject.trains or all(close_where_both(state, start) for state in held)


def listens(subject: Subject) -> None:
    """What the server sends moves every client that receives something, and what a client sends moves the server."""
    for r in range(ROUNDS):
        server, own, clients = subject.moment(r)
        for k, update in enumerate(subject.updates(nudged(server), own, clients)):
            if subject.method.download(subject.method.broadcast(server), clients[k]):
                assert not close(update.upload | update.private, subject.run.private(r, k))
        uploads = subject.uploads(r)
        for k, upload in enumerate(uploads):
            sent = dataclasses.replace(upload, state=nudged(upload.state), sealed=nudged(upload.sealed))
            moved = subject.aggregate(r, [*uploads[:k], sent, *uploads[k + 1 :]])
            assert close(moved, subject.run.server(r + 1)) == (not upload.state and not upload.sealed)


def weighs_nothing(subject: Subject) -> None:
    """A record of weight 0 counts as the others do, in n_k and in batches, and nobody sees what it holds."""
    left_out = frozenset(record for own in subject.world.training for record in own[::2])
    world = dataclasses.replace(subject.world, left_out=left_out)
    run = world.run(subject.method, subject.path / "without")
    disguised = world.disguised(left_out).run(subject.method, subject.path / "disguised")
    assert contents(run.folder.path) == contents(disguised.folder.path)
    for r in range(ROUNDS):
        counted, about = (one.round(r)["uploads"] for one in (subject.run, run))
        assert [about[k]["records"] for k in about] == [counted[k]["records"] for k in counted]
    moved = [not same(run.private(ROUNDS - 1, k), subject.run.private(ROUNDS - 1, k)) for k in range(CLIENTS)]
    assert any(moved) == subject.trains  # it was in a batch


def releases_nobody(subject: Subject) -> None:
    """No tensor of the released model lists what every client sent or holds: such a table is its clients' (`by_client`)."""
    run = subject.run
    for r in range(ROUNDS):
        held = [run.private(r, k) | run.own_model(r, k) for k in range(CLIENTS)]
        for table in run.sent_to_all(r + 1).values():
            for name in held[0]:
                rows = [own[name] for own in held]
                listed = table.shape[:1] == (CLIENTS,) and table.shape[1:] == rows[0].shape
                assert not listed or not all(torch.equal(*pair) for pair in zip(table, rows, strict=True)), name


def explains(subject: Subject) -> None:
    """What attacks are told of a message of prompts is so: what its records made of it (`data_gradient_sum`) is the sum
    over the steps of their coefficients times the batch's gradient where the client began, to first order in the rates.
    What the client has kept is nudged, since at these rates its traces in the next message would be too small.

    What clients put into a sum on shares is such a message too, in which every record is once.
    """
    if not isinstance(subject.method, PromptMethod) or not subject.method.sends:
        return
    subject = subject.with_rates(SLOW, "explains", local_steps=3, momentum=0.5)
    method, learner = subject.method, subject.world.learner
    assert isinstance(method, PromptMethod)
    for r in range(ROUNDS):
        server, own, clients = subject.moment(r)
        own = [nudged(state) for state in own] if r else own
        for client, held, update in zip(clients, own, subject.updates(server, own, clients), strict=True):
            sent = method.broadcast(server)
            known = {name: t for name, t in sent.items() if update.upload and name not in method.by_client}
            known |= method.download(sent, client)
            steps = method.steps(len(client.records))
            message = update.upload or {"gradient": update.sealed["gradient"]}
            found = method.messages.data_gradient_sum(*map(of_one, (known, held, message)), learner, steps)[0]
            start = method.messages.round_start(known, held)
            batches = [method.minibatch(client, step) for step in range(steps)] if update.upload else [client.records]
            counts = method.messages.step_coefficients(steps) if update.upload else [1.0]
            means = [torch.cat([*learner.sent_gradients(method, start, batch)]).mean(0) for batch in batches]
            expected = sum(float(count) * mean for count, mean in zip(counts, means, strict=True))
            assert (found - expected).norm() < 0.03 * expected.norm()


def uses(subject: Subject) -> None:
    """A client's records change what is trained where `used_records` says so, and no others do but those that it sends."""
    client, records = max(enumerate(subject.world.training), key=lambda pair: len(pair[1]))
    messages, settings = subject.method.messages, subject.world.learner.settings
    rounds = range(ROUNDS if subject.trains else 0)
    used = messages.used_records(records, client=client, seed=0, rounds=rounds, settings=settings)
    for record in set(records) - messages.shared_records(records, client=client, seed=0):
        world = subject.world.disguised({record})
        other = dataclasses.replace(subject, world=world).again(f"without {record}")
        moved = [not same(subject.run.private(ROUNDS - 1, k), other.private(ROUNDS - 1, k)) for k in range(CLIENTS)]
        assert any(moved) == (record in used)


def is_audited(subject: Subject) -> None:
    """Every adversary has models like the public one, under which each record has a loss, and so has the evaluation of every
    round."""
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
    releases_nobody, explains, uses, is_audited,
)  # fmt: skip


# --- every method keeps them ----------------------------------------------------------------------------------------


def subject_of(name: str, path: Path, alter: Callable[[type], type] = lambda cls: cls) -> Subject:
    """A method of the folder in its learner's world, or what `alter` makes of its class."""
    plugin = METHODS[name]
    world = WORLDS[plugin.facts.learner]()
    method = world.make(plugin)
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return Subject(alter(type(method))(**fields), world, plugin, path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Methods as they are, each trained once."""
    return functools.cache(lambda name: subject_of(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_it_or_says_why_not(name: str, contract: Contract, sound: Callable[[str], Subject]) -> None:
    """A refusal of a contract that holds is none."""
    if contract.__name__ in sound(name).method.refuses:
        with pytest.raises(AssertionError):
            contract(sound(name))
    else:
        contract(sound(name))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_refused_is_a_contract_and_has_a_reason(name: str, sound: Callable[[str], Subject]) -> None:
    refused = sound(name).method.refuses
    assert refused.keys() <= {contract.__name__ for contract in CONTRACTS}
    assert all(len(why.split()) > 3 for why in refused.values())


# --- and every contract refuses its planted fault -------------------------------------------------------------------


def altered(**functions: Callable[..., Any]) -> Callable[[type], type]:
    """Makes subclasses with these functions; each is given the class's own one first."""

    def alter(cls: type) -> type:
        faulty = {
            name: functools.partialmethod(_behind, function, getattr(cls, name)) for name, function in functions.items()
        }
        return type("Faulty", (cls,), faulty)

    return alter


def _behind(self: Any, function: Callable[..., Any], original: Callable[..., Any], *given: Any) -> Any:
    return function(original, self, *given)


def updated(change: Callable[[State, State, State], State]) -> Callable[[type], type]:
    """Updates whose message and own part are changed afterwards, in view of what was received and held."""

    def update(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
        done = original(self, server, own, client)
        return Update(change(done.upload, server, own), change(done.private, server, own), done.facts)

    return altered(update=update)


def aggregated(change: Callable[[State], State]) -> Callable[[type], type]:
    """Aggregates that are changed afterwards."""
    return altered(aggregate=lambda original, self, *given: change(original(self, *given)))


def received(change: Callable[[Sequence[Upload]], Sequence[Upload]]) -> Callable[[type], type]:
    """Aggregates of changed messages."""
    return altered(
        aggregate=lambda original, self, server, uploads, site: original(self, server, change(uploads), site)
    )


def every(change: Callable[[Tensor], Tensor]) -> Callable[..., State]:
    """Changes each tensor of a state."""
    return lambda state, *_: {name: change(tensor) for name, tensor in state.items()}


zeros, pushed = every(torch.zeros_like), every(lambda tensor: tensor + 0.01)
unseeded = every(lambda tensor: tensor + 0.01 * torch.rand(()))
by_place = every(lambda tensor: tensor * torch.arange(1.0, 1 + len(tensor))[:, None, None])  # in the cohort


def idle(state: State, server: State, own: State) -> State:
    """As if nothing had been trained."""
    return zeros(state) | {name: t for name, t in (own | server).items() if name in state}


def deaf(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Goes by what the client held instead of what it receives."""
    found: Update = original(self, {name: own.get(name, tensor) for name, tensor in server.items()}, own, client)
    return found


def mixed_up(uploads: Sequence[Upload]) -> list[Upload]:
    """Every message counts as much as the one at the other end."""
    return [dataclasses.replace(u, records=v.records) for u, v in zip(uploads, uploads[::-1], strict=True)]


def overwritten(uploads: Sequence[Upload]) -> Sequence[Upload]:
    for tensor in uploads[0].state.values():
        tensor += 1
    return uploads


def noisy(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Noises where it is private, whatever the standard deviation."""
    done: Update = original(self, server, own, client)
    return dataclasses.replace(done, upload=pushed(done.upload)) if self.protection.private else done


def counting(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    """Takes longer steps the more records there are."""
    found = original(self, server, uploads, site)
    return {name: tensor * (1 + 0.01 * uploads[0].records) for name, tensor in found.items()}


def misread(change: Callable[[Participation], Participation]) -> Callable[[type], type]:
    """`update` with a change of what clients are given."""

    def update(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
        if isinstance(self, PromptMethod):
            client.clients = [change(one) for one in client.clients]
        else:
            client = change(client)
        found: Update = original(self, server, own, client)
        return found

    return altered(update=update)


def blind_to_weights(client: Participation) -> Participation:
    """Takes every record of the list for a member."""
    return dataclasses.replace(client, left_out=frozenset())


def idle_mostly(client: Participation) -> Participation:
    """Trains on one record."""
    return dataclasses.replace(client, records=client.records[:1])


def pacing(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    """Moves on by the rate of its server, which is not the clients'."""
    found: State = original(self, server, uploads, site)
    return {name: tensor + with_rates(ServerRate(), 0.0).server_rate for name, tensor in found.items()}


@dataclass(frozen=True)
class ServerRate:
    server_rate: float = 0.01


def outspoken(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    """Makes public by how much each tensor moved."""
    found: State = original(self, server, uploads, site)
    return found | {f"velocity of {name}": tensor - server[name] for name, tensor in found.items()}


def without_velocity(original: Any, self: Any, server: State, client: Participation) -> State:
    """Receives a state without that."""
    return {name: tensor for name, tensor in original(self, server, client).items() if "velocity" not in name}


def unsorted(original: Any, self: Any, state: State) -> State:
    """Makes models of whatever a party holds."""
    return state | original(self, state)


def louder(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Sends a tenth more than its steps came to."""
    done: Update = original(self, server, own, client)
    sent = done.upload["p_G"] + 0.1 * (done.upload["p_G"] - server["p_G"])
    return dataclasses.replace(done, upload={"p_G": sent})


def drifting(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Adds a tenth of how far it moved in the round before, which it keeps."""
    done: Update = original(self, server, own, client)
    drift = own["drift"] if "drift" in own else torch.zeros_like(done.upload["p_G"])
    moved = done.upload["p_G"] - server["p_G"]
    return dataclasses.replace(done, upload={"p_G": done.upload["p_G"] + 0.1 * drift}, private={"drift": moved})


def hoarding(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    """Keeps every message in the released model."""
    sent = {f"all {name}": torch.stack([upload.state[name] for upload in uploads]) for name in uploads[0].state}
    found: State = original(self, server, uploads, site)
    return found | sent


def replaced(**fields: Any) -> Callable[[type], type]:
    """Makes subclasses of which these are others."""
    return lambda cls: type("Faulty", (cls,), fields)


def aggregate(self: Any, server: State, messages: Sequence[Upload], site: Site) -> State:
    """Calls the uploads something else."""
    return server


FAULTS: tuple[tuple[Contract, str, Callable[[type], type], tuple[str, ...]], ...] = (
    (signatures, "another signature", replaced(aggregate=aggregate), ("fedavg", "dpfpl")),
    (repeats, "a generator of nobody's", updated(unseeded), ("fedavg", "promptfl", "local")),
    (order, "weights by place", received(mixed_up), ("fedavg", "promptfl")),
    (order, "clients by place", updated(by_place), ("promptfl", "dpfpl")),
    (changes_nothing_given, "messages overwritten", received(overwritten), ("fedavg", "promptfl", "dpfpl")),
    (rests, "clients move by themselves", updated(pushed), ("fedavg", "promptfl", "local", "dpfpl")),
    (rests, "the server moves by itself", aggregated(pushed), ("fedrand", "fedpgp")),
    (equals_the_plain_run, "noise without a noise", altered(update=noisy), ("promptfl", "dpfpl", "dpfedavg")),
    (equals_the_plain_run, "steps by records", altered(aggregate=counting), ("fedavg", "fedotp")),
    (learns, "zeros from clients", updated(zeros), ("fedavg", "fedrand", "promptfl", "local", "dpfpl")),
    (learns, "zeros from the server", aggregated(zeros), ("fedavg", "promptfl", "dpfpl")),
    (learns, "nothing trained", updated(idle), ("fedavg", "promptfl", "local", "dpfpl")),
    (learns, "trained although it says that it does not", aggregated(pushed), ("zeroshot",)),
    (listens, "clients that ignore the server", altered(update=deaf), ("fedavg", "promptfl", "dpfpl")),
    (listens, "a server that hears one client", received(lambda uploads: uploads[:1]), ("fedavg", "promptfl", "dpfpl")),
    (weighs_nothing, "records of weight 0 trained on", misread(blind_to_weights), ("fedavg", "local", "dpfpl")),
    (releases_nobody, "messages in the released model", altered(aggregate=hoarding), ("promptfl",)),
    (explains, "a term that sees no record", updated(pushed), ("promptfl", "dpfpl", "fedprox")),
    (explains, "a part of the round before", altered(update=drifting), ("promptfl", "fedprox")),
    (rests, "a server that moves at a rate of its own", altered(aggregate=pacing), ("fedavg", "promptfl")),
    (explains, "messages of another size", altered(update=louder), ("promptfl", "fedpgp", "pfedme")),
    (uses, "records that are never looked at", misread(idle_mostly), ("fedavg", "promptfl")),
    (is_audited, "momentum in the released model", altered(aggregate=outspoken, download=without_velocity), ("fedavg",)),
    (is_audited, "all of a state in a model", altered(model=unsorted), ("pfedme", "dp2fl")),
    (releases_nobody, "clients' tables in the released model", replaced(by_client=()), ("dp2fl",)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("contract", "alter", "name"),
    [
        pytest.param(contract, alter, name, id=f"{contract.__name__}-{what}-{name}")
        for contract, what, alter, names in FAULTS
        for name in names
    ],
)
def test_a_planted_fault_is_refused(
    contract: Contract, alter: Callable[[type], type], name: str, tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, InputError)):  # a learner may refuse the model itself
        contract(subject_of(name, tmp_path, alter))


def test_every_contract_is_shown_a_fault() -> None:
    assert {contract for contract, *_ in FAULTS} == set(CONTRACTS)
