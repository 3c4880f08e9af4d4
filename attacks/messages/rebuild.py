"""Rebuild a client's model from the messages that a server received, and say how stale its parts are (FedRand, section
4.2).

What each way of rebuilding takes for the parts that a client's last message did not hold:

- `exact`: nothing is missing (FedAvg).
- `literal`: the message of its second-to-last participation, as FedRand's paper says; half the time that is the same
  half.
- `newest`: the newest earlier message that did hold them.
- `server-fill`: the aggregate after its last participation, as far as there is one. Always possible, and a guess.

A client that cannot be rebuilt so is not reconstructable: it gets no number. Of FedPer only the first round's messages
held every layer; a client's own layers change afterwards, so that only a client that never came again is known exactly.
FedPara's private pair is never sent: what `server-fill` gives is the shared pair alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.base import View
from fedaudit.terms.held_models import EXACT, LITERAL, REBUILDINGS, SERVER_FILL
from trainers.base import State


@dataclass(frozen=True)
class Rebuilt:
    """One client as the server rebuilt it; `state` is None where that is impossible, and `why` says it."""

    client: int
    way: str
    state: State | None
    seen: int | None  # the round of its last participation
    stale_rounds: int | None  # between that round and the one that the hidden part is from; 0 = exact
    stale_participations: int | None
    why: str = ""


def rebuild(view: View, client: int, way: str, until: int | None = None) -> Rebuilt:
    """The client after its last participation, or its last one before round `until`, as far as its messages till then
    tell."""
    rounds = [r for r in view.participations(client) if until is None or r < until]
    if not rounds:
        return Rebuilt(client, way, None, None, None, None, "never took part")
    last = rounds[-1]
    sent = view.upload(last, client)
    hidden = set(view.kept(last, client))
    if not hidden:
        return Rebuilt(client, EXACT, sent, last, 0, 0)
    if way == SERVER_FILL:
        return Rebuilt(client, way, view.broadcast(last + 1) | sent, last, None, None)
    earlier = rounds[-2:-1] if way == LITERAL else rounds[-2::-1]
    for steps, r in enumerate(earlier, 1):
        older = view.upload(r, client)
        if hidden <= older.keys():
            return Rebuilt(client, way, older | sent, last, last - r, steps)
    why = "took part once" if len(rounds) == 1 else "never sent what its last message lacks"
    if way == LITERAL and len(rounds) > 1:
        why = "its last two messages lack the same part"
    return Rebuilt(client, way, None, last, None, None, why)


def began(view: View, client: int, r: int) -> State:
    """What the client started from in round r, as the server puts it together: what it was sent, and of what it keeps
    to itself what the newest of its earlier messages held.

    Every tensor that a client sends starts from the broadcast, with all methods. What it never sent, or has just begun
    to keep, is taken from there too.
    """
    own: State = {}
    for earlier in view.participations(client):
        own |= view.upload(earlier, client) if earlier < r else {}
    return view.broadcast(r) | {name: own[name] for name in view.kept(r, client) if name in own}


def rebuild_all(view: View, clients: Sequence[int]) -> list[Rebuilt]:
    """Clients in every way; a client with nothing hidden has the one way `exact`."""
    unique = {(r.client, r.way): r for client in clients for way in REBUILDINGS for r in [rebuild(view, client, way)]}
    return list(unique.values())
