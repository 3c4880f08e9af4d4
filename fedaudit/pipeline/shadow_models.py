"""Shadow models: what the adversary trains itself, by the target's own recipe, to learn how a member looks.

The adversary simulates a few federations whose clients draw their members anew: each gives what the other clients send
along one trajectory. Along them S shadow clients, evenly dealt, play the target's role, each with a coin of its own for
every candidate record, and each with its own copy of the server: in every round a shadow's message takes the target's
place among the recorded ones, and the server aggregates. So the shadows of one trajectory differ in the target's
members only, in their own models as in the global one, at the cost of S clients instead of S federations (DP-FPL, A.3,
after Shokri et al. 2017); and the trajectories differ as the target's own differs from each of them. Canaries that a
shadow's coin leaves out stay in its list with weight 0, as in the target's.

On request S whole federations are simulated instead, or the other clients' messages are those that the server has
observed. All shadows of a target are one job where the learner takes clients together, as one batched problem; else as
many jobs as there are trajectories. The bank is keyed by the recipe: attacks and threat models share it, and training
seeds where every client takes part in every round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.trainings import BLOCK, blocks
from trainers.base import Method, Participation, Schedule, Site, State, Update, Upload, plugin_name
from trainers.protocols import AttackBench, Bench, Classifier
from trainers.rounds import NotFinite, check_finite, client_states
from trainers.transcript import Transcript

SIMULATED = 10_000  # from here on the simulated federations are numbered: there are fewer shadows
SEQUENCE = 20  # rounds, at most, after which the shadows' broadcasts are kept


@dataclass(frozen=True)
class ShadowData:
    """The shadows of one target: which candidates each was trained on [S, n], and the models [S] that came of it."""

    member: NDArray[np.bool_]
    trajectory: NDArray[np.int64]  # [S], along which simulated federation each was trained
    start: Sequence[State]  # what its training began with
    personal: Sequence[State]
    released: Sequence[State]  # the global model after the last round, with the public start for a client's own part
    sequence: Sequence[Sequence[State]]  # the same after each of `sequence_rounds`; empty where records are texts


class NoEvaluation:
    """A simulation is not evaluated."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        return {}

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> dict[str, dict[str, float]]:
        return {}


def sequence_rounds(rounds: int) -> list[int]:
    """How many rounds had gone when each broadcast of a sequence was sent, evenly spaced; the last is the released
    model."""
    chosen: list[int] = np.unique(np.linspace(1, rounds, min(SEQUENCE, rounds)).round().astype(int)).tolist()
    return chosen


def coins(seed: int, shadow: int, client: int, candidates: int) -> NDArray[np.bool_]:
    """Which of a client's candidates a shadow is trained on: a fair coin each; the first one if no coin fell on
    heads."""
    drawn = np.random.default_rng((seed, 11, shadow, client)).random(candidates) < 0.5
    return drawn if drawn.any() else np.arange(candidates) == 0


def simulated_schedule(schedule: Schedule, seed: int, shadow: int = SIMULATED) -> Schedule:
    """The target's schedule with randomness of the adversary's own.

    Where only some clients take part in a round they do so as in the target's training, from the same start: who takes
    part often leaves more traces, and a shadow that never did would be none.
    """
    own = np.random.SeedSequence([seed, 12, shadow]).generate_state(1, np.uint32)
    public = schedule.public_seed if schedule.per_round < schedule.clients else None
    return dataclasses.replace(schedule, seed=int(own[0]), public=public)


def simulated_bench(bench: AttackBench, seed: int, shadow: int) -> Bench:
    """What a simulated federation trains on: members that the adversary drew."""
    lists = [_list(bench, k, seed, shadow) for k in range(len(bench.candidates))]
    return Bench(
        bench.learner,
        training=[records for records, _ in lists],
        test=(),
        candidates=bench.candidates,
        canaries=bench.canaries,
        left_out=frozenset[str]().union(*(left_out for _, left_out in lists)),
    )


def members(
    bench: AttackBench, method: Method[Any], others: Transcript, client: int, *, seed: int, shadows: Sequence[int]
) -> NDArray[np.bool_]:
    """Which candidates [S, n] of a client its shadows were trained on: the coin said so, and the record was in a
    batch."""
    asked, rounds = bench.candidates[client], others.participations(client)
    rows = []
    for s in shadows:
        listed, left_out = _list(bench, client, seed, s)
        own = simulated_schedule(others.schedule, seed, s).seed
        rows.append(
            np.isin(
                asked, list(method.messages.used_records(listed, client=client, seed=own, rounds=rounds) - left_out)
            )
        )
    return np.stack(rows)


