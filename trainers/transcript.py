"""The record of a training: what each party saw at every round, as files, and their reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedaudit.machinery.store import Folder
from fedaudit.privacy.ledger import RoundNoise
from trainers.base import Method, Model, Noised, Schedule, State, Upload, plain, size


@dataclass(frozen=True)
class Transcript:
    """A lazy reader over the files of a run: what was sent, received and kept, round by round."""

    folder: Folder
    schedule: Schedule
    model: Model = plain  # the method's: what adapter or prompt a state stands for
    by_client: tuple[str, ...] = ()  # the method's: what of a broadcast is no part of the released model
    sent: Model = plain  # the method's: what of the server's state is broadcast
    _cohorts: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Folder, schedule: Schedule, method: Method[Any]) -> Transcript:
        """The reader of a method's run."""
        return cls(folder, schedule, method.model, method.by_client, method.broadcast)

    def server(self, r: int) -> State:
        """The server's state that round r started from, with what it keeps to itself; for the training alone."""
        if r == 0:
            return self.folder.read_tensors("initial.safetensors")
        return self._part(r - 1, "aggregate")

    def broadcast(self, r: int) -> State:
        """What round r started from, as sent; `broadcast(rounds)` is the final one."""
        return self.sent(self.server(r))

    def sent_to_all(self, r: int) -> State:
        """The same without what is sent to clients alone: `sent_to_all(rounds)` is the released model."""
        return {name: tensor for name, tensor in self.broadcast(r).items() if name not in self.by_client}

    def round(self, r: int) -> dict[str, Any]:
        """Cohort, n_k, facts, bytes and utility of round r."""
        found: dict[str, Any] = self.folder.read_json(f"round-{r:03d}.json")
        return found

    @property
    def initial(self) -> dict[str, Any]:
        """Utility of the model before training, and out of distribution."""
        found: dict[str, Any] = self.folder.read_json("initial.json")
        return found

    @property
    def served_best(self) -> int:
        """After how many rounds the global model had its least held-out loss; all of them where none was measured."""
        losses = [self.round(r)["utility"].get("global", {}).get("loss") for r in range(self.schedule.rounds)]
        known = {r: loss for r, loss in enumerate(losses, 1) if loss is not None}
        return min(known, key=known.__getitem__, default=self.schedule.rounds)

    def cohort(self, r: int) -> list[int]:
        if r not in self._cohorts:  # a complete file never changes
            self._cohorts[r] = list(self.round(r)["cohort"])
        return self._cohorts[r]

    def before(self, r: int) -> dict[int, list[int]]:
        """Client to the rounds before r in which it took part, in order; only clients that did."""
        found: dict[int, list[int]] = {}
        for earlier in range(r):
            for client in self.cohort(earlier):
                found.setdefault(client, []).append(earlier)
        return found

    def participations(self, client: int, before: int | None = None) -> list[int]:
        """The rounds (below `before`) in which a client took part."""
        rounds = range(self.schedule.rounds if before is None else before)
        return [r for r in rounds if client in self.cohort(r)]

    def upload(self, r: int, client: int) -> State:
        return self._part(r, f"upload/{client}")

    def uploads(self, r: int) -> dict[int, State]:
        """All messages of a round by client, in one reading; a client whose message is empty is not there."""
        found: dict[int, State] = {}
        for name, tensor in self._part(r, "upload").items():
            client, _, key = name.partition("/")
            found.setdefault(int(client), {})[key] = tensor
        return found

    def kept(self, r: int, client: int) -> list[str]:
        """Names of the tensors of a client's model that its message of round r did not hold."""
        return list(self.round(r)["uploads"][str(client)]["kept"])

    def own_model(self, r: int, client: int) -> State | None:
        """The adapter or prompt of a client after round r, None if the run does not hold it. For the owner and for
        evaluation only.

        What a client does not hold itself, such as a global prompt, is the server's after the round.
        """
        if not self.round(r)["uploads"][str(client)]["owner"]:
            return None
        return self.model(self.broadcast(r + 1) | self.private(r, client))

    def private(self, r: int, client: int) -> State:
        """Everything that a client holds after round r. For the owner and for evaluation only."""
        return self.upload(r, client) | self._part(r, f"private/{client}")

    def revealed(self, r: int) -> State:
        """What a computation on shares told the server in round r; nothing where there was none."""
        return self._part(r, "revealed")

    def asked(self, r: int) -> list[list[int]]:
        """The groups of clients to whose means distances were revealed in round r."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("groups", [])
        return groups

    def summed(self, r: int) -> list[list[int]]:
        """The groups of clients whose sums were revealed in round r."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("summed", [])
        return groups

    def held(self, r: int) -> State:
        """The shares [holder, dealer, ..] that clients hold of each other's vectors in round r, by what is shared."""
        return self._part(r, "held")

    def personal(self, r: int, client: int) -> State:
        """A client's personalised prompt after round r: the aggregate with the client's own part. It is what prompt
        users get."""
        return self.model(self.broadcast(r + 1) | self._part(r, f"private/{client}"))

    def released(self, client: int) -> State:
        """The personalised prompt that a client releases in the end: the last aggregate with its own part, the public
        one if it never took part."""
        rounds = self.participations(client)
        own = self._part(rounds[-1], f"private/{client}") if rounds else {}
        return self.model(self.broadcast(0) | self.broadcast(self.schedule.rounds) | own)

    def holdings(self, clients: Mapping[int, int]) -> dict[int, State]:
        """What each client holds after its round r (client to r); every file is read once."""
        found: dict[int, State] = {}
        for r in sorted(set(clients.values())):
            tensors = self.folder.read_tensors(f"round-{r:03d}.safetensors")
            for part in ("upload", "private"):
                for name, tensor in tensors.items():
                    kind, _, rest = name.partition("/")
                    client, _, key = rest.partition("/")
                    if kind == part and clients.get(int(client)) == r:
                        found.setdefault(int(client), {})[key] = tensor
        return found

    def _part(self, r: int, prefix: str) -> State:
        return self.folder.read_tensors(f"round-{r:03d}.safetensors", f"{prefix}/")


