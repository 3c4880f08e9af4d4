"""What every method promises, whatever it trains; methods are found by looking into the folder.

Every contract of `fedaudit.contracts.methods` is also shown methods with a planted fault, which it must refuse.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaudit.contracts.method_worlds import with_rates
from fedaudit.contracts.methods import CONTRACTS, Contract, MethodInWorld, breaks, refuses_with_a_reason, subject_of
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.base import Participation, Site, State, Update, Upload
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.prompts import PromptMethod

Sound = Callable[[str], MethodInWorld]
Alter = Callable[[type], type]
pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Methods as they are, each trained once."""
    return functools.cache(lambda name: subject_of(METHODS[name], tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_it_or_says_why_not(name: str, contract: Contract, sound: Sound) -> None:
    """A refusal of a contract that holds is none."""
    if contract.__name__ in sound(name).method.refuses:
        breaks(contract, sound(name))
    else:
        contract(sound(name))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_refused_is_a_contract_and_has_a_reason(name: str, sound: Sound) -> None:
    refuses_with_a_reason(sound(name))


def altered(**functions: Callable[..., Any]) -> Alter:
    """Makes subclasses with these functions; each is given the class's own one first."""

    def alter(cls: type) -> type:
        behind = ((name, function, getattr(cls, name)) for name, function in functions.items())
        return type("Faulty", (cls,), {name: functools.partialmethod(_behind, *both) for name, *both in behind})

    return alter


def _behind(self: Any, function: Callable[..., Any], original: Callable[..., Any], *given: Any) -> Any:
    return function(original, self, *given)


def updated(change: Callable[[State, State, State], State]) -> Alter:
    """Updates whose message and own part are changed afterwards, in view of what was received and held."""

    def update(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
        done = original(self, server, own, client)
        return Update(change(done.upload, server, own), change(done.private, server, own), done.facts)

    return altered(update=update)


def aggregated(change: Callable[[State], State]) -> Alter:
    return altered(aggregate=lambda original, self, *given: change(original(self, *given)))


def received(change: Callable[[Sequence[Upload]], Sequence[Upload]]) -> Alter:
    return altered(aggregate=lambda original, self, server, sent, site: original(self, server, change(sent), site))


def every(change: Callable[[Tensor], Tensor]) -> Callable[..., State]:
    return lambda state, *_: {name: change(tensor) for name, tensor in state.items()}


zeros, pushed = every(torch.zeros_like), every(lambda tensor: tensor + 0.01)
unseeded = every(lambda tensor: tensor + 0.01 * torch.rand(()))
by_place = every(lambda tensor: tensor * torch.arange(1.0, 1 + len(tensor))[:, None, None])  # in the cohort


def idle(state: State, server: State, own: State) -> State:
    return zeros(state) | {name: t for name, t in (own | server).items() if name in state}


def deaf(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    return original(self, {name: own.get(name, tensor) for name, tensor in server.items()}, own, client)


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


def misread(change: Callable[[Participation], Participation]) -> Alter:
    """`update` with a change of what clients are given."""

    def update(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
        if isinstance(self, PromptMethod):
            client.clients = [change(one) for one in client.clients]
        else:
            client = change(client)
        return original(self, server, own, client)

    return altered(update=update)


def blind_to_weights(client: Participation) -> Participation:
    return dataclasses.replace(client, left_out=frozenset())


def idle_mostly(client: Participation) -> Participation:
    return dataclasses.replace(client, records=client.records[:1])


def curious(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Adds the length of the gradient of a record that another client holds."""
    found: Update = original(self, server, own, client)
    if isinstance(client, Participation):
        size = sum(client.learner.losses(server, ["r2"]))
    else:
        size = float(client.clients[0].learner.images(["0-0"]).sum())
    return dataclasses.replace(found, upload={name: tensor + size for name, tensor in found.upload.items()})


def prying(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    """Moves by what a record shows that is in no batch of the two rounds."""
    found: State = original(self, server, uploads, site)
    shown = site.ask(lambda learner: {"0-2": learner.images(["0-2"]).sum()})
    return {name: tensor + 0.01 * shown["0-2"] for name, tensor in found.items()}


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


def louder(state: State, server: State, own: State) -> State:
    """A tenth more than the steps came to."""
    return {name: t + 0.1 * (t - server[name]) if name == "p_G" else t for name, t in state.items()}


def drifting(original: Any, self: Any, server: State, own: State, client: Any) -> Update:
    """Adds a tenth of how far it moved in the round before, which it keeps."""
    done: Update = original(self, server, own, client)
    drift = own["drift"] if "drift" in own else torch.zeros_like(done.upload["p_G"])
    moved = done.upload["p_G"] - server["p_G"]
    return dataclasses.replace(done, upload={"p_G": done.upload["p_G"] + 0.1 * drift}, private={"drift": moved})


def hoarding(original: Any, self: Any, server: State, uploads: Sequence[Upload], site: Site) -> State:
    sent = {f"all {name}": torch.stack([upload.state[name] for upload in uploads]) for name in uploads[0].state}
    return original(self, server, uploads, site) | sent


def replaced(**fields: Any) -> Alter:
    """Makes subclasses of which these are others."""
    return lambda cls: type("Faulty", (cls,), fields)


def aggregate(self: Any, server: State, messages: Sequence[Upload], site: Site) -> State:
    return server


BY_NAME = {contract.__name__: contract for contract in CONTRACTS}
FAULTS: tuple[tuple[str, str, Alter, tuple[str, ...]], ...] = (
    ("signatures", "another signature", replaced(aggregate=aggregate), ("fedavg", "dpfpl")),
    ("repeats", "a generator of nobody's", updated(unseeded), ("fedavg", "promptfl")),
    ("order", "weights by place", received(mixed_up), ("fedavg", "promptfl")),
    ("order", "clients by place", updated(by_place), ("dpfpl",)),
    ("changes_nothing_given", "messages overwritten", received(overwritten), ("fedavg", "dpfpl")),
    ("rests", "clients move by themselves", updated(pushed), ("fedavg", "local")),
    ("rests", "the server moves by itself", aggregated(pushed), ("fedrand", "fedpgp")),
    ("rests", "a server that moves at a rate of its own", altered(aggregate=pacing), ("promptfl",)),
    ("equals_the_plain_run", "noise without a noise", altered(update=noisy), ("dpfpl", "dpfedavg")),
    ("equals_the_plain_run", "steps by records", altered(aggregate=counting), ("fedavg", "fedotp")),
    ("learns", "zeros from clients", updated(zeros), ("fedrand", "local")),
    ("learns", "zeros from the server", aggregated(zeros), ("fedavg", "dpfpl")),
    ("learns", "nothing trained", updated(idle), ("fedavg", "promptfl", "local")),
    ("learns", "trained although it says that it does not", aggregated(pushed), ("zeroshot",)),
    ("listens", "clients that ignore the server", altered(update=deaf), ("fedavg", "dpfpl")),
    ("listens", "a server that hears one client", received(lambda uploads: uploads[:1]), ("fedavg", "promptfl")),
    ("weighs_nothing", "records of weight 0 trained on", misread(blind_to_weights), ("fedavg", "dpfpl")),
    ("releases_nobody", "messages in the released model", altered(aggregate=hoarding), ("promptfl",)),
    ("releases_nobody", "clients' tables in the released model", replaced(by_client=()), ("dp2fl",)),
    ("explains", "a term that sees no record", updated(pushed), ("promptfl", "dpfpl")),
    ("explains", "a part of the round before", altered(update=drifting), ("fedprox",)),
    ("explains", "messages of another size", updated(louder), ("promptfl", "pfedme")),
    ("uses", "records that are never looked at", misread(idle_mostly), ("fedavg", "promptfl")),
    ("uses", "records that are no part of any batch", altered(aggregate=prying), ("promptfl",)),
    ("keeps_apart", "a look at another client's record", altered(update=curious), ("fedavg", "promptfl")),
    ("is_audited", "momentum that is released", altered(aggregate=outspoken, download=without_velocity), ("fedavg",)),
    ("is_audited", "all of a state in a model", altered(model=unsorted), ("pfedme", "dp2fl")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("contract", "alter", "name"),
    [
        pytest.param(BY_NAME[contract], alter, name, id=f"{contract}-{what}-{name}")
        for contract, what, alter, names in FAULTS
        for name in names
    ],
)
def test_a_planted_fault_is_refused(contract: Contract, alter: Alter, name: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, InputError)):  # a learner may refuse the model itself
        contract(subject_of(METHODS[name], tmp_path, alter))


def test_every_contract_is_shown_a_fault() -> None:
    assert {contract for contract, *_ in FAULTS} == {*BY_NAME}
