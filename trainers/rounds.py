"""The round loop: trains any method with any learner, and writes a transcript.

The loop calls the method's functions. An executor decides where the clients of a round run, and the learner whether
they run one by one or as one batched problem.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.resource_usage import ResourceUsage, forget_peak, peak_memory
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.tasks.base import client_name
from fedaudit.trainers.base import (
    Method,
    Noised,
    Participation,
    Question,
    Schedule,
    Site,
    State,
    Upload,
    generator,
    pack,
    plugin_name,
    size,
    unpack,
)
from fedaudit.trainers.protocols import Bench, Evaluation, clients_per_batch
from fedaudit.trainers.transcript import Transcript, noise_record, round_files


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
    start: State | None = None,
    note: Callable[[int, ResourceUsage], None] = lambda r, spent: None,
) -> Transcript:
    """Run the rounds (below `until`, if given) that `folder` does not hold yet, and return the reader of all.

    All state passes through the folder's files, so a resumed run equals an uninterrupted one. `say` prints a message;
    `advance` is called once per round, `note` with each round that was trained now and its resource usage. `name` is
    what error messages call the training, by default the method's name. `start` is the public start, by default the one
    that the learner draws by the schedule's seed.

    Diverged: a party's numbers are not finite; nothing of that round is written. InputError: an earlier round was
    damaged or deleted.
    """
    transcript = Transcript.of(folder, schedule, method)
    if not (folder.usable("initial.safetensors", say) and folder.usable("initial.json", say)):
        if start is None:
            (offered,) = executor.map(_initial, [schedule.public_seed])
            start = method.start(unpack(offered))
        folder.write_tensors("initial.safetensors", start)
        folder.write_json("initial.json", {"utility": evaluation.before(executor, method, method.broadcast(start))})
    rounds = [f"round-{r:03d}" for r in range(schedule.rounds if until is None else until)]
    (together,) = executor.map(clients_per_batch, [method])
    with undisturbed():
        for r, part in enumerate(rounds):
            if not (folder.usable(f"{part}.safetensors", say) and folder.usable(f"{part}.json", say)):
                try:
                    note(r, _round(transcript, r, method, evaluation, executor, together))
                except NotFinite as error:
                    (remedy,) = executor.map(_remedy, [None])
                    raise Diverged(name or plugin_name(method), schedule.seed, r, str(error), remedy) from None
            advance()
        # without this check a folder that was deleted in the last round would count as finished
        folder.require(f"{part}.{kind}" for part in ("initial", *rounds) for kind in ("safetensors", "json"))
    return transcript


def _round(
    transcript: Transcript,
    r: int,
    method: Method[Any],
    evaluation: Evaluation,
    executor: Executor[Bench],
    together: int,
) -> ResourceUsage:
    """Run round r (clients, server, utility), write its files, and return its resource usage."""
    schedule, folder, usage = transcript.schedule, transcript.folder, ResourceUsage()
    # 1. the cohort
    cohort = schedule.cohort(r)
    # 2. what the server sends, 3. every client of the cohort trains
    server = transcript.server(r)
    with usage.phase("clients"):
        done = _clients_turns(transcript, r, method, method.broadcast(server), executor, together)
    usage.count_peak(max(d.peak for d in done))
    uploads = [Upload(k, d.records, d.upload, d.facts, d.sealed) for k, d in zip(cohort, done, strict=True)]
    private = {k: d.private for k, d in zip(cohort, done, strict=True)}
    for upload in uploads:
        check_finite(client_states(upload.client, upload.state | upload.sealed, private[upload.client]))
    # 4. the server aggregates what it received
    site = Site(schedule.seed, r, learner=functools.partial(_ask_worker, executor))
    with usage.phase("server"):
        aggregate = method.aggregate(server, uploads, site)
    check_finite({"the server's aggregate": aggregate})
    # 5. utility of the new global model and of the clients' own models
    with usage.phase("utility"):
        broadcast = method.broadcast(aggregate)
        utility = evaluation.after(executor, method, broadcast, private, done=r + 1, last=r + 1 == schedule.rounds)
    for who, metrics in utility.items():
        check_finite({f"the utility ({who})": {name: torch.tensor(value) for name, value in metrics.items()}})
    # 6. what each party saw
    revealed = site.revealed
    tensors, messages = round_files(aggregate, uploads, private, revealed)
    folder.write_tensors(f"round-{r:03d}.safetensors", tensors)
    record = {
        "round": r,
        "cohort": cohort,
        "uploads": messages,
        "bytes_down": sum(d.received for d in done) + revealed.bytes_down,
        "bytes_up": sum(size(u.state) for u in uploads) + revealed.bytes_up,
        "utility": utility,
    } | ({"revealed": revealed.facts} if revealed.facts else {})
    folder.write_json(f"round-{r:03d}.json", record | noise_record([d.noised for d in done], site.noised))
    return usage


def _ask_worker(executor: Executor[Bench], question: Question) -> State:
    """Return `question(learner)`, computed by a worker."""
    (answer,) = executor.map(_answer, [question])
    return unpack(answer)


def _answer(bench: Bench, question: Question) -> bytes:
    return pack(question(bench.learner))


@dataclass(frozen=True)
class _Done:
    """The result of a client's turn. Between processes states are bytes; within one they are not copied."""

    received: int  # bytes
    upload: State
    private: State
    facts: Mapping[str, object]
    records: int
    noised: Noised
    sealed: State
    peak: int  # largest memory of the worker, in bytes

    def __getstate__(self) -> dict[str, Any]:
        return {name: pack(v) if name in _STATES else v for name, v in vars(self).items()}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update({name: unpack(v) if name in _STATES else v for name, v in values.items()})