def _seen(aggregate: State, uploads: Sequence[Upload], held: Mapping[int, State]) -> tuple[State, dict[str, Any]]:
    """The tensors and facts of a round for its files; a private tensor that was also uploaded is kept once."""
    tensors = {f"aggregate/{name}": t for name, t in aggregate.items()}
    messages = {}
    for upload in uploads:
        private = held[upload.client]
        tensors |= {f"upload/{upload.client}/{name}": t for name, t in upload.state.items()}
        for name, t in private.items():
            if name not in upload.state or not torch.equal(t, upload.state[name]):
                tensors[f"private/{upload.client}/{name}"] = t
        messages[str(upload.client)] = {
            "records": upload.records,
            "facts": dict(upload.facts),
            "bytes": size(upload.state),
            "kept": sorted(private.keys() - upload.state.keys()),
            "owner": True,
        }
    return tensors, messages


def _noise(clients: Sequence[Noised], server: Noised) -> dict[str, Any]:
    """What was noised in a round, for its file: each mechanism once (all clients run the same), signals as means over
    clients, clipped gradients as [longer than C, all]."""
    mechanisms = dict.fromkeys(m for party in (*clients, server) for m in party.mechanisms)
    if not mechanisms:
        return {}
    batches = list({id(c): c for c in clients}.values())  # clients that computed together share one record
    ran = RoundNoise(mechanisms=tuple(mechanisms), turns=tuple(turn for c in batches for turn in c.turns))
    if server.mechanisms and any(turn.steps > 1 for turn in ran.turns):
        raise ValueError("the server's noise covers one step of each client, not several; noise at the client instead")
    weights = [len(c.turns) for c in batches]
    names = batches[0].signals
    signals = {n: float(np.average([c.signals[n] for c in batches], weights=weights)) for n in names} | server.signals
    clipped = {
        n: [sum(counts) for counts in zip(*(c.clipped[n] for c in batches), strict=True)] for n in batches[0].clipped
    }
    return {"noise": ran.to_json() | {"signals": signals, "clipped": clipped}}
