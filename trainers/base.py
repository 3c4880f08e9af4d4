"""The round loop, once, and what it leaves behind: a transcript of what each party could see at every round.

A method is two functions: what one client does with what it receives (`update`), and what the server makes of the uploads (`aggregate`). The
loop calls them; an executor decides where the clients of a round run.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedaudit.executor import Executor
from fedaudit.store import Folder

State = dict[str, Tensor]
EVALUATION_CHUNK = 20  # test records per job


@dataclass(frozen=True)
class Schedule:
    """Who talks to whom: the part of a run that is no method's."""

    rounds: int = 10
    clients: int = 12
    per_round: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Update:
    """What one client makes of a broadcast: what it sends, and what it keeps to itself."""

    upload: State
    private: State  # its whole model after the round; for the owner and for evaluation
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the server learns beside the tensors


@dataclass(frozen=True)
class Upload:
    """One client's message as the server received it; `records` is n_k."""

    client: int
    records: int
    state: State
    facts: Mapping[str, Any] = field(default_factory=dict)


Model = Callable[[State], State]


def plain(state: State) -> State:
    """The model of methods whose states are adapters as they are."""
    return state


class Learner(Protocol):
    """What is trained: see `trainers.lora.Learner`."""

    def initial(self, generator: torch.Generator) -> State: ...
    def train(self, state: State, records: Sequence[str], generator: torch.Generator, model: Model) -> State: ...
    def evaluate(self, state: State, records: Sequence[str]) -> tuple[list[float], list[str]]: ...


@dataclass(frozen=True)
class Participation:
    """A client at work in one round, as a method sees it."""

    client: int
    round: int
    seed: int
    records: Sequence[str]
    learner: Learner
    earlier: Sequence[int] = ()  # the rounds in which it took part before

    def train(self, state: State, model: Model = plain) -> State:
        """Local training of every tensor of `state` on the client's own records; `model` is the method's own, if it has one."""
        return self.learner.train(state, self.records, self.generator("batches"), model)

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness of this client in this round; another purpose gives an independent stream."""
        return generator(self.seed, "client", self.client, self.round, purpose)


class Method(ABC):
    """A published method. Parties that exchange everything and train plain adapters need the first two functions only."""

    @abstractmethod
    def update(self, server: State, own: State, client: Participation) -> Update:
        """What a client does with what it receives, `server`.

        `own` is its model after its last participation; before its first one, the common public start.
        """

    @abstractmethod
    def aggregate(self, server: State, uploads: Sequence[Upload]) -> State:
        """The next server state; `uploads` come in the order of the clients' numbers."""

    def download(self, server: State, client: Participation) -> State:
        """What the server sends a client of its state."""
        return server

    def model(self, state: State) -> State:
        """The adapter, one pair A and B per layer, that a party's state stands for; differentiable."""
        return state


@dataclass(frozen=True)
class Exam:
    """What decides utility: right answers [record][answer] to the test records, and how answers are scored."""

    references: Sequence[Sequence[str]]
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]
    novel: Sequence[Sequence[str]] = ()  # of the test records out of distribution


@dataclass(frozen=True)
class Bench:
    """What every worker holds: a learner with its data, and who trains on which records (ids)."""

    learner: Any
    training: Sequence[Sequence[str]]
    test: Sequence[str]
    novel_test: Sequence[str] = ()


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
    model: Model = plain  # the method's: what adapter a client's state stands for

    def broadcast(self, r: int) -> State:
        """The server state that round r started from; `broadcast(rounds)` is the final model."""
        if r == 0:
            return self.folder.read_tensors("initial.safetensors")
        return self._part(r - 1, "aggregate")

    def round(self, r: int) -> dict[str, Any]:
        """Cohort, n_k, facts, bytes and utility of round r."""
        found: dict[str, Any] = self.folder.read_json(f"round-{r:03d}.json")
        return found

    @property
    def initial(self) -> dict[str, Any]:
        """Utility of the model before training, and out of distribution."""
        found: dict[str, Any] = self.folder.read_json("initial.json")
        return found

    def cohort(self, r: int) -> list[int]:
        return list(self.round(r)["cohort"])

    def participations(self, client: int, before: int | None = None) -> list[int]:
        """The rounds (below `before`) in which a client took part."""
        rounds = range(self.schedule.rounds if before is None else before)
        return [r for r in rounds if client in self.cohort(r)]

    def upload(self, r: int, client: int) -> State:
        return self._part(r, f"upload/{client}")

    def kept(self, r: int, client: int) -> list[str]:
        """Names of the tensors of a client's model that its message of round r did not hold."""
        return list(self.round(r)["uploads"][str(client)]["kept"])

    def own_model(self, r: int, client: int) -> State | None:
        """The adapter of a client after round r, None if the run does not hold it. For the owner and for evaluation only."""
        return self.model(self.private(r, client)) if self.round(r)["uploads"][str(client)]["owner"] else None

    def private(self, r: int, client: int) -> State:
        """Everything that a client holds after round r. For the owner and for evaluation only."""
        return self.upload(r, client) | self._part(r, f"private/{client}")

    def _part(self, r: int, prefix: str) -> State:
        return self.folder.read_tensors(f"round-{r:03d}.safetensors", f"{prefix}/")


