"""Shadow models: models that the adversary trains with the target's own recipe, on members that it knows.

The adversary first simulates a few federations whose clients draw their members anew. Each records the messages of all
clients: a trajectory. Then S shadow clients play the target, evenly spread over the trajectories. Each flips its own
coin for every candidate record and has its own copy of the server: in every round its message replaces the target's
among the recorded ones, and the server aggregates. So shadows of one trajectory differ in the target's members only, in
their own models and in the global one, at the cost of S clients instead of S federations (DP-FPL, A.3, after Shokri et
al. 2017). Trajectories differ from each other as the target's does from them. Canaries that a shadow's coin leaves out
stay in its list with weight 0, as in the target's.

Two options: S whole federations are simulated (`--shadow-kind federations`), or the other clients' messages are those
that the server observed (`--trajectory observed`). All shadows of a target are one job where the learner trains clients
as one batched problem, else one job per trajectory. The folder of shadow models is keyed by the recipe: attacks and
threat models share it, and so do training seeds if every client takes part in every round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.trainings import BLOCK, blocks
from fedaudit.trainers.base import Method, Participation, Schedule, Site, State, Update, Upload, plugin_name
from fedaudit.trainers.protocols import AttackBench, Bench, Classifier
from fedaudit.trainers.rounds import NotFinite, check_finite, client_states
from fedaudit.trainers.transcript import Transcript

SIMULATED = 10_000  # number of the first simulated federation; shadows, which share the numbering, are fewer
SEQUENCE = 20  # rounds, at most, after which the shadows' broadcasts are kept


@dataclass(frozen=True)
class ShadowModels:
    """The S finished shadow models of one target."""

    member: NDArray[np.bool_]  # [S, n], which of the target's candidates each was trained on
    trajectory: NDArray[np.int64]  # [S], the simulated federation along which each was trained, from 0
    start: Sequence[State]  # [S], the model that each training began with
    personal: Sequence[State]  # [S], the shadow client's own model
    released: Sequence[State]  # [S], the global model after the last round, with the public start's private part
    sequence: Sequence[Sequence[State]]  # [S][T], `released` after each of `sequence_rounds`; [] for texts


class NoEvaluation:
    """An evaluation that measures nothing, for simulations."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        return {}

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> dict[str, dict[str, float]]:
        return {}


def sequence_rounds(rounds: int) -> list[int]:
    """Numbers of rounds after which shadows' broadcasts are kept: at most `SEQUENCE` of 1..rounds, evenly spaced; the
    last is `rounds`."""
    return np.unique(np.linspace(1, rounds, min(SEQUENCE, rounds)).round().astype(int)).tolist()


def coins(seed: int, shadow: int, client: int, candidates: int) -> NDArray[np.bool_]:
    """Which of a client's candidates a shadow is trained on, bool [candidates]: a fair coin each; the first one alone
    if all coins say no."""
    drawn = np.random.default_rng((seed, 11, shadow, client)).random(candidates) < 0.5
    return drawn if drawn.any() else np.arange(candidates) == 0


def simulated_schedule(schedule: Schedule, seed: int, shadow: int = SIMULATED) -> Schedule:
    """The target's schedule with a seed of the adversary's own, drawn from its `seed` and the shadow's number.

    If only some clients take part in a round, they are the same ones as in the target's training, from the same start:
    clients that take part often leak more, and a shadow that never did would be no shadow.
    """
    state = np.random.SeedSequence([seed, 12, shadow]).generate_state(1, np.uint32)
    public = schedule.public_seed if schedule.per_round < schedule.clients else None
    return dataclasses.replace(schedule, seed=int(state[0]), public=public)


def simulated_bench(bench: AttackBench, seed: int, shadow: int) -> Bench:
    """The data of workers of a simulated federation: every client trains on candidates that the adversary drew as
    members; canaries that it did not draw have weight 0."""
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
    """Whether each of the S shadows of a client was trained on each of its n candidates, bool [S, n]: the shadow's coin
    chose the record, and it was in a batch in a round in which the client took part in `others`."""
    candidates, rounds, settings = bench.candidates[client], others.participations(client), bench.learner.settings
    rows = []
    for s in shadows:
        listed, left_out = _list(bench, client, seed, s)
        training_seed = simulated_schedule(others.schedule, seed, s).seed
        used = method.messages.used_records(listed, client=client, seed=training_seed, rounds=rounds, settings=settings)
        rows.append(np.isin(candidates, list(used - left_out)))
    return np.stack(rows)


