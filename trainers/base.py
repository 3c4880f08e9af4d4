"""The types that a method is written with: what clients and the server send, keep and compute in a round.

A method has two functions: `update` trains a client on what it receives, `aggregate` makes the server's next state of
the uploads. The round loop (`trainers.rounds`) calls them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from fedaudit.privacy.ledger import Mechanism, Turn
from fedaudit.trainers.generators import generator as generator  # from here, too
from fedaudit.trainers.messages import MethodMessages

State = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """Number of rounds and clients, and who takes part in each round."""

    rounds: int = 10
    clients: int = 12
    per_round: int = 4
    seed: int = 0
    public: int | None = None  # seed of the common start and of the cohorts, which everybody sees; None: `seed`
    newcomers: int = 0  # the last N clients take part in no round: they join after the run

    @property
    def present(self) -> int:
        """Number of clients that can take part in rounds: all but the newcomers."""
        return self.clients - self.newcomers

    @property
    def public_seed(self) -> int:
        return self.seed if self.public is None else self.public

    def cohort(self, r: int) -> list[int]:
        """Numbers of the clients that take part in round r, sorted."""
        order = torch.randperm(self.present, generator=generator(self.public_seed, "cohort", r))
        return sorted(order[: self.per_round].tolist())


@dataclass(frozen=True)
class Noised:
    """Record of the noise that a party added in a round. `Protection.clip` and `noise` fill it in, not methods."""

    mechanisms: list[Mechanism] = field(default_factory=list)
    signals: dict[str, float] = field(default_factory=dict)  # by release: L2 norm before the noise, mean over clients
    # by release: number of gradients longer than C, and of all gradients
    clipped: dict[str, tuple[int, int]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)  # one per client: its records and steps


@dataclass(frozen=True)
class Update:
    """Result of a client's turn: what it uploads, and what it keeps."""

    upload: State
    private: State  # the client's model after the round, or its own part of it; only its owner and evaluations see it
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values that are uploaded beside the tensors
    noised: Noised = field(default_factory=Noised)
    sealed: State = field(default_factory=dict)  # its input to a computation on secret shares: nobody else sees it


@dataclass(frozen=True)
class Upload:
    """One client's message as the server received it; `records` is n_k.

    Only `aggregate` gets `sealed`, to simulate the computation on secret shares; a real server would not see it. What
    that computation reveals goes into `Site.revealed`.
    """

    client: int
    records: int
    state: State
    facts: Mapping[str, Any] = field(default_factory=dict)
    sealed: State = field(default_factory=dict)


@dataclass
class Revealed:
    """Output of a round's computation on secret shares, and its traffic. `aggregate` fills it in."""

    tensors: State = field(default_factory=dict)  # what the server learns
    facts: dict[str, Any] = field(default_factory=dict)  # the same as JSON values
    held: State = field(default_factory=dict)  # shares [holder, dealer, ..] that users hold, not the server
    bytes_up: int = 0  # sum over clients; shares for other clients pass through the server
    bytes_down: int = 0


Model = Callable[[State], State]


def plain(state: State) -> State:
    """Return `state` unchanged: the `model` of methods whose states are plain adapters."""
    return state


@dataclass(frozen=True)
class Participation:
    """One client in one round, as a method sees it."""

    client: int
    round: int
    seed: int
    records: Sequence[str]  # ids of its n_k training records
    learner: Any
    earlier_rounds: Sequence[int] = ()  # earlier rounds in which it took part
    left_out: frozenset[str] = frozenset()  # records of weight 0: they count in n_k and in batches, with gradient 0

    def train(self, state: State, model: Model = plain) -> State:
        """The tensors of `state` after local training on the client's records. Pass `Method.model` as `model` if the
        method overrides it."""
        return self.learner.train(state, self.records, self.generator("batches"), model, self.left_out)

    def generator(self, purpose: str, step: int = 0) -> torch.Generator:
        """A generator for this client and round; each `purpose` and `step` has an independent stream."""
        return generator(self.seed, "client", self.client, self.round, purpose, *([step] if step else []))


Question = Callable[[Any], State]  # called with the learner, in the process that holds it; it must be picklable


@dataclass(frozen=True)
class Site:
    """The server in one round, as `Method.aggregate` sees it."""

    seed: int
    round: int
    noised: Noised = field(default_factory=Noised)
    party: str = "server"
    revealed: Revealed = field(default_factory=Revealed)
    learner: Callable[[Question], State] | None = None  # calls a function with the learner

    def ask(self, question: Question) -> State:
        """Return `question(learner)`, computed in the process that holds the learner; AssertionError without one."""
        assert self.learner is not None, "this server has no model"
        return self.learner(question)

    def generators(self, purpose: str) -> list[torch.Generator]:
        """A list of one generator, for this server and round; each `purpose` has an independent stream."""
        return [generator(self.seed, "server", self.round, purpose)]


@dataclass(frozen=True)
class Arrival:
    """States with which a client can join a finished run."""

    start: State  # what the new client receives
    server: State  # the server's state at the beginning of its first round