def _list(bench: AttackBench, client: int, seed: int, shadow: int) -> tuple[list[str], frozenset[str]]:
    """A client's list in a shadow, and those of it that weigh 0: the canaries that were not drawn."""
    asked = bench.candidates[client]
    drawn = {r for r, kept in zip(asked, coins(seed, shadow, client, len(asked)), strict=True) if kept}
    listed = [r for r in asked if r in drawn or r in bench.canaries]
    return listed, frozenset(listed) - drawn


@dataclass(frozen=True)
class _Shadows:
    """Some shadows of a target after a round: their servers and their own parts [S], and by round what those servers
    had sent [S]."""

    servers: Sequence[State]
    owns: Sequence[State]
    sent: Mapping[int, Sequence[State]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[_Shadows]) -> _Shadows:
        sent = {r: [state for part in parts for state in part.sent[r]] for r in parts[0].sent}
        return _Shadows([s for part in parts for s in part.servers], [s for part in parts for s in part.owns], sent)

    def packed(self) -> State:
        """As the tensors of a file."""
        parts = {"server": self.servers, "own": self.owns} | {f"sent-{r:04d}": sent for r, sent in self.sent.items()}
        return {
            f"{part}/{n}": torch.stack([one[n] for one in states]) for part, states in parts.items() for n in states[0]
        }

    @staticmethod
    def unpacked(tensors: State) -> _Shadows:
        shadows = len(next(iter(tensors.values())))
        parts: dict[str, list[State]] = {"server": [{} for _ in range(shadows)], "own": [{} for _ in range(shadows)]}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            for s, state in enumerate(parts.setdefault(part, [{} for _ in range(shadows)])):
                state[key] = tensor[s]
        servers, owns = parts.pop("server"), parts.pop("own")
        return _Shadows(servers, owns, {int(part.partition("-")[2]): sent for part, sent in sorted(parts.items())})


