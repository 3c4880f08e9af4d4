"""The view that each threat model gives of a run: what one adversary holds, and nothing else.

A view never tells who is a member. Each method needs a capability; LacksCapability if the threat model lacks it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedaudit.attacks.threats import require
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.transcript import Transcript

if TYPE_CHECKING:
    from fedaudit.attacks.probes import Probed


class View:
    """Reads a run as the adversary of one threat model does. Rounds r count from 0; states are tensors by name.

    `users` are the clients that collude, for the threat model "colluding-users"; `probes` those that an active server
    sent, by attack.
    """

    def __init__(
        self,
        transcript: Transcript,
        threat_model: str,
        *,
        users: Collection[int] = (),
        probes: Mapping[str, "Probed"] = MappingProxyType({}),
    ) -> None:
        self._transcript = transcript
        self.threat_model = find(THREAT_MODELS, threat_model, "threat model")
        self.users = tuple(users)
        self._probes = dict(probes)
        self.rounds = transcript.schedule.rounds
        self.clients = range(transcript.schedule.clients)

    @property
    def folder(self) -> Path:
        """The folder of the run, which identifies it."""
        return self._transcript.folder.path

    @property
    def public(self) -> State:
        """The global state before training, known to everybody."""
        return self._transcript.broadcast(0)

    def gives(self, capability: str) -> bool:
        """Whether the threat model sees a capability, such as "uploads" (all: `ThreatModel.sees`)."""
        return capability in self.threat_model.sees

    def _require(self, capability: str) -> None:
        require(self.threat_model, capability)

    def broadcast(self, r: int) -> State:
        """The global state that is sent at the start of round r. `broadcast(0)` is public, `broadcast(rounds)` is the
        released model.

        Parts of single clients that are sent to all others are left out unless the threat model sees "others' parts".
        State that the server never sends (`Method.broadcast`) is in no view.
        """
        self._require("broadcasts")
        return self._transcript.broadcast(r) if self.gives("others' parts") else self._transcript.sent_to_all(r)

    def cohort(self, r: int) -> list[int]:
        """The clients that took part in round r of a training of ours: cohorts are drawn by a seed that everybody sees
        (`Schedule`)."""
        self._require("broadcasts")
        return self._transcript.cohort(r)

    @property
    def rounds_at_least_loss(self) -> int:
        """Number of rounds after which the global model had its lowest held-out loss, and might be released instead."""
        self._require("broadcasts")
        return self._transcript.rounds_at_least_loss

    def others_part(self, method: Method[Any], client: int) -> State:
        """The released model with one client's own tensors in it, as all other clients receive it at the end."""
        self._require("others' parts")
        last = self.broadcast(self.rounds)
        return last | method.messages.broadcast_part(last, client)

    def participations(self, client: int) -> list[int]:
        """Rounds in which a client took part, in order, even if it sent no tensor."""
        self._require("uploads")
        return self._transcript.participations(client)

    def upload(self, r: int, client: int) -> State:
        """The state that a client sent in round r, as the server received it; {} if it sent nothing."""
        self._require("uploads")
        return self._transcript.upload(r, client)

    def uploads(self, r: int) -> dict[int, State]:
        """The states that were sent in round r, by client; clients that sent nothing are left out."""
        self._require("uploads")
        return self._transcript.uploads(r)

    def records(self, r: int, client: int) -> int:
        """n_k: how many records a client says it has in round r."""
        self._require("uploads")
        return int(self._transcript.round(r)["uploads"][str(client)]["records"])

    def kept(self, r: int, client: int) -> list[str]:
        """Sorted names of the tensors that a client, after round r, holds and did not send in it."""
        self._require("uploads")
        return self._transcript.kept(r, client)

    def sums(self, r: int) -> tuple[list[list[int]], Tensor]:
        """The G groups of clients whose gradients were summed in round r, and their mean gradients [G, ..]; KeyError in
        a round without any."""
        self._require("sums of uploads")
        return self._transcript.summed_groups(r), self._transcript.revealed(r)["gradients"]

    def distances(self, r: int) -> tuple[list[list[int]], State]:
        """The G groups of clients to whose means the server measured distances in round r, and the tensors that it
        decoded beside sums: `distances` [n, G], squared, of all n clients to these means, and others. No groups and no
        such tensor in a round without any."""
        self._require("distances")
        revealed = self._transcript.revealed(r)
        return self._transcript.distance_groups(r), {
            name: tensor for name, tensor in revealed.items() if name != "gradients"
        }

    def shares(self, r: int) -> State:
        """The shares [m, K, ..] that the m colluding users hold of all K clients' vectors in round r, by name of
        vector."""
        self._require("shares")
        return {name: tensor[list(self.users)] for name, tensor in self._transcript.held_shares(r).items()}

    def personal(self, client: int) -> State:
        """The personalised prompt that a client releases: the sum of its parts, not the parts."""
        self._require("personal prompts")
        return self._transcript.released(client)

    def probe(self, attack: str) -> "Probed":
        """The broadcast that an attack of an active server made, and what clients sent back."""
        self._require("probes")
        return self._probes[attack]

    def private(self, client: int) -> State | None:
        """A client's true model after its last participation; None if it never took part or nothing is stored."""
        self._require("private states")
        rounds = self._transcript.participations(client)
        return self._transcript.own_model(rounds[-1], client) if rounds else None
