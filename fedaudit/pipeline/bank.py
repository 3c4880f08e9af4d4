"""Shadow models: what the adversary trains itself, by the target's own recipe, to learn how a member looks.

The adversary simulates one federation whose clients draw their members anew: that gives what the other clients send. In
it S shadow clients play the target's role, each with a coin of its own for every candidate record, and each with its
own copy of the server: in every round a shadow's message takes the target's place among the recorded ones, and the
server aggregates. So a shadow differs from the others in the target's members only, in its own model as in the
global one, at the cost of S clients instead of S federations (DP-FPL, A.3, after Shokri et al. 2017). Canaries that a
shadow's coin leaves out stay in its list with weight 0, as in the target's.

On request S whole federations are simulated instead, or the other clients' messages are those that the server has
observed. All shadows of a target are one job, and one batched problem where the learner takes clients together. The
bank is keyed by the recipe: attacks and threat models share it, and training seeds where every client takes part in
every round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.trainings import blocks
from trainers.base import (
    AttackBench,
    Bench,
    Method,
    NotFinite,
    Participation,
    Schedule,
    Site,
    State,
    Transcript,
    Update,
    Upload,
    check_finite,
    client_states,
    plugin_name,
)

SIMULATED = -1  # the simulated federation's place among the shadows


@dataclass(frozen=True)
class ShadowData:
    """The shadows of one target: which candidates each was trained on [S, n], and the models [S] that came of it."""

    member: NDArray[np.bool_]
    personal: Sequence[State]
    released: Sequence[State]  # the global model after the last round, with the public start for a client's own part


class NoExam:
    """A simulation is not evaluated."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        return {}

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> dict[str, dict[str, float]]:
        return {}


def coins(seed: int, shadow: int, client: int, candidates: int) -> NDArray[np.bool_]:
    """Which of a client's candidates a shadow is trained on: a fair coin each; the first one if no coin fell on
    heads."""
    drawn = np.random.default_rng((seed, 11, shadow + 1, client)).random(candidates) < 0.5
    return drawn if drawn.any() else np.arange(candidates) == 0


def simulated_schedule(schedule: Schedule, seed: int, shadow: int = SIMULATED) -> Schedule:
    """The target's schedule with randomness of the adversary's own.

    Where only some clients take part in a round they do so as in the target's training, from the same start: who takes
    part often leaves more traces, and a shadow that never did would be none.
    """
    own = np.random.SeedSequence([seed, 12, shadow + 1]).generate_state(1, np.uint32)
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
        rows.append(np.isin(asked, list(method.used(listed, client=client, seed=own, rounds=rounds) - left_out)))
    return np.stack(rows)


def _list(bench: AttackBench, client: int, seed: int, shadow: int) -> tuple[list[str], frozenset[str]]:
    """A client's list in a shadow, and those of it that weigh 0: the canaries that were not drawn."""
    asked = bench.candidates[client]
    drawn = {r for r, kept in zip(asked, coins(seed, shadow, client, len(asked)), strict=True) if kept}
    listed = [r for r in asked if r in drawn or r in bench.canaries]
    return listed, frozenset(listed) - drawn


