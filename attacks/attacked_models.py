"""The models that an adversary can put together from its view, and the records that it asks each of them about: what
an attack may cost is decided here."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.base import View
from attacks.rebuild import rebuild, rebuild_all
from attacks.replay import Messages
from attacks.settings import NovelRows, RebuiltWays
from fedaudit.terms.held_models import (
    BASE,
    BEFORE,
    BEST_UTILITY,
    FINAL,
    PASSED_ON,
    PROMPT,
    REBUILDINGS,
    ROUND,
    TRUE_STATE,
)
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL
from trainers.base import Method, State

OTHERS = 150  # records of other clients that a target's model is asked about
# models of the adversary, of the usual trajectories one each, that stand in for the attacked one: for thresholds
SHADOWS_ASKED = 5
CURVE = 11  # rounds of a loss trajectory
NOVEL_PER_CLIENT = 75  # out-of-distribution records that a client's model is asked about
PER_ROUND = 8  # candidates per client that every earlier round's model is asked about


@dataclass(frozen=True, eq=False)
class Model:
    """One model in an adversary's hands. `client` is None for a model of the whole federation."""

    threat_model: str
    way: str  # a `HeldModel`
    client: int | None
    round: int  # how many rounds it has seen
    read: Callable[[], State] = field(repr=False)
    records: Sequence[str]

    @property
    def state(self) -> State:
        """Read when it is asked for and not kept: an adversary holds dozens of models."""
        return self.read()

    @functools.cached_property
    def digest(self) -> str:
        """Names weights and records by content: equal models are scored once."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state.items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        digest.update("\n".join(self.records).encode())
        return digest.hexdigest()[:16]


def models(view: View, attacks: Collection[object] = (), *, history: bool = False) -> list[Model]:
    """Everything that the adversary can attack with a model attack; the public base comes first in every view.

    `attacks` are their parameters: whether clients' models are asked about records of another distribution too
    (`NovelRows`), as the released model always is, and which ways of rebuilding are looked at (`RebuiltWays`).
    `history`: earlier rounds' models are asked about all candidates and references, for attacks on losses over rounds.
    """
    ways = {own.ways for own in attacks if isinstance(own, RebuiltWays)} - {"all"}
    left_out = {ROUND, *REBUILDINGS} - ways if ways else set()
    everywhere = any(isinstance(own, NovelRows) and own.novel_rows == "all" for own in attacks)
    found = _models(view, novel_of_clients=everywhere, history=history)
    return [model for model in found if model.way not in left_out]


def released_last(view: View) -> Model:
    """The released model as the last of the rounds' models, asked about what `history` asks the others."""
    asked = view.candidates
    records = [r for part in (asked.clients, asked.reference) for own in part.values() for r in own]
    return Model(view.threat_model, ROUND, None, view.rounds, functools.partial(view.broadcast, view.rounds), records)


def listened(view: View, client: int, most: int) -> list[int]:
    """The rounds whose messages are looked at for a client's records, all of them but for `most` evenly spaced ones:
    those of them in which it took part.

    In each, every client of the cohort is rebuilt in every way and asked about the client's candidates and references;
    gradients and inputs of these are taken once, where the client began.
    """
    observed = np.linspace(0, view.rounds - 1, min(most, view.rounds)).round().astype(int)
    return [r for r in view.participations(client) if r in observed]


def earlier_models(view: View, first: Mapping[int, int]) -> list[Model]:
    """The released model before each client's first round (`first`, by client), asked about its candidates.

    It has learnt other clients' records and none of these: a control, nothing that is attacked. There is none of
    clients that began with the public start.
    """
    return [
        Model(view.threat_model, BEFORE, k, r, functools.partial(view.broadcast, r), view.candidates.clients[k])
        for k, r in first.items()
        if r > 0
    ]


def _models(view: View, *, novel_of_clients: bool, history: bool) -> list[Model]:
    asked = view.candidates
    pool = [r for records in asked.clients.values() for r in records]
    reference = [r for records in asked.reference.values() for r in records]
    everything = [*pool, *reference, *asked.novel]
    found = [Model(view.threat_model, BASE, None, 0, functools.partial(view.broadcast, 0), everything)]
    if view.threat_model == RELEASED_MODEL:
        sample = [r for records in asked.clients.values() for r in records[:PER_ROUND]]
        if history:
            sample = [*pool, *reference]
        for r in range(1, view.rounds):
            found.append(Model(view.threat_model, ROUND, None, r, functools.partial(view.broadcast, r), sample))
        last, best = (functools.partial(view.broadcast, r) for r in (view.rounds, view.served_best))
        found.append(Model(view.threat_model, FINAL, None, view.rounds, last, everything))
        if view.served_best < view.rounds:
            found.append(Model(view.threat_model, BEST_UTILITY, None, view.served_best, best, [*pool, *reference]))
        return found
    for client in asked.clients:
        novel = asked.novel[:NOVEL_PER_CLIENT] if novel_of_clients else ()
        records = [*asked.clients[client], *asked.reference[client], *novel]
        for way, seen, read in _client_states(view, client):
            found.append(Model(view.threat_model, way, client, seen, read, records))
    return found


def _client_states(view: View, client: int) -> list[tuple[str, int, Callable[[], State]]]:
    """Way, rounds seen and reader of every model of a client that the adversary can put together."""
    if view.threat_model == OWNER:
        known = view.private(client) is not None
        return [(TRUE_STATE, view.rounds, lambda: _known(view.private(client)))] if known else []
    found: list[tuple[str, int, Callable[[], State]]] = []
    for r in rebuild_all(view, clients=[client]):
        if r.state is not None and r.seen is not None:
            found.append((r.way, r.seen + 1, functools.partial(_rebuilt, view, client, r.way)))
    return found


def _rebuilt(view: View, client: int, way: str) -> State:
    return _known(rebuild(view, client, way).state)


def _known(state: State | None) -> State:
    assert state is not None
    return state


@dataclass(frozen=True)
class Target:
    """Whom an adversary attacks, and the records that it asks about."""

    client: int
    candidates: Sequence[str]  # its members and held-out records, canaries at the end; unlabelled
    reference: Sequence[str]  # known non-members of the same distribution
    others: Sequence[str]  # records of other clients
    complete: bool = False  # whether its list holds candidates only, each with weight

    @property
    def own(self) -> tuple[str, ...]:
        """Those that could be in its list, for all that their distribution says."""
        return (*self.candidates, *self.reference)

    @property
    def records(self) -> tuple[str, ...]:
        return (*self.candidates, *self.reference, *self.others)

    def of_records(self, member: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the records [.., n] a model was trained on, from which of the candidates: on no others."""
        found = np.zeros((*member.shape[:-1], len(self.records)), bool)
        found[..., : len(self.candidates)] = member
        return found


def attacked_model(view: View, method: Method[Any], client: int, messages: Messages | None) -> State | None:
    """The model that the adversary attacks: what it holds of the client (rebuilt from `messages` by the server), or the
    global one; None if there is none."""
    attacked = view.threat_model.attacks
    if attacked == PROMPT:
        return view.personal(client)
    if attacked == PASSED_ON:
        return method.model(view.public | view.others_part(method, client))
    if attacked == FINAL:
        return method.model(view.public | view.broadcast(view.rounds) | method.place(client))
    return messages.rebuilt(client).state if messages else view.private(client)