_STATES = {"upload", "private", "sealed"}


def _result(state: State) -> State:
    """A state as `unpack` would give it."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _clients_turns(
    transcript: Transcript, r: int, method: Method[Any], sent: State, executor: Executor[Bench], together: int
) -> list[_Done]:
    """The turns of round r's clients, who are sent the state `sent`, in the order of the cohort; `together` of them are
    one job."""
    cohort, before, public = transcript.schedule.cohort(r), transcript.before(r), transcript.broadcast(0)
    kept = transcript.holdings({k: before[k][-1] for k in cohort if k in before})
    turns = [Participation(k, r, transcript.schedule.seed, (), None, tuple(before.get(k, ()))) for k in cohort]
    packed = pack(sent)
    parts = (  # packed when their turn comes
        (method, packed, [(turn, pack(kept.pop(turn.client, public))) for turn in turns[i : i + together]])
        for i in range(0, len(turns), together)
    )
    return [one for part in executor.map(_participate, parts) for one in part]


def answers_to(
    transcript: Transcript, r: int, method: Method[Any], sent: State, executor: Executor[Bench]
) -> dict[int, State]:
    """{client: what it would have uploaded} if the server had sent `sent` in round r of a finished training, in place
    of its broadcast: with the records, batches and noise of that round. The training is not changed."""
    (together,) = executor.map(clients_per_batch, [method])
    done = _clients_turns(transcript, r, method, sent, executor, together)
    return {k: d.upload for k, d in zip(transcript.schedule.cohort(r), done, strict=True)}


def _participate(bench: Bench, part: tuple[Method[Any], bytes, Sequence[tuple[Participation, bytes]]]) -> list[_Done]:
    """Train the clients of `part` (the method, what the server sent, each client's turn with the state that it holds)
    as one worker, and return their results in order."""
    method, sent, jobs = part
    forget_peak()
    server, held = unpack(sent), [unpack(state) for _, state in jobs]
    clients = [
        dataclasses.replace(turn, records=bench.training[turn.client], learner=bench.learner, left_out=bench.left_out)
        for turn, _ in jobs
    ]
    received = [method.download(server, client) for client in clients]
    updates = bench.learner.work(method, received, held, clients)
    peak = peak_memory()
    return [
        _Done(
            size(down),
            _result(u.upload),
            _result(u.private),
            u.facts,
            len(client.records),
            u.noised,
            _result(u.sealed),
            peak,
        )
        for down, client, u in zip(received, clients, updates, strict=True)
    ]


class NotFinite(ArithmeticError):
    """A number is NaN or infinite. The message says whose, as "the server's aggregate"."""


def check_finite(states: Mapping[str, State]) -> None:
    """Raise NotFinite with the key of the first state that holds NaN or an infinity; keys are descriptions."""
    for description, state in states.items():
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise NotFinite(description)


def client_states(client: int, upload: State, private: State) -> dict[str, State]:
    """A client's upload and private state, by the words in which `check_finite` names them."""
    return {f"the upload of {client_name(client)}": upload, f"the private state of {client_name(client)}": private}


def _remedy(bench: Bench, _: None) -> str:
    return bench.learner.remedy


def _initial(bench: Bench, seed: int) -> bytes:
    return pack(bench.learner.initial(generator(seed, "initial")))
