"""The models that an adversary can put together from its view, and the records that it asks each of them about."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from attacks.base import View
from attacks.rebuild import rebuild_all
from trainers.base import State

NOVEL_PER_CLIENT = 75  # out-of-distribution records that a client's model is asked about
PER_ROUND = 12  # candidates per client that every earlier round's model is asked about


@dataclass(frozen=True, eq=False)
class Model:
    """One model in an adversary's hands. `client` is None for a model of the whole federation."""

    threat_model: str
    way: str  # "base", "final", "round", a way of rebuilding, or "true state"
    client: int | None
    round: int  # how many rounds it has seen
    state: State
    records: Sequence[str]

    @property
    def digest(self) -> str:
        """Names weights and records by content: equal models are scored once."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state.items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        digest.update("\n".join(self.records).encode())
        return digest.hexdigest()[:16]


def models(view: View) -> list[Model]:
    """Everything that the adversary can attack with a model attack; the public base comes first in every view."""
    asked = view.candidates
    pool = [r for k in view.clients for r in asked.clients[k]]
    reference = [r for k in view.clients for r in asked.reference[k]]
    found = [Model(view.threat_model, "base", None, 0, view.broadcast(0), [*pool, *reference, *asked.novel])]
    if view.threat_model == "released-model":
        sample = [r for k in view.clients for r in asked.clients[k][:PER_ROUND]]
        for r in range(1, view.rounds):
            found.append(Model(view.threat_model, "round", None, r, view.broadcast(r), sample))
        state = view.broadcast(view.rounds)
        found.append(Model(view.threat_model, "final", None, view.rounds, state, [*pool, *reference, *asked.novel]))
        return found
    for client in view.clients:
        records = [*asked.clients[client], *asked.reference[client], *asked.novel[:NOVEL_PER_CLIENT]]
        for way, seen, state in _client_states(view, client):
            found.append(Model(view.threat_model, way, client, seen, state, records))
    return found


def _client_states(view: View, client: int) -> list[tuple[str, int, State]]:
    if view.threat_model == "owner":
        own = view.private(client)
        return [] if own is None else [("true state", view.rounds, own)]
    rebuilt = [r for r in rebuild_all(view, clients=[client]) if r.state is not None]
    return [(r.way, r.seen + 1, r.state) for r in rebuilt if r.seen is not None and r.state is not None]
