"""Threat models, and the view that each gives of a run: what one adversary holds, and nothing else.

Membership never enters a view. Asking for something that a threat model does not give is an error that names the
capability.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from attacks.threats import require
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import THREAT_MODELS
from trainers.base import Method, State
from trainers.transcript import Transcript


class View:
    """What the adversary of one threat model sees of a transcript; `users` are those who collude, where users do."""

    def __init__(self, transcript: Transcript, threat_model: str, *, users: Collection[int] = ()) -> None:
        self._transcript = transcript
        self.threat_model = find(THREAT_MODELS, threat_model, "threat model")
        self.users = tuple(users)
        self.rounds = transcript.schedule.rounds
        self.clients = range(transcript.schedule.clients)

    @property
    def folder(self) -> Path:
        """Where the run lies, which names it."""
        return self._transcript.folder.path

    @property
    def public(self) -> State:
        """The start of training, which everybody knows."""
        return self._transcript.broadcast(0)

    def gives(self, capability: str) -> bool:
        """Whether the threat model has a capability."""
        return capability in self.threat_model.sees

    def _require(self, capability: str) -> None:
        require(self.threat_model, capability)

    def broadcast(self, r: int) -> State:
        """The global state at the start of round r, as sent; `broadcast(rounds)` is the released model, `broadcast(0)`
        public. Parts of clients that are sent to all others are in it for these and for the server only.

        What a server keeps to itself (`Method.broadcast`) is in no view: it follows from the messages, which the server
        sees, and no model is made of it.
        """
        self._require("broadcasts")
        return self._transcript.broadcast(r) if self.gives("others' parts") else self._transcript.sent_to_all(r)

    @property
    def rounds_at_least_loss(self) -> int:
        """After how many rounds the global model had its least held-out loss: what a deployer who looks would release
        instead of the last one."""
        self._require("broadcasts")
        return self._transcript.rounds_at_least_loss

    def others_part(self, method: Method[Any], client: int) -> State:
        """What of a client all others are sent in the end, in the released model."""
        self._require("others' parts")
        last = self.broadcast(self.rounds)
        return last | method.messages.broadcast_part(last, client)

    def participations(self, client: int) -> list[int]:
        """Rounds in which a client sent something."""
        self._require("uploads")
        return self._transcript.participations(client)

    def upload(self, r: int, client: int) -> State:
        """A client's message of round r, as the server received it."""
        self._require("uploads")
        return self._transcript.upload(r, client)

    def uploads(self, r: int) -> dict[int, State]:
        """All messages of a round by client; empty ones are not there."""
        self._require("uploads")
        return self._transcript.uploads(r)

    def records(self, r: int, client: int) -> int:
        """How many records a client of round r says that its list holds, n_k."""
        self._require("uploads")
        return int(self._transcript.round(r)["uploads"][str(client)]["records"])

    def kept(self, r: int, client: int) -> list[str]:
        """Names of the tensors that a client's message of round r did not hold; the method, and so this, is public."""
        self._require("uploads")
        return self._transcript.kept(r, client)

    def sums(self, r: int) -> tuple[list[list[int]], Tensor]:
        """The clients of every group of round r, and the means [K, ..] of what they put into the sums."""
        self._require("sums of uploads")
        return self._transcript.summed_groups(r), self._transcript.revealed(r)["gradients"]

    def distances(self, r: int) -> tuple[list[list[int]], State]:
        """The groups G about whose means was asked in round r, and what was decoded beside sums: `distances` [n, G] are
        the squared ones of all clients to these means. Both empty where nothing was asked."""
        self._require("distances")
        found = self._transcript.revealed(r)
        return self._transcript.distance_groups(r), {
            name: tensor for name, tensor in found.items() if name != "gradients"
        }

    def shares(self, r: int) -> State:
        """The shares [m, dealer, ..] that the m colluding users hold of all clients' vectors in round r."""
        self._require("shares")
        return {name: tensor[list(self.users)] for name, tensor in self._transcript.held_shares(r).items()}

    def personal(self, client: int) -> State:
        """The personalised prompt that a client releases: the sum, not its parts."""
        self._require("personal prompts")
        return self._transcript.released(client)

    def private(self, client: int) -> State | None:
        """A client's own model after its last participation; None if it never took part, or if the run does not hold
        it."""
        self._require("private states")
        rounds = self._transcript.participations(client)
        return self._transcript.own_model(rounds[-1], client) if rounds else None
