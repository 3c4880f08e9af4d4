"""The round loop, once, and what it leaves behind: a transcript of what each party could see at every round.

A method is two functions: what one client does with what it receives (`update`), and what the server makes of the
uploads (`aggregate`). The loop calls them; an executor decides where the clients of a round run, and a learner whether
one by one or as one batched problem.
"""

from __future__ import annotations

import functools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.resource_usage import ResourceUsage, forget_peak, peak_memory
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.privacy.ledger import Mechanism, RoundNoise, Turn
from fedaudit.tasks.base import client_name
from trainers.messages import MethodMessages

if TYPE_CHECKING:
    from fedaudit.backbones.vlm import Encoded

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


class Learner(Protocol):
    """What a training asks of a learner. What is asked of it beside goes by its records: by attacks a `Classifier` or a
    `LanguageModel`, by evaluations see `trainers.evaluations`."""

    @property
    def clients_per_batch(self) -> int:
        """Clients of one job."""

    @property
    def remedy(self) -> str:
        """What to change where a training diverges."""

    def initial(self, generator: torch.Generator) -> State:
        """What methods start from."""

    def work(
        self, method: Any, received: Sequence[State], own: Sequence[State], clients: Sequence[Participation]
    ) -> list[Update]:
        """The updates of some clients by one of its methods."""


class OneByOne:
    """Learners whose clients train one after the other."""

    clients_per_batch = 1  # clients of one job

    def work(
        self,
        method: Method[Participation],
        received: Sequence[State],
        own: Sequence[State],
        clients: Sequence[Participation],
    ) -> list[Update]:
        return [method.update(*client) for client in zip(received, own, clients, strict=True)]


@runtime_checkable
class LanguageModel(Protocol):
    """What is asked of a learner whose records are texts."""

    data: Mapping[str, Encoded]  # of each record

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """(place in `records`, logits [T, V]) of some records at a time."""

    def words(self, record: str) -> str:
        """The part of a record that is learnt, as text."""

    def tokens(self, record: str) -> list[str]:
        """The tokens of a record, each as text."""