def _list(bench: AttackBench, client: int, seed: int, shadow: int) -> tuple[list[str], frozenset[str]]:
    """The ids of the records that a shadow client trains on, and those among them with weight 0: canaries that were not
    drawn."""
    candidates = bench.candidates[client]
    coin = coins(seed, shadow, client, len(candidates))
    drawn = {record for record, heads in zip(candidates, coin, strict=True) if heads}
    listed = [record for record in candidates if record in drawn or record in bench.canaries]
    return listed, frozenset(listed) - drawn


@dataclass(frozen=True)
class _Shadows:
    """Some shadows of a target after a round."""

    servers: Sequence[State]  # [S]
    owns: Sequence[State]  # [S], the shadow clients' private parts; {} before their first round
    sent: Mapping[int, Sequence[State]] = field(default_factory=dict)  # [S] by number of rounds: the servers' states

    @staticmethod
    def joined(parts: Sequence[_Shadows]) -> _Shadows:
        """The shadows of all parts, one part after the other."""
        sent = {r: [state for part in parts for state in part.sent[r]] for r in parts[0].sent}
        return _Shadows([s for part in parts for s in part.servers], [s for part in parts for s in part.owns], sent)

    def packed(self) -> State:
        """The shadows as tensors [S, ..] by name, for a file: of servers, of own parts, and of states kept by round;
        `unpacked` reads them."""
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
    seed: int, shadows: range, until: int, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Train shadows of `client`, by their numbers, for `until` rounds in all along the trajectories `others` (recorded
    federations), and write them to `folder`. Continues from the newest file there; older files are removed.

    Diverged: a shadow's numbers are not finite any more; nothing is written.
    """
    rounds = others[0].schedule.rounds
    names = {r: _file(r) for r in stops(rounds)}  # a kill loses what came since the last
    done = [r for r, name in names.items() if folder.usable(name, say)]
    if done and done[-1] >= until:
        for r in done[:-1]:  # a kill before it was removed
            folder.remove(names[r])
        return
    along = [others[t] for t in _trajectories(shadows, others)]
    if done:
        now = _Shadows.unpacked(folder.read_tensors(names[done[-1]]))
    else:
        now = _Shadows([one.server(0) for one in along], [{} for _ in along])
    lists = [_list(bench, client, seed, s) for s in shadows]
    seeds = [simulated_schedule(others[0].schedule, seed, s).seed for s in shadows]
    # where records are texts, an output costs a pass through a language model: too much for dozens of rounds
    kept = sequence_rounds(rounds) if isinstance(bench.learner, Classifier) else []
    for r in range(done[-1] if done else 0, until):
        try:
            servers, owns = _round(bench, method, along, client, r, now.servers, now.owns, lists, seeds)
        except NotFinite as error:
            training = f"the adversary's shadow models of {plugin_name(method)}"
            raise Diverged(training, seed, r, str(error), bench.learner.remedy) from None
        now = _Shadows(servers, owns, {**now.sent, r + 1: servers} if r + 1 in kept else now.sent)
    folder.write_tensors(names[until], now.packed())
    for r in done:
        folder.remove(names[r])


def stops(rounds: int) -> Sequence[int]:
    """Numbers of rounds at which a shadow job may end and its state is written: every one if there are at most `BLOCK`
    (they are long then), else those of `blocks`."""
    return range(1, rounds + 1) if rounds <= BLOCK else blocks(rounds)


def _file(r: int) -> str:
    return f"shadows-{r:04d}.safetensors"


def _trajectories(shadows: range, others: Sequence[Transcript]) -> NDArray[np.int64]:
    """The index [S] into `others` of each shadow's trajectory."""
    return np.array(shadows) % len(others)


