"""Rebuild a client's model from the messages that a server received, and tell how stale its parts are (FedRand, section
4.2).

A client's last message may lack parts of its model. Ways of rebuilding fill them in from:

- `exact`: nothing, as the message lacks no part (FedAvg).
- `literal`: the message of its second-to-last participation, as in FedRand's paper; it lacks the same half half of the
  time.
- `newest`: the newest earlier message that had them.
- `server-fill`: the aggregate after its last participation, for parts that are aggregated. Always possible, but a
  guess.

A client that cannot be rebuilt has no score. With FedPer only the first round's messages have every layer, and a
client's own layers change afterwards: only clients that took part once are known exactly. FedPara's private pair is
never sent: `server-fill` gives the shared pair alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.attacks.base import View
from fedaudit.terms.held_models import EXACT, LITERAL, NEWEST, REBUILDINGS, SERVER_FILL
from fedaudit.trainers.base import State


@dataclass(frozen=True)
class Rebuilt:
    """One client as the server rebuilt it. If that is impossible `state` is None, and `why` tells the reason."""

    client: int
    way: str  # "exact", "literal", "newest", "server-fill", "rebuilt" or "estimated", see `held_models`
    state: State | None
    last_round: int | None  # the round of its last participation
    stale_rounds: int | None  # rounds between `last_round` and the message that the missing parts are from; 0 = exact
    stale_participations: int | None  # the same, counted in the client's participations
    why: str = ""


def rebuild(view: View, client: int, rebuilding: str, until: int | None = None) -> Rebuilt:
    """One client's model after its last participation (before round `until`, if given), rebuilt from its messages up to
    then. `rebuilding` names the way: how parts that the last message lacks are filled ("newest", "literal",
    "server-fill").

    A client whose message lacks nothing is rebuilt as "exact", whatever the way; if it lacks something, "newest" stands
    in for "exact". `state` is None, with the reason in `why`, if the way is impossible.
    """
    rounds = [r for r in view.participations(client) if until is None or r < until]
    if not rounds:
        return Rebuilt(client, rebuilding, None, None, None, None, "never took part")
    last = rounds[-1]
    sent = view.upload(last, client)
    hidden = set(view.kept(last, client))
    if not hidden:
        return Rebuilt(client, EXACT, sent, last, 0, 0)
    if rebuilding == EXACT:
        return rebuild(view, client, NEWEST, until)
    if rebuilding == SERVER_FILL:
        return Rebuilt(client, rebuilding, view.broadcast(last + 1) | sent, last, None, None)
    candidates = rounds[-2:-1] if rebuilding == LITERAL else rounds[-2::-1]
    for steps, r in enumerate(candidates, 1):
        older = view.upload(r, client)
        if hidden <= older.keys():
            return Rebuilt(client, rebuilding, older | sent, last, last - r, steps)
    why = "took part once" if len(rounds) == 1 else "never sent what its last message lacks"
    if rebuilding == LITERAL and len(rounds) > 1:
        why = "its last two messages lack the same part"
    return Rebuilt(client, rebuilding, None, last, None, None, why)


def round_start(view: View, client: int, r: int) -> State:
    """The model from which a client started round r, as far as the server can tell.

    Tensors that it sends in round r start from the broadcast, with all methods. Those that it does not send are taken
    from its newest earlier message that had them, or else from the broadcast too.
    """
    newest: State = {}
    for past in view.participations(client):
        newest |= view.upload(past, client) if past < r else {}
    return view.broadcast(r) | {name: newest[name] for name in view.kept(r, client) if name in newest}


def rebuild_all(view: View, clients: Sequence[int]) -> list[Rebuilt]:
    """Rebuild clients in every way of REBUILDINGS, with `state` None where it is impossible. A client whose message
    lacks nothing comes once, as "exact"."""
    models = (rebuild(view, client, rebuilding) for client in clients for rebuilding in REBUILDINGS)
    return list({(model.client, model.way): model for model in models}.values())