def train_shadows(
    bench: AttackBench, method: Method[Any], others: Transcript, client: int, folder: Folder, *,
    seed: int, shadows: int,
    until: int, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Train the shadows of `client` up to a round, in the federation that `others` recorded; goes on from the newest
    file there.

    Diverged: the numbers of one are not finite any more; nothing is written.
    """
    names = {r: _file(r) for r in blocks(others.schedule.rounds)}  # a kill loses what came since the last
    done = [r for r, name in names.items() if folder.usable(name, say)]
    if done and done[-1] >= until:
        for r in done[:-1]:  # a kill before it was removed
            folder.remove(names[r])
        return
    public = others.broadcast(0)
    if done:
        servers, owns = _unstacked(folder.read_tensors(names[done[-1]]))
    else:
        servers, owns = [public] * shadows, [{} for _ in range(shadows)]
    crowd = [_list(bench, client, seed, s) for s in range(shadows)]
    seeds = [simulated_schedule(others.schedule, seed, s).seed for s in range(shadows)]
    for r in range(done[-1] if done else 0, until):
        try:
            servers, owns = _round(bench, method, others, client, r, servers, owns, crowd, seeds)
        except NotFinite as what:
            training = f"the adversary's shadow models of {plugin_name(method)}"
            raise Diverged(training, seed, r, str(what), bench.learner.remedy) from None
    folder.write_tensors(names[until], _stacked(servers, owns))
    for r in done:
        folder.remove(names[r])


def _file(r: int) -> str:
    return f"shadows-{r:04d}.safetensors"


def _round(
    bench: AttackBench, method: Method[Any], others: Transcript, client: int, r: int,
    servers: Sequence[State], owns: Sequence[State],
    lists: Sequence[tuple[Sequence[str], frozenset[str]]], seeds: Sequence[int],
) -> tuple[list[State], list[State]]:  # fmt: skip
    """One round of every shadow: it trains in the client's place, and its own server aggregates its message with the
    recorded ones."""
    sent, recorded, public = others.broadcast(r), _uploads(others, r), others.broadcast(0)
    learner = bench.learner
    mine: list[Update | None] = [None] * len(servers)
    if client in others.cohort(r):
        earlier = others.participations(client, r)
        for part in _split(range(len(servers)), learner.crowd):
            working = [Participation(client, r, seeds[s], lists[s][0], learner, earlier, lists[s][1]) for s in part]
            received = [method.download(servers[s], one) for s, one in zip(part, working, strict=True)]
            found = learner.work(method, received, [owns[s] or public for s in part], working)
            for s, done in zip(part, found, strict=True):
                check_finite(client_states(client, done.upload, done.private))
                mine[s] = done
    moved, kept = [], []
    for s, (server, own, update) in enumerate(zip(servers, owns, mine, strict=True)):
        uploads = [
            Upload(client, len(lists[s][0]), update.upload, update.facts)
            if update and u.client == client
            else dataclasses.replace(u, state=_beside(u.state, sent, server))
            for u in recorded
        ]
        site = Site(seeds[s], r, learner=lambda question: question(learner))
        moved.append(method.aggregate(server, uploads, site))
        check_finite({f"the aggregate with shadow {s} of client {client}": moved[-1]})
        kept.append(own if update is None else update.private)
    return moved, kept


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


def _stacked(servers: Sequence[State], owns: Sequence[State]) -> State:
    parts = {"server": servers, "own": owns}
    return {f"{part}/{n}": torch.stack([one[n] for one in states]) for part, states in parts.items() for n in states[0]}


def _unstacked(tensors: State) -> tuple[list[State], list[State]]:
    shadows = len(next(iter(tensors.values())))
    servers, owns = (
        [{n.partition("/")[2]: t[s] for n, t in tensors.items() if n.startswith(part)} for s in range(shadows)]
        for part in ("server/", "own/")
    )
    return servers, owns


def shadows_of(
    bench: AttackBench,
    method: Method[Any],
    others: Transcript,
    client: int,
    folder: Folder,
    *,
    seed: int,
    shadows: int,
) -> ShadowData:
    """The finished shadows of a target."""
    servers, owns = _unstacked(folder.read_tensors(_file(others.schedule.rounds)))
    public = others.broadcast(0)
    member = members(bench, method, others, client, seed=seed, shadows=range(shadows))
    personal = [method.model(public | server | own) for server, own in zip(servers, owns, strict=True)]
    released = [method.model(public | server) for server in servers]
    return ShadowData(member, personal, released)


def shadows_of_federations(
    bench: AttackBench, method: Method[Any], federations: Sequence[Transcript], client: int, *, seed: int
) -> ShadowData:
    """The clients of whole simulated federations in the target's place."""
    member = np.concatenate(
        [members(bench, method, one, client, seed=seed, shadows=[s]) for s, one in enumerate(federations)]
    )
    personal = [one.released(client) for one in federations]
    released = [one.model(one.broadcast(0) | one.broadcast(one.schedule.rounds)) for one in federations]
    return ShadowData(member, personal, released)