def _round(
    bench: AttackBench, method: Method[Any], along: Sequence[Transcript], client: int, r: int,
    servers: Sequence[State], owns: Sequence[State],
    lists: Sequence[tuple[Sequence[str], frozenset[str]]], seeds: Sequence[int],
) -> tuple[list[State], list[State]]:  # fmt: skip
    """One round of all S shadows: each trains as `client`, and its own server aggregates its message with the recorded
    ones of its trajectory. Returns the servers and the clients' private parts after the round, [S] each."""
    learner, rounds = bench.learner, {id(one): _RecordedRound.of(one, r) for one in along}
    updates: list[Update | None] = [None] * len(servers)
    if client in along[0].cohort(r):  # cohorts are the same in all trajectories
        turns = along[0].participations(client, r)
        together = learner.clients_per_batch(method)
        for first in range(0, len(servers), together):
            part = range(len(servers))[first : first + together]
            sites = [Participation(client, r, seeds[s], lists[s][0], learner, turns, lists[s][1]) for s in part]
            received = [method.download(method.broadcast(servers[s]), c) for s, c in zip(part, sites, strict=True)]
            results = learner.work(method, received, [owns[s] or rounds[id(along[s])].public for s in part], sites)
            for s, update in zip(part, results, strict=True):
                check_finite(client_states(client, update.upload, update.private))
                updates[s] = update
    new_servers, new_owns = [], []
    for s, (server, private, result) in enumerate(zip(servers, owns, updates, strict=True)):
        recorded = rounds[id(along[s])]
        uploads = [
            Upload(client, len(lists[s][0]), result.upload, result.facts)
            if result and u.client == client
            else dataclasses.replace(u, state=_shift(u.state, recorded.sent, server))
            for u in recorded.uploads
        ]
        site = Site(seeds[s], r, learner=lambda question: question(learner))
        new_servers.append(method.aggregate(server, uploads, site))
        check_finite({f"the aggregate with shadow {s} of client {client}": new_servers[-1]})
        new_owns.append(private if result is None else result.private)
    return new_servers, new_owns


@dataclass(frozen=True)
class _RecordedRound:
    """One round of a trajectory."""

    public: State  # the broadcast before the first round
    sent: State  # the server's state before this round
    uploads: Sequence[Upload]

    @staticmethod
    def of(transcript: Transcript, r: int) -> _RecordedRound:
        facts, states = transcript.round(r)["uploads"], transcript.uploads(r)
        uploads = [
            Upload(k, facts[str(k)]["records"], states.get(k, {}), facts[str(k)]["facts"]) for k in transcript.cohort(r)
        ]
        return _RecordedRound(transcript.broadcast(0), transcript.server(r), uploads)


def _shift(upload: State, sent: State, server: State) -> State:
    """A recorded message as if the server had sent `server` and not `sent`: tensors that the server also has are
    shifted by the difference; others, such as gradients, stay."""
    return {name: t + (server[name] - sent[name]) if name in server else t for name, t in upload.items()}


def shadows_of(
    bench: AttackBench, method: Method[Any], others: Sequence[Transcript], client: int,
    parts: Mapping[range, Folder], *, seed: int,
) -> ShadowModels:  # fmt: skip
    """The finished shadows of a target client, read from disk; `parts` are the folders of all of them, by their
    numbers."""
    shadows = range(sum(map(len, parts)))
    name = _file(others[0].schedule.rounds)
    final = _Shadows.joined([_Shadows.unpacked(folder.read_tensors(name)) for folder in parts.values()])
    trajectories = _trajectories(shadows, others)
    public = [others[t].broadcast(0) for t in trajectories]
    member = members(bench, method, others[0], client, seed=seed, shadows=shadows)

    def released(servers: Sequence[State]) -> list[State]:
        return [method.model(p | method.broadcast(s)) for p, s in zip(public, servers, strict=True)]

    states = zip(public, final.servers, final.owns, strict=True)
    personal = [method.model(p | method.broadcast(s) | private) for p, s, private in states]
    by_round = [released(sent) for sent in final.sent.values()]
    return ShadowModels(
        member, trajectories, [method.model(start) for start in public], personal, released(final.servers),
        [*zip(*by_round, strict=True)],
    )  # fmt: skip


def shadows_of_federations(
    bench: AttackBench, method: Method[Any], federations: Sequence[Transcript], client: int, *, seed: int
) -> ShadowModels:
    """The shadows of a target client where whole federations are simulated, one per federation: this client in it."""
    member = np.concatenate(
        [members(bench, method, one, client, seed=seed, shadows=[s]) for s, one in enumerate(federations)]
    )
    personal = [one.released(client) for one in federations]

    def broadcast(one: Transcript, r: int) -> State:
        return one.model(one.broadcast(0) | one.broadcast(r) | method.messages.model_selector(client))

    rounds = federations[0].schedule.rounds
    kept = sequence_rounds(rounds) if isinstance(bench.learner, Classifier) else []
    return ShadowModels(
        member, np.arange(len(federations)), [broadcast(one, 0) for one in federations], personal,
        [broadcast(one, rounds) for one in federations], [[broadcast(one, r) for r in kept] for one in federations],
    )  # fmt: skip