Client = TypeVar("Client")


class Method(ABC, Generic[Client]):
    """Base class of methods. Yours is one file in `trainers/`, whose name is its name on the command line.

    You write two functions. FedAvg with equal weights is

        def update(self, server: State, own: State, client: Participation) -> Update:
            trained = client.train(server)
            return Update(upload=trained, private=trained)

        def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
            return weighted_mean([upload.state for upload in uploads], [1 / len(uploads)] * len(uploads))

    You choose the names of the tensors in a state. Draw random numbers only from `client.generator(purpose)` and
    `site.generators(purpose)`. Override another function where your method differs: `start` if training needs other
    tensors, `download` if a client receives less than what is broadcast, `broadcast` if the server keeps a part of its
    state, `model` if your states are no plain adapters, `messages` if attacks must read your uploads in another way.
    Beside the class your file has `Params`, whose fields become options of the command, and `Facts`: CONTRIBUTING.md,
    "A method", has whole files.

    `Client` is the type of `client`: a `Participation`, or a whole cohort as one batched problem (`PromptMethod`).
    """

    # names of tables [C, ..] in the server's state, a row per client, that are sent to clients but not published
    by_client: ClassVar[tuple[str, ...]] = ()
    # contracts (tests/test_method_contracts.py) that it rightly breaks, each with the reason
    refuses: ClassVar[Mapping[str, str]] = {}
    # names, for the privacy ledger, of what is computed from clients' records; without noise its epsilon is infinite
    local: ClassVar[tuple[str, ...]] = ()  # stays with the client, part of its final model
    shared: ClassVar[tuple[str, ...]] = ("what clients train",)  # uploaded and broadcast

    @abstractmethod
    def update(self, server: State, own: State, client: Client) -> Update:
        """Train one client, and return what it uploads and keeps.

        `server` is what it received (see `download`); `own` is what it held after its last participation, or at its
        first one the common public start.
        """

    @abstractmethod
    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        """The server's next state. `uploads` are in the order of the clients' numbers."""

    def start(self, initial: State) -> State:
        """The common public start, made of the tensors that the learner offers (`Learner.initial`)."""
        return initial

    def broadcast(self, server: State) -> State:
        """The public part of the server's state, with the released model; leave out what the server keeps to itself,
        as momentum. `aggregate` must also run without that part, as in the first round: attacks call it on broadcasts.
        """
        return server

    def download(self, server: State, client: Participation) -> State:
        """The part of a broadcast, `server`, that `client` receives."""
        return server

    @property
    def reveals(self) -> tuple[str, ...]:
        """Names of all that a computation on secret shares may reveal beside the model and mean uploads of groups, to
        the server (`Transcript.revealed`) or to all clients: each is read by an attack (tests/test_scatter.py)."""
        return ()

    @property
    def aggregation(self) -> str:
        """The kind of rule that `aggregate` is, as run.json of an exported run names it: "mean" if each tensor becomes
        a mean of its uploads, else another of `fedaudit.external.recording.AGGREGATIONS`."""
        return "mean"

    @property
    def central(self) -> tuple[str, ...]:
        """Names in `shared` to which the server, not the client, adds noise (on the mean of the clients' gradients)."""
        return ()

    @property
    def sends(self) -> bool:
        """Whether clients upload anything."""
        return True

    def arrivals(self, server: State, public: State) -> dict[str, Arrival]:
        """Ways for a client to join after the run, by name, the supposedly best one first; {} if the method has none.
        `server` is the server's last state, `public` the common start. If you override this, set `newcomers = True` in
        `Facts`."""
        return {}

    def model(self, state: State) -> State:
        """The model of a party's state, differentiable: an adapter pair A and B per layer, or {"prompt": tensor}."""
        return state

    @property
    def messages(self) -> MethodMessages[Any]:
        """Reads the method's uploads for attacks; see `trainers.messages`."""
        return MethodMessages(self)


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """sum_k w_k theta_k of states with the same names. The weights are not normalised; the order of addition is that of
    the states."""
    return {
        name: torch.stack([w * state[name] for w, state in zip(weights, states, strict=True)]).sum(0)
        for name in states[0]
    }


def mean_by_records(uploads: Sequence[Upload]) -> State:
    """sum_k n_k / m theta_k, the mean of the uploaded states weighted by the clients' numbers of records (FedAvg)."""
    m = sum(upload.records for upload in uploads)
    return weighted_mean([upload.state for upload in uploads], [upload.records / m for upload in uploads])


def size(state: State) -> int:
    """Bytes of all tensors of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def plugin_name(method: Method[Any]) -> str:
    """The method's name on the command line: that of its file."""
    return type(method).__module__.rpartition(".")[2]


def pack(state: State) -> bytes:
    """`state` as bytes, to send it between processes (a killed process would leave shared memory behind)."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def unpack(data: bytes) -> State:
    return safetensors.torch.load(data)