def train_shadows(
    bench: AttackBench, method: Method[Any], others: Sequence[Transcript], client: int, folder: Folder, *,
    seed: int, shadows: range,
    until: int, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Train some shadows of `client`, by their numbers, up to a round, evenly in the federations that `others`
    recorded; goes on from the newest file there.

    Diverged: the numbers of one are not finite any more; nothing is written.
    """
    rounds = others[0].schedule.rounds
    names = {r: _file(r) for r in stops(rounds)}  # a kill loses what came since the last
    done = [r for r, name in names.items() if folder.usable(name, say)]
    if done and done[-1] >= until:
        for r in done[:-1]:  # a kill before it was removed
            folder.remove(names[r])
        return
    along = [others[s] for s in _dealt(shadows, others)]
    if done:
        now = _Shadows.unpacked(folder.read_tensors(names[done[-1]]))
    else:
        now = _Shadows([one.server(0) for one in along], [{} for _ in along])
    clients_per_batch = [_list(bench, client, seed, s) for s in shadows]
    seeds = [simulated_schedule(others[0].schedule, seed, s).seed for s in shadows]
    # of a text an answer costs a pass through a language model: nobody asks dozens of rounds about it
    kept = sequence_rounds(rounds) if isinstance(bench.learner, Classifier) else []
    for r in range(done[-1] if done else 0, until):
        try:
            servers, owns = _round(bench, method, along, client, r, now.servers, now.owns, clients_per_batch, seeds)
        except NotFinite as what:
            training = f"the adversary's shadow models of {plugin_name(method)}"
            raise Diverged(training, seed, r, str(what), bench.learner.remedy) from None
        now = _Shadows(servers, owns, {**now.sent, r + 1: servers} if r + 1 in kept else now.sent)
    folder.write_tensors(names[until], now.packed())
    for r in done:
        folder.remove(names[r])


def stops(rounds: int) -> Sequence[int]:
    """The rounds up to which shadows are trained by a job: each where there are few, which are long ones."""
    return range(1, rounds + 1) if rounds <= BLOCK else blocks(rounds)


def _file(r: int) -> str:
    return f"shadows-{r:04d}.safetensors"


def _dealt(shadows: range, others: Sequence[Transcript]) -> NDArray[np.int64]:
    """Along which of some trajectories each shadow is trained, [S]."""
    return np.array(shadows) % len(others)


def _round(
    bench: AttackBench, method: Method[Any], along: Sequence[Transcript], client: int, r: int,
    servers: Sequence[State], owns: Sequence[State],
    lists: Sequence[tuple[Sequence[str], frozenset[str]]], seeds: Sequence[int],
) -> tuple[list[State], list[State]]:  # fmt: skip
    """One round of every shadow, each along its trajectory: it trains in the client's place, and its own server
    aggregates its message with the recorded ones. Whatever their trajectories, all train as one problem."""
    learner, recorded = bench.learner, {id(one): _Recorded.of(one, r) for one in along}
    mine: list[Update | None] = [None] * len(servers)
    if client in along[0].cohort(r):  # who takes part is the same in all of them
        earlier = along[0].participations(client, r)
        for part in _split(range(len(servers)), learner.clients_per_batch):
            working = [Participation(client, r, seeds[s], lists[s][0], learner, earlier, lists[s][1]) for s in part]
            received = [method.download(method.broadcast(servers[s]), c) for s, c in zip(part, working, strict=True)]
            found = learner.work(method, received, [owns[s] or recorded[id(along[s])].public for s in part], working)
            for s, done in zip(part, found, strict=True):
                check_finite(client_states(client, done.upload, done.private))
                mine[s] = done
    moved, kept = [], []
    for s, (server, own, update) in enumerate(zip(servers, owns, mine, strict=True)):
        beside = recorded[id(along[s])]
        uploads = [
            Upload(client, len(lists[s][0]), update.upload, update.facts)
            if update and u.client == client
            else dataclasses.replace(u, state=_beside(u.state, beside.sent, server))
            for u in beside.uploads
        ]
        site = Site(seeds[s], r, learner=lambda question: question(learner))
        moved.append(method.aggregate(server, uploads, site))
        check_finite({f"the aggregate with shadow {s} of client {client}": moved[-1]})
        kept.append(own if update is None else update.private)
    return moved, kept


@dataclass(frozen=True)
class _Recorded:
    """A round of a simulated federation."""

    public: State  # what its training began with
    sent: State
    uploads: Sequence[Upload]

    @staticmethod
    def of(transcript: Transcript, r: int) -> _Recorded:
        return _Recorded(transcript.broadcast(0), transcript.server(r), _uploads(transcript, r))


def _beside(upload: State, sent: State, server: State) -> State:
    """A recorded message as it would be had the server sent `server`: a tensor of the server's own moves along, a
    gradient stays."""
    return {name: t + (server[name] - sent[name]) if name in server else t for name, t in upload.items()}


def _uploads(transcript: Transcript, r: int) -> list[Upload]:
    facts = transcript.round(r)["uploads"]
    states = transcript.uploads(r)
    return [
        Upload(k, facts[str(k)]["records"], states.get(k, {}), facts[str(k)]["facts"]) for k in transcript.cohort(r)
    ]


def _split(numbers: range, size: int) -> Iterator[range]:
    for i in range(0, len(numbers), size):
        yield numbers[i : i + size]


def shadows_of(
    bench: AttackBench, method: Method[Any], others: Sequence[Transcript], client: int,
    parts: Mapping[range, Folder], *, seed: int,
) -> ShadowData:  # fmt: skip
    """The finished shadows of a target, some in each folder."""
    shadows = range(sum(map(len, parts)))
    name = _file(others[0].schedule.rounds)
    found = _Shadows.joined([_Shadows.unpacked(folder.read_tensors(name)) for folder in parts.values()])
    dealt = _dealt(shadows, others)
    public = [others[t].broadcast(0) for t in dealt]
    member = members(bench, method, others[0], client, seed=seed, shadows=shadows)

    def released(servers: Sequence[State]) -> list[State]:
        return [method.model(p | method.broadcast(s)) for p, s in zip(public, servers, strict=True)]

    states = zip(public, found.servers, found.owns, strict=True)
    personal = [method.model(p | method.broadcast(s) | own) for p, s, own in states]
    after = [released(sent) for sent in found.sent.values()]
    return ShadowData(
        member, dealt, [method.model(start) for start in public], personal, released(found.servers),
        [*zip(*after, strict=True)],
    )  # fmt: skip


def shadows_of_federations(
    bench: AttackBench, method: Method[Any], federations: Sequence[Transcript], client: int, *, seed: int
) -> ShadowData:
    """The clients of whole simulated federations in the target's place."""
    member = np.concatenate(
        [members(bench, method, one, client, seed=seed, shadows=[s]) for s, one in enumerate(federations)]
    )
    personal = [one.released(client) for one in federations]

    def broadcast(one: Transcript, r: int) -> State:
        return one.model(one.broadcast(0) | one.broadcast(r) | method.messages.model_selector(client))

    rounds = federations[0].schedule.rounds
    kept = sequence_rounds(rounds) if isinstance(bench.learner, Classifier) else []
    return ShadowData(
        member, np.arange(len(federations)), [broadcast(one, 0) for one in federations], personal,
        [broadcast(one, rounds) for one in federations], [[broadcast(one, r) for r in kept] for one in federations],
    )  # fmt: skip
