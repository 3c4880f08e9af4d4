"""The record of a training: files of what each party saw in every round, and their reader.

A round's tensors are called `aggregate/NAME`, `upload/CLIENT/NAME`, `private/CLIENT/NAME`, and where clients compute on
secret shares `revealed/NAME` and `held/NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedaudit.machinery.store import Folder
from fedaudit.privacy.ledger import RoundNoise
from fedaudit.trainers.base import Method, Model, Noised, Revealed, Schedule, State, Upload, plain, size


@dataclass(frozen=True)
class Transcript:
    """Reader of a run's files. It reads a round when it is asked for it."""

    folder: Folder
    schedule: Schedule
    model: Model = plain  # `Method.model`
    by_client: tuple[str, ...] = ()  # `Method.by_client`
    sent: Model = plain  # `Method.broadcast`
    _cohorts: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Folder, schedule: Schedule, method: Method[Any]) -> Transcript:
        """A reader of the run of `method` in `folder`."""
        return cls(folder, schedule, method.model, method.by_client, method.broadcast)

    def server(self, r: int) -> State:
        """The server's whole state at the start of round r, with what it keeps to itself. For the training only."""
        if r == 0:
            return self.folder.read_tensors("initial.safetensors")
        return self._part(r - 1, "aggregate")

    def broadcast(self, r: int) -> State:
        """The state that the server sent in round r; `broadcast(rounds)` is the final one."""
        return self.sent(self.server(r))

    def sent_to_all(self, r: int) -> State:
        """`broadcast(r)` without what only clients are sent (`Method.by_client`); `sent_to_all(rounds)` is the
        released model."""
        return {name: tensor for name, tensor in self.broadcast(r).items() if name not in self.by_client}

    def round(self, r: int) -> dict[str, Any]:
        """The JSON record of round r: `cohort`, `uploads` (by client: `records` = n_k, `facts`, `bytes`, `kept`,
        `owner`), `bytes_up`, `bytes_down`, `utility`, and where there was any `noise` and `revealed`."""
        record: dict[str, Any] = self.folder.read_json(f"round-{r:03d}.json")
        return record

    @property
    def initial(self) -> dict[str, Any]:
        """The JSON record of the public start: its `utility`."""
        record: dict[str, Any] = self.folder.read_json("initial.json")
        return record

    @property
    def rounds_at_least_loss(self) -> int:
        """Number of rounds after which the global model had its lowest test loss (the first such); all rounds if none
        was measured."""
        losses = [self.round(r)["utility"].get("global", {}).get("loss") for r in range(self.schedule.rounds)]
        measured = {r: loss for r, loss in enumerate(losses, 1) if loss is not None}
        return min(measured, key=measured.__getitem__, default=self.schedule.rounds)

    def cohort(self, r: int) -> list[int]:
        """Numbers of the clients that took part in round r, sorted."""
        if r not in self._cohorts:  # a complete file never changes
            self._cohorts[r] = list(self.round(r)["cohort"])
        return self._cohorts[r]

    def before(self, r: int) -> dict[int, list[int]]:
        """{client: rounds before r in which it took part, ascending}; without clients that did not."""
        rounds_by_client: dict[int, list[int]] = {}
        for earlier_round in range(r):
            for client in self.cohort(earlier_round):
                rounds_by_client.setdefault(client, []).append(earlier_round)
        return rounds_by_client

    def participations(self, client: int, before: int | None = None) -> list[int]:
        """The rounds, below `before` if given, in which a client took part, ascending."""
        rounds = range(self.schedule.rounds if before is None else before)
        return [r for r in rounds if client in self.cohort(r)]

    def upload(self, r: int, client: int) -> State:
        """The tensors that a client uploaded in round r; {} if none."""
        return self._part(r, f"upload/{client}")

    def uploads(self, r: int) -> dict[int, State]:
        """{client: its upload of round r}, read at once. Clients that uploaded no tensor are left out."""
        states: dict[int, State] = {}
        for name, tensor in self._part(r, "upload").items():
            client, _, key = name.partition("/")
            states.setdefault(int(client), {})[key] = tensor
        return states

    def kept(self, r: int, client: int) -> list[str]:
        """Sorted names of the tensors of a client's private state that it did not upload in round r."""
        return list(self.round(r)["uploads"][str(client)]["kept"])

    def own_model(self, r: int, client: int) -> State | None:
        """The adapter or prompt of a client after round r; None if the run does not hold it. For the owner and for
        evaluation only. What a client lacks, as a global prompt, is taken from the next broadcast."""
        if not self.round(r)["uploads"][str(client)]["owner"]:
            return None
        return self.model(self.broadcast(r + 1) | self.private(r, client))

    def private(self, r: int, client: int) -> State:
        """All tensors that a client holds after round r. For the owner and for evaluation only."""
        return self.upload(r, client) | self._part(r, f"private/{client}")

    def own_part(self, r: int, client: int) -> State:
        """The tensors that a client holds after round r and did not upload as they are. For the owner only."""
        return self._part(r, f"private/{client}")

    def revealed(self, r: int) -> State:
        """Tensors that a computation on secret shares revealed to the server in round r; {} if there was none."""
        return self._part(r, "revealed")

    def distance_groups(self, r: int) -> list[list[int]]:
        """The groups of clients to whose means distances were revealed in round r; [] if none."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("groups", [])
        return groups

    def summed_groups(self, r: int) -> list[list[int]]:
        """The groups of clients whose sums were revealed in round r; [] if none."""
        groups: list[list[int]] = self.round(r).get("revealed", {}).get("summed", [])
        return groups

    def held_shares(self, r: int) -> State:
        """The secret shares [holder, dealer, ..] that clients held in round r, by the name of what is shared."""
        return self._part(r, "held")

    def personal(self, r: int, client: int) -> State:
        """A client's personalised prompt after round r: the aggregate with the client's own part, as its prompt-users
        get it."""
        return self.model(self.broadcast(r + 1) | self._part(r, f"private/{client}"))

    def released(self, client: int) -> State:
        """The personalised prompt that a client releases in the end: the last aggregate with the client's own part (the
        public start's, if it never took part)."""
        rounds = self.participations(client)
        own_part = self._part(rounds[-1], f"private/{client}") if rounds else {}
        return self.model(self.broadcast(0) | self.broadcast(self.schedule.rounds) | own_part)

    def holdings(self, clients: Mapping[int, int]) -> dict[int, State]:
        """The state that each client holds after the round given for it in `clients` ({client: round}), as `private(r,
        client)`, {client: state}; reads each file once."""
        states: dict[int, State] = {}
        for r in sorted(set(clients.values())):
            tensors = self.folder.read_tensors(f"round-{r:03d}.safetensors")
            for part in ("upload", "private"):
                for name, tensor in tensors.items():
                    kind, _, rest = name.partition("/")
                    client, _, key = rest.partition("/")
                    if kind == part and clients.get(int(client)) == r:
                        states.setdefault(int(client), {})[key] = tensor
        return states

    def _part(self, r: int, prefix: str) -> State:
        return self.folder.read_tensors(f"round-{r:03d}.safetensors", f"{prefix}/")