@runtime_checkable
class AdaptedModel(LanguageModel, Protocol):
    """What attacks on messages ask of a learner of texts beside; states are plain adapters, A and B per layer."""

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Text loss (nats per token) of each record."""

    def gradients(self, state: State, records: Sequence[str], *, each: bool) -> Iterator[Tensor]:
        """Of each record's text loss, [R, P] of some records at a time: all tensors of `state` laid end to end."""

    def inputs(
        self, adapter: State, records: Sequence[str], reduce: Callable[[str, Tensor], Tensor | None]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """(places in `records`, `reduce`(layer, inputs [R, T, in]) by layer) of some records at a time; None is left
        out."""


@runtime_checkable
class Classifier(Protocol):
    """What is asked of a learner whose records are classes; `method` is one of its own."""

    def labels(self, records: Sequence[str]) -> Tensor:
        """Places [n] of records among the C classes."""

    def log_probs(self, method: Any, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [M, n, C] of the classes, in nats and float64, by M models."""

    def untrained(self, records: Sequence[str]) -> NDArray[np.float64]:
        """The same [n, C] of what everybody can use without training."""


@runtime_checkable
class Differentiable(Classifier, Protocol):
    """What attacks on gradients and messages ask of a learner of classes beside. Gradients are of each record's
    cross-entropy, [R, ..] of some records at a time."""

    def gradients(self, method: Any, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """In all numbers of a model, laid end to end."""

    def sent_gradients(self, method: Any, start: State, records: Sequence[str]) -> Iterator[Tensor]:
        """In what a client sends, where it began a round (`trainers.messages.Sending.round_start`)."""


class Evaluation(Protocol):
    """How good models are: see `trainers.evaluations`. Utilities are numbers by model and metric."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        """Of the public start."""

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> dict[str, dict[str, float]]:
        """After a round: of the server's new state and of what the cohort's clients hold."""


@dataclass(frozen=True)
class AttackBench:
    """What the workers of an attack hold: a learner with its data, and each client's candidates, members or not (ids).

    Nothing here can say who trained on what: shadow models draw their members from the candidates.
    """

    learner: Learner
    candidates: Sequence[Sequence[str]]
    canaries: frozenset[str] = frozenset()  # candidates that stay in a client's list however their coin falls


@dataclass(frozen=True)
class Bench:
    """What every worker of a training holds: a learner with its data, and which records (ids) each client's list holds.

    Its learner is what evaluations and attacks ask, too.
    """

    learner: Learner
    training: Sequence[Sequence[str]]
    test: Sequence[str]
    novel_test: Sequence[str] = ()
    candidates: Sequence[Sequence[str]] = ()  # of each client, members or not
    canaries: frozenset[str] = frozenset()  # those of the candidates that are in the lists whatever their coin said
    left_out: frozenset[str] = frozenset()  # those of the lists that weigh 0

    @property
    def of_attackers(self) -> AttackBench:
        """The part of it that does not know who trains on what."""
        return AttackBench(self.learner, self.candidates, self.canaries)


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


@dataclass(frozen=True)
class Transcript:
    """A lazy reader over the files of a run: what was sent, received and kept, round by round."""

    folder: Folder
    schedule: Schedule
    model: Model = plain  # the method's: what adapter or prompt a state stands for
    by_client: tuple[str, ...] = ()  # the method's: what of a broadcast is no part of the released model
    sent: Model = plain  # the method's: what of the server's state is broadcast
    _cohorts: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Folder, schedule: Schedule, method: Method[Any]) -> Transcript:
        """The reader of a method's run."""
        return cls(folder, schedule, method.model, method.by_client, method.broadcast)

    def server(self, r: int) -> State:
        """The server's state that round r started from, with what it keeps to itself; for the training alone."""
        if r == 0:
            return self.folder.read_tensors("initial.safetensors")
        return self._part(r - 1, "aggregate")

    def broadcast(self, r: int) -> State:
        """What round r started from, as sent; `broadcast(rounds)` is the final one."""
        return self.sent(self.server(r))

    def sent_to_all(self, r: int) -> State:
        """The same without what is sent to clients alone: `sent_to_all(rounds)` is the released model."""
        return {name: tensor for name, tensor in self.broadcast(r).items() if name not in self.by_client}

    def round(self, r: int) -> dict[str, Any]:
        """Cohort, n_k, facts, bytes and utility of round r."""
        found: dict[str, Any] = self.folder.read_json(f"round-{r:03d}.json")
        return found

    @property
    def initial(self) -> dict[str, Any]:
        """Utility of the model before training, and out of distribution."""
        found: dict[str, Any] = self.folder.read_json("initial.json")
        return found

    @property
    def served_best(self) -> int:
        """After how many rounds the global model had its least held-out loss; all of them where none was measured."""
        losses = [self.round(r)["utility"].get("global", {}).get("loss") for r in range(self.schedule.rounds)]
        known = {r: loss for r, loss in enumerate(losses, 1) if loss is not None}
        return min(known, key=known.__getitem__, default=self.schedule.rounds)

    def cohort(self, r: int) -> list[int]:
        if r not in self._cohorts:  # a complete file never changes
            self._cohorts[r] = list(self.round(r)["cohort"])
        return self._cohorts[r]

    def before(self, r: int) -> dict[int, list[int]]:
        """Client to the rounds before r in which it took part, in order; only clients that did."""
        found: dict[int, list[int]] = {}
        for earlier in range(r):
            for client in self.cohort(earlier):
                found.setdefault(client, []).append(earlier)
        return found

    def participations(self, client: int, before: int | None = None) -> list[int]:
        """The rounds (below `before`) in which a client took part."""
        rounds = range(self.schedule.rounds if before is None else before)
        return [r for r in rounds if client in self.cohort(r)]

    def upload(self, r: int, client: int) -> State:
        return self._part(r, f"upload/{client}")

    def uploads(self, r: int) -> dict[int, State]:
        """All messages of a round by client, in one reading; a client whose message is empty is not there."""
        found: dict[int, State] = {}
        for name, tensor in self._part(r, "upload").items():
            client, _, key = name.partition("/")
            found.setdefault(int(client), {})[key] = tensor
        return found

    def kept(self, r: int, client: int) -> list[str]:
        """Names of the tensors of a client's model that its message of round r did not hold."""
        return list(self.round(r)["uploads"][str(client)]["kept"])

    def own_model(self, r: int, client: int) -> State | None:
        """The adapter or prompt of a client after round r, None if the run does not hold it. For the owner and for
        evaluation only.

        What a client does not hold itself, such as a global prompt, is the server's after the round.
        """
        if not self.round(r)["uploads"][str(client)]["owner"]:
            return None
        return self.model(self.broadcast(r + 1) | self.private(r, client))

    def private(self, r: int, client: int) -> State:
        """Everything that a client holds after round r. For the owner and for evaluation only."""
        return self.upload(r, client) | self._part(r, f"private/{client}")

    def revealed(self, r: int) -> State:
        """What a computation on shares told the server in round r; nothing where there was none."""
        return self._part(r, "revealed")

    def asked(self, r: int) -> list[list[int]]:
        """The groups of clients to whose means distances were revealed in round r."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("groups", [])
        return groups

    def summed(self, r: int) -> list[list[int]]:
        """The groups of clients whose sums were revealed in round r."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("summed", [])
        return groups

    def held(self, r: int) -> State:
        """The shares [holder, dealer, ..] that clients hold of each other's vectors in round r, by what is shared."""
        return self._part(r, "held")

    def personal(self, r: int, client: int) -> State:
        """A client's personalised prompt after round r: the aggregate with the client's own part. It is what prompt
        users get."""
        return self.model(self.broadcast(r + 1) | self._part(r, f"private/{client}"))

    def released(self, client: int) -> State:
        """The personalised prompt that a client releases in the end: the last aggregate with its own part, the public
        one if it never took part."""
        rounds = self.participations(client)
        own = self._part(rounds[-1], f"private/{client}") if rounds else {}
        return self.model(self.broadcast(0) | self.broadcast(self.schedule.rounds) | own)

    def holdings(self, clients: Mapping[int, int]) -> dict[int, State]:
        """What each client holds after its round r (client to r); every file is read once."""
        found: dict[int, State] = {}
        for r in sorted(set(clients.values())):
            tensors = self.folder.read_tensors(f"round-{r:03d}.safetensors")
            for part in ("upload", "private"):
                for name, tensor in tensors.items():
                    kind, _, rest = name.partition("/")
                    client, _, key = rest.partition("/")
                    if kind == part and clients.get(int(client)) == r:
                        found.setdefault(int(client), {})[key] = tensor
        return found

    def _part(self, r: int, prefix: str) -> State:
        return self.folder.read_tensors(f"round-{r:03d}.safetensors", f"{prefix}/")


def train(
    method: Method[Any],
    schedule: Schedule,
    evaluation: Evaluation,
    *,
    folder: Folder,
    executor: Executor[Bench],
    say: Callable[[str], None],
    advance: Callable[[], None],
    until: int | None = None,
    name: str = "",
    note: Callable[[int, ResourceUsage], None] = lambda r, spent: None,
) -> Transcript:
    """Run the rounds (below `until`) that `folder` does not hold yet; all state passes through its files, so a resumed
    run equals a whole one.

    `advance` is called once a round, `note` after each that was trained with what it spent. `name` is what messages
    call the training, by default its method's name. Diverged: a party's numbers are not finite any more; nothing of
    that round is written. InputError: an earlier one was damaged or deleted.
    """
    transcript = Transcript.of(folder, schedule, method)
    if not (folder.usable("initial.safetensors", say) and folder.usable("initial.json", say)):
        (offered,) = executor.map(_initial, [schedule.public_seed])
        start = method.start(unpack(offered))
        folder.write_tensors("initial.safetensors", start)
        folder.write_json("initial.json", {"utility": evaluation.before(executor, method, method.broadcast(start))})
    rounds = [f"round-{r:03d}" for r in range(schedule.rounds if until is None else until)]
    (clients_per_batch,) = executor.map(_clients_per_batch, [None])
    with undisturbed():
        for r, part in enumerate(rounds):
            if not (folder.usable(f"{part}.safetensors", say) and folder.usable(f"{part}.json", say)):
                try:
                    note(r, _round(transcript, r, method, evaluation, executor, clients_per_batch))
                except NotFinite as what:
                    (remedy,) = executor.map(_remedy, [None])
                    raise Diverged(name or plugin_name(method), schedule.seed, r, str(what), remedy) from None
            advance()
        # else a folder that was deleted in the last round would count as finished
        folder.require(f"{part}.{kind}" for part in ("initial", *rounds) for kind in ("safetensors", "json"))
    return transcript


def _round(
    transcript: Transcript,
    r: int,
    method: Method[Any],
    evaluation: Evaluation,
    executor: Executor[Bench],
    clients_per_batch: int,
) -> ResourceUsage:
    schedule, folder, spent = transcript.schedule, transcript.folder, ResourceUsage()
    # 1. the cohort
    cohort = schedule.cohort(r)
    # 2. what the server sends, 3. every client of the cohort trains
    server, public = transcript.server(r), transcript.broadcast(0)
    earlier = transcript.before(r)
    own = transcript.holdings({k: earlier[k][-1] for k in cohort if k in earlier})
    jobs = [_Job(k, r, schedule.seed, tuple(earlier.get(k, ())), pack(own.get(k, public))) for k in cohort]
    sent = pack(method.broadcast(server))
    parts = [(method, sent, jobs[i : i + clients_per_batch]) for i in range(0, len(jobs), clients_per_batch)]
    with spent.phase("clients"):
        done = [one for part in executor.map(_participate, parts) for one in part]
    spent.count_peak(max(d.peak for d in done))
    uploads = [
        Upload(k, d.records, unpack(d.upload), d.facts, unpack(d.sealed)) for k, d in zip(cohort, done, strict=True)
    ]
    held = {k: unpack(d.private) for k, d in zip(cohort, done, strict=True)}
    for upload in uploads:
        check_finite(client_states(upload.client, upload.state | upload.sealed, held[upload.client]))
    # 4. the server aggregates what it received
    site = Site(schedule.seed, r, learner=functools.partial(_asked, executor))
    with spent.phase("server"):
        aggregate = method.aggregate(server, uploads, site)
    check_finite({"the server's aggregate": aggregate})
    # 5. utility of the new global model and of the clients' own models
    with spent.phase("utility"):
        public_model = method.broadcast(aggregate)
        utility = evaluation.after(executor, method, public_model, held, last=r + 1 == schedule.rounds)
    for who, metrics in utility.items():
        check_finite({f"the utility ({who})": {name: torch.tensor(value) for name, value in metrics.items()}})
    # 6. what each party saw
    tensors, messages = _seen(aggregate, uploads, held)
    seen = site.revealed
    tensors |= {f"revealed/{name}": tensor for name, tensor in seen.tensors.items()}
    tensors |= {f"held/{name}": tensor for name, tensor in seen.held.items()}
    folder.write_tensors(f"round-{r:03d}.safetensors", tensors)
    record = {
        "round": r,
        "cohort": cohort,
        "uploads": messages,
        "bytes_down": sum(d.received for d in done) + seen.bytes_down,
        "bytes_up": sum(size(u.state) for u in uploads) + seen.bytes_up,
        "utility": utility,
    } | ({"revealed": seen.facts} if seen.facts else {})
    folder.write_json(f"round-{r:03d}.json", record | _noise([d.noised for d in done], site.noised))
    return spent


def _asked(executor: Executor[Bench], question: Question) -> State:
    """A worker's answer to the server."""
    (answer,) = executor.map(_answered, [question])
    return unpack(answer)


def _answered(bench: Bench, question: Question) -> bytes:
    return pack(question(bench.learner))


def _seen(aggregate: State, uploads: Sequence[Upload], held: Mapping[int, State]) -> tuple[State, dict[str, Any]]:
    """The tensors and facts of a round for its files; a private tensor that was also uploaded is kept once."""
    tensors = {f"aggregate/{name}": t for name, t in aggregate.items()}
    messages = {}
    for upload in uploads:
        private = held[upload.client]
        tensors |= {f"upload/{upload.client}/{name}": t for name, t in upload.state.items()}
        for name, t in private.items():
            if name not in upload.state or not torch.equal(t, upload.state[name]):
                tensors[f"private/{upload.client}/{name}"] = t
        messages[str(upload.client)] = {
            "records": upload.records,
            "facts": dict(upload.facts),
            "bytes": size(upload.state),
            "kept": sorted(private.keys() - upload.state.keys()),
            "owner": True,
        }
    return tensors, messages


def _noise(clients: Sequence[Noised], server: Noised) -> dict[str, Any]:
    """What was noised in a round, for its file: each mechanism once (all clients run the same), signals as means over
    clients, clipped gradients as [longer than C, all]."""
    mechanisms = dict.fromkeys(m for party in (*clients, server) for m in party.mechanisms)
    if not mechanisms:
        return {}
    batches = list({id(c): c for c in clients}.values())  # clients that computed together share one record
    ran = RoundNoise(mechanisms=tuple(mechanisms), turns=tuple(turn for c in batches for turn in c.turns))
    if server.mechanisms and any(turn.steps > 1 for turn in ran.turns):
        raise ValueError("the server's noise covers one step of each client, not several; noise at the client instead")
    weights = [len(c.turns) for c in batches]
    names = batches[0].signals
    signals = {n: float(np.average([c.signals[n] for c in batches], weights=weights)) for n in names} | server.signals
    clipped = {
        n: [sum(counts) for counts in zip(*(c.clipped[n] for c in batches), strict=True)] for n in batches[0].clipped
    }
    return {"noise": ran.to_json() | {"signals": signals, "clipped": clipped}}


@dataclass(frozen=True)
class _Job:
    client: int
    round: int
    seed: int
    earlier: tuple[int, ...]
    own: bytes


@dataclass(frozen=True)
class _Done:
    received: int  # bytes
    upload: bytes
    private: bytes
    facts: Mapping[str, object]
    records: int
    noised: Noised
    sealed: bytes
    peak: int  # bytes of memory of the process that did it


def _participate(bench: Bench, part: tuple[Method[Any], bytes, Sequence[_Job]]) -> list[_Done]:
    method, sent, jobs = part
    forget_peak()
    server = unpack(sent)
    clients = [
        Participation(j.client, j.round, j.seed, bench.training[j.client], bench.learner, j.earlier, bench.left_out)
        for j in jobs
    ]
    received = [method.download(server, client) for client in clients]
    updates = bench.learner.work(method, received, [unpack(job.own) for job in jobs], clients)
    peak = peak_memory()
    return [
        _Done(size(got), pack(u.upload), pack(u.private), u.facts, len(client.records), u.noised, pack(u.sealed), peak)
        for got, client, u in zip(received, clients, updates, strict=True)
    ]


def plugin_name(method: Method[Any]) -> str:
    """A method's key on the command line: the name of its file."""
    return type(method).__module__.rpartition(".")[2]


class NotFinite(ArithmeticError):
    """Its message says whose numbers are not."""


def check_finite(states: Mapping[str, State]) -> None:
    """NotFinite names the first of the states (by what they are) that holds NaN or an infinity."""
    for what, state in states.items():
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise NotFinite(what)


def client_states(client: int, upload: State, private: State) -> dict[str, State]:
    """What a client made in a round, as messages call it."""
    return {f"the upload of {client_name(client)}": upload, f"the private state of {client_name(client)}": private}


def _clients_per_batch(bench: Bench, _: None) -> int:
    return bench.learner.clients_per_batch


def _remedy(bench: Bench, _: None) -> str:
    return bench.learner.remedy


def _initial(bench: Bench, seed: int) -> bytes:
    return pack(bench.learner.initial(generator(seed, "initial")))


def pack(state: State) -> bytes:
    """A state on its way between processes: plain bytes, so that no shared memory is left behind by a kill."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def unpack(data: bytes) -> State:
    return safetensors.torch.load(data)
