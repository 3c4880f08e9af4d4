"""What a method is written with: what clients and the server send, keep and compute in a round.

A method is two functions: what one client does with what it receives (`update`), and what the server makes of the
uploads (`aggregate`). The loop (`trainers.rounds`) calls them; an executor decides where the clients of a round run,
and a learner whether one by one or as one batched problem.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedaudit.privacy.ledger import Mechanism, Turn
from trainers.messages import MethodMessages

State = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """Who talks to whom: the part of a run that is no method's."""

    rounds: int = 10
    clients: int = 12
    per_round: int = 4
    seed: int = 0
    public: int | None = None  # seed of what everybody sees, the start and who takes part; None: that of all else
    newcomers: int = 0  # the last so many clients come after the last round

    @property
    def present(self) -> int:
        """Clients that can take part."""
        return self.clients - self.newcomers

    @property
    def public_seed(self) -> int:
        return self.seed if self.public is None else self.public

    def cohort(self, r: int) -> list[int]:
        """Who takes part in round r."""
        order = torch.randperm(self.present, generator=generator(self.public_seed, "cohort", r))
        return sorted(order[: self.per_round].tolist())


@dataclass(frozen=True)
class Noised:
    """What a party noised in a round: each mechanism as it ran, and the size of what the noise covers."""

    mechanisms: list[Mechanism] = field(default_factory=list)
    signals: dict[str, float] = field(default_factory=dict)  # release to L2 norm before the noise, mean over clients
    clipped: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # release to gradients longer than C, and to all of them
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Update:
    """What one client makes of a broadcast: what it sends, and what it keeps to itself."""

    upload: State
    private: State  # what it holds after the round, its whole model or its part of it; for the owner and for evaluation
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the server learns beside the tensors
    noised: Noised = field(default_factory=Noised)
    sealed: State = field(default_factory=dict)  # what it puts into a computation on shares: nobody else sees it


@dataclass(frozen=True)
class Upload:
    """One client's message as the server received it; `records` is n_k.

    `sealed` the server did not receive: what is computed of it on shares is in the site's `revealed`.
    """

    client: int
    records: int
    state: State
    facts: Mapping[str, Any] = field(default_factory=dict)
    sealed: State = field(default_factory=dict)


@dataclass
class Revealed:
    """What a computation on shares told the server in a round, and what it cost."""

    tensors: State = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    held: State = field(default_factory=dict)  # what users hold of each other's, not the server: [holder, dealer, ..]
    bytes_up: int = 0  # of all clients; shares for other clients pass through the server
    bytes_down: int = 0


Model = Callable[[State], State]


def plain(state: State) -> State:
    """The model of methods whose states are adapters as they are."""
    return state


@dataclass(frozen=True)
class Participation:
    """A client at work in one round, as a method sees it."""

    client: int
    round: int
    seed: int
    records: Sequence[str]  # its list, n_k
    learner: Any
    earlier: Sequence[int] = ()  # the rounds in which it took part before
    left_out: frozenset[str] = frozenset()  # of the list those that weigh 0: they count, and move nothing

    def train(self, state: State, model: Model = plain) -> State:
        """Local training of every tensor of `state` on the client's own records; `model` is the method's own, if it has
        one."""
        return self.learner.train(state, self.records, self.generator("batches"), model, self.left_out)

    def generator(self, purpose: str, step: int = 0) -> torch.Generator:
        """Randomness of this client in this round; another purpose or step gives an independent stream."""
        return generator(self.seed, "client", self.client, self.round, purpose, *([step] if step else []))


Question = Callable[[Any], State]  # of a learner; it travels to where that is


@dataclass(frozen=True)
class Site:
    """The server at work in one round."""

    seed: int
    round: int
    noised: Noised = field(default_factory=Noised)
    party: str = "server"
    revealed: Revealed = field(default_factory=Revealed)
    learner: Callable[[Question], State] | None = None  # answers what a server computes with the frozen model

    def ask(self, question: Question) -> State:
        """What the learner answers to a function of it, where the learner is."""
        assert self.learner is not None, "this server has no model"
        return self.learner(question)

    def generators(self, purpose: str) -> list[torch.Generator]:
        """The server's own randomness, one generator; another purpose gives an independent stream."""
        return [generator(self.seed, "server", self.round, purpose)]


@dataclass(frozen=True)
class Arrival:
    """A way in which a client may come to a run that is over."""

    start: State  # what the client begins with
    server: State  # the server's state of its first round


Client = TypeVar("Client")


class Method(ABC, Generic[Client]):
    """A published method. Parties that exchange everything and train plain adapters need the first two functions only.

    `Client` is what its clients work with: a `Participation`, or for prompts a whole cohort as one batched problem.
    """

    # tables [C, ..] of the server's state by clients' numbers: parts of each that all others are sent, and nobody else
    by_client: ClassVar[tuple[str, ...]] = ()
    # contracts (tests/test_method_contracts.py) that it does not keep, each with the reason why that is right
    refuses: ClassVar[Mapping[str, str]] = {}
    # what its clients' records reach, as the ledger's readers call it; what no noise is added to is unbounded
    local: ClassVar[tuple[str, ...]] = ()  # stays with the client, part of the model that it holds in the end
    shared: ClassVar[tuple[str, ...]] = ("what clients train",)  # uploaded and broadcast

    @abstractmethod
    def update(self, server: State, own: State, client: Client) -> Update:
        """What a client does with what it receives, `server`.

        `own` is what it held after its last participation; before its first one, the common public start.
        """

    @abstractmethod
    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        """The next server state; `uploads` come in the order of the clients' numbers."""

    def start(self, initial: State) -> State:
        """The common public start, from what the learner offers."""
        return initial

    def broadcast(self, server: State) -> State:
        """What of its state the server makes public, the released model with it: all but what it keeps to itself, as
        the momentum of its own steps. As in a first round, `aggregate` can do without that: attacks step on what was
        sent."""
        return server

    def download(self, server: State, client: Participation) -> State:
        """What a client receives of a broadcast."""
        return server

    @property
    def central(self) -> tuple[str, ...]:
        """What the server noises, on the average of the clients' gradients: these carry no noise."""
        return ()

    @property
    def sends(self) -> bool:
        """Whether clients send anything of their own."""
        return True

    def arrivals(self, server: State, public: State) -> dict[str, Arrival]:
        """How a client may come after a run, from the server's last state or the public start, the supposedly best way
        first; {} where the method does not say. Its `Facts` then say `newcomers = True`."""
        return {}

    def model(self, state: State) -> State:
        """What a party's state stands for: one adapter pair A and B per layer, or a prompt; differentiable."""
        return state

    @property
    def messages(self) -> MethodMessages[Any]:
        """What attacks ask of the method."""
        return MethodMessages(self)


def generator(seed: int, *path: str | int) -> torch.Generator:
    """An independent generator for each path of words and numbers below a seed."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    state = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """sum_k w_k theta_k over states with the same names, in the order given; the weights are used as they are."""
    return {
        name: torch.stack([w * state[name] for w, state in zip(weights, states, strict=True)]).sum(0)
        for name in states[0]
    }


def size(state: State) -> int:
    """Bytes of the tensors of a message."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def plugin_name(method: Method[Any]) -> str:
    """A method's key on the command line: the name of its file."""
    return type(method).__module__.rpartition(".")[2]


def pack(state: State) -> bytes:
    """A state on its way between processes: plain bytes, so that no shared memory is left behind by a kill."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def unpack(data: bytes) -> State:
    return safetensors.torch.load(data)