def round_files(
    aggregate: State, uploads: Sequence[Upload], private: Mapping[int, State], revealed: Revealed
) -> tuple[State, dict[str, Any]]:
    """The tensors of a round by name, for its file, and {client: JSON record of its upload}. A private tensor that
    equals the uploaded one of its name is kept once."""
    tensors = {f"aggregate/{name}": t for name, t in aggregate.items()}
    messages = {}
    for upload in uploads:
        tensors |= {f"upload/{upload.client}/{name}": t for name, t in upload.state.items()}
        for name, t in private[upload.client].items():
            if name not in upload.state or not torch.equal(t, upload.state[name]):
                tensors[f"private/{upload.client}/{name}"] = t
        messages[str(upload.client)] = {
            "records": upload.records,
            "facts": dict(upload.facts),
            "bytes": size(upload.state),
            "kept": sorted(private[upload.client].keys() - upload.state.keys()),
            "owner": True,
        }
    tensors |= {f"revealed/{name}": tensor for name, tensor in revealed.tensors.items()}
    tensors |= {f"held/{name}": tensor for name, tensor in revealed.held.items()}
    return tensors, messages


def noise_record(clients: Sequence[Noised], server: Noised) -> dict[str, Any]:
    """{"noise": ...}, the entry of a round's JSON record, or {} without noise. Each mechanism is listed once, as all
    clients run the same; `signals` are means over clients, `clipped` are counts [gradients longer than C, all
    gradients].

    ValueError: the server added noise though clients took several steps.
    """
    mechanisms = dict.fromkeys(m for party in (*clients, server) for m in party.mechanisms)
    if not mechanisms:
        return {}
    batches = list({id(c): c for c in clients}.values())  # clients that trained as one batch share one `Noised`
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