def train(
    method: Method,
    schedule: Schedule,
    exam: Exam,
    *,
    folder: Folder,
    executor: Executor[Bench],
    say: Callable[[str], None],
    advance: Callable[[], None],
) -> Transcript:
    """Run the rounds that `folder` does not hold yet; all state passes through its files, so a resumed run equals a whole one.

    `advance` is called once a round.
    """
    transcript = Transcript(folder, schedule, method.model)
    if not (folder.usable("initial.safetensors", say) and folder.usable("initial.json", say)):
        (start,) = executor.map(_initial, [schedule.seed])
        folder.write_tensors("initial.safetensors", unpack(start))
        folder.write_json("initial.json", {"utility": _utilities(executor, start, exam, novel=True)})
    for r in range(schedule.rounds):
        if not (folder.usable(f"round-{r:03d}.safetensors", say) and folder.usable(f"round-{r:03d}.json", say)):
            _round(transcript, r, method, exam, executor)
        advance()
    return transcript


def _round(transcript: Transcript, r: int, method: Method, exam: Exam, executor: Executor[Bench]) -> None:
    schedule, folder = transcript.schedule, transcript.folder
    # 1. the cohort
    order = torch.randperm(schedule.clients, generator=generator(schedule.seed, "cohort", r))
    cohort = sorted(order[: schedule.per_round].tolist())
    # 2. what the server sends, 3. every client of the cohort trains and is evaluated
    server = transcript.broadcast(r)
    jobs = []
    for client in cohort:
        earlier = transcript.participations(client, before=r)
        own = transcript.private(earlier[-1], client) if earlier else transcript.broadcast(0)
        jobs.append(_Job(method, pack(server), pack(own), client, r, schedule.seed, tuple(earlier)))
    done = list(executor.map(_participate, jobs))
    uploads = [Upload(k, d.records, unpack(d.upload), d.facts) for k, d in zip(cohort, done, strict=True)]
    # 4. the server aggregates what it received
    aggregate = method.aggregate(server, uploads)
    # 5. utility of the new global model and of the clients' own models
    clients = [{"loss": float(np.mean(d.losses))} | exam.score(d.answers, exam.references) for d in done]
    utility = _utilities(executor, pack(aggregate), exam, novel=r + 1 == schedule.rounds)
    utility["clients"] = {name: float(np.mean([c[name] for c in clients])) for name in clients[0]}
    # 6. what each party saw; a private tensor that was also uploaded is kept once
    tensors = {f"aggregate/{name}": t for name, t in aggregate.items()}
    messages = {}
    for upload, d in zip(uploads, done, strict=True):
        private = unpack(d.private)
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
    folder.write_tensors(f"round-{r:03d}.safetensors", tensors)
    record = {
        "round": r,
        "cohort": cohort,
        "uploads": messages,
        "bytes_down": sum(d.received for d in done),
        "bytes_up": sum(size(u.state) for u in uploads),
        "utility": utility,
    }
    folder.write_json(f"round-{r:03d}.json", record)


@dataclass(frozen=True)
class _Job:
    method: Method
    server: bytes
    own: bytes
    client: int
    round: int
    seed: int
    earlier: tuple[int, ...]


@dataclass(frozen=True)
class _Done:
    received: int  # bytes
    upload: bytes
    private: bytes
    facts: Mapping[str, Any]
    records: int
    losses: list[float]
    answers: list[str]


def _participate(bench: Bench, job: _Job) -> _Done:
    client = Participation(job.client, job.round, job.seed, bench.training[job.client], bench.learner, job.earlier)
    received = job.method.download(unpack(job.server), client)
    update = job.method.update(received, unpack(job.own), client)
    losses, answers = bench.learner.evaluate(job.method.model(update.private), bench.test)
    upload, private = pack(update.upload), pack(update.private)
    return _Done(size(received), upload, private, update.facts, len(client.records), losses, answers)


def _initial(bench: Bench, seed: int) -> bytes:
    state: State = bench.learner.initial(generator(seed, "initial"))
    return pack(state)


def _evaluate(bench: Bench, job: tuple[bytes, int, bool]) -> tuple[list[float], list[str]]:
    state, start, novel = job
    records = bench.novel_test if novel else bench.test
    found: tuple[list[float], list[str]] = bench.learner.evaluate(
        unpack(state), records[start : start + EVALUATION_CHUNK]
    )
    return found


def _utilities(executor: Executor[Bench], state: bytes, exam: Exam, *, novel: bool) -> dict[str, dict[str, float]]:
    """Utility of a global model by test set: "global", and "novel" if that is asked for and there is such a set."""
    sets = {"global": exam.references} | ({"novel": exam.novel} if novel and exam.novel else {})
    jobs = [
        (state, i, name == "novel")
        for name, references in sets.items()
        for i in range(0, len(references), EVALUATION_CHUNK)
    ]
    parts = iter(executor.map(_evaluate, jobs))
    found = {}
    for name, references in sets.items():
        mine = [next(parts) for _ in range(0, len(references), EVALUATION_CHUNK)]
        losses = [loss for part, _ in mine for loss in part]
        answers = [answer for _, part in mine for answer in part]
        found[name] = {"loss": float(np.mean(losses))} | exam.score(answers, references)
    return found


def pack(state: State) -> bytes:
    """A state on its way between processes: plain bytes, so that no shared memory is left behind by a kill."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def unpack(data: bytes) -> State:
    return safetensors.torch.load(data)
