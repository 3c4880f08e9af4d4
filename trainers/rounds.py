"""The round loop: it trains any method with any learner, and leaves a transcript."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.resource_usage import Spent, forget_peak, peak_memory
from fedaudit.machinery.store import Folder, undisturbed
from fedaudit.tasks.base import client_name
from trainers.base import (
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
from trainers.protocols import Bench, Evaluation
from trainers.transcript import Transcript, _noise, _seen


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
    note: Callable[[int, Spent], None] = lambda r, spent: None,
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
) -> Spent:
    schedule, folder, spent = transcript.schedule, transcript.folder, Spent()
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
    spent.held(max(d.peak for d in done))
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
