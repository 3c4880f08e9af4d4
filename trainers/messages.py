"""Reading a method's uploads and states: what attacks who know the method compute. Its training never uses this.

A method whose uploads are read differently from those of its base class returns a class of its own from
`Method.messages`, defined below it in the same file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedaudit.trainers.generators import generator

if TYPE_CHECKING:
    from fedaudit.trainers.base import Method, State

Known = TypeVar("Known", bound="Method[Any]")


@dataclass(frozen=True)
class MethodMessages(Generic[Known]):
    """Reads the uploads of a method; base class for all methods."""

    method: Known

    @property
    def nonlinear(self) -> str:
        """Why uploads are no sums of records' gradients, which `decompose` needs; "" if they are. It is the reason for
        which the method refuses the contract `explains`."""
        return self.method.refuses.get("explains", "")

    def used_records(
        self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int], settings: Any
    ) -> set[str]:
        """Those of a client's records, of any weight, that are in its batches if it takes part in exactly `rounds`.

        `settings` are the learner's. The base class knows clients that call `Participation.train`: unless the settings
        are `Batching`, all records are used (none without rounds).
        """
        if not isinstance(settings, Batching):
            return set(records) if rounds else set()
        streams = [generator(seed, "client", client, r, "batches") for r in rounds]  # those of `Participation.train`
        return {records[i] for stream in streams for batch in settings.batches(len(records), stream) for i in batch}

    def shared_records(self, records: Sequence[str], *, client: int, seed: int) -> set[str]:
        """Those of a client's records that it sends to others as they are."""
        return set()

    def model_selector(self, client: int) -> State:
        """Entries that make `model` read client k's model out of a server state with several; {} if it has one."""
        return {}

    def broadcast_part(self, server: State, client: int) -> State:
        """The part of the server's state about `client` that all other clients are sent, by the names that `model`
        uses; {} if they are sent the released model only."""
        return {}

    def replay(
        self, server: State, own: State, upload: State, learner: Any, generator: torch.Generator, sizes: Sequence[int]
    ) -> State:
        """Estimate the clients' private states after a round from their uploads: `update` without records, noise and
        clients' randomness.

        `own` are their private states before it. States lead with the clients, whose n_k are `sizes`. The base class
        returns `own`: uploads tell nothing of it.
        """
        return own


@runtime_checkable
class Batching(Protocol):
    """The settings of a learner whose `train` may leave out some of a client's records."""

    def batches(self, records: int, generator: torch.Generator) -> Iterator[list[int]]:
        """Yield the batches of `train` in a round, as indices into the client's records; `generator` is `train`'s."""


@runtime_checkable
class Sending(Protocol):
    """Further functions that attacks on uploads need if records are classes. States are of one client, or lead with M
    clients; `server` is the broadcast."""

    def round_start(self, server: State, own: State) -> State:
        """The state in which clients start a round."""

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        """The clients' models after their own steps, before other uploads are mixed in. `own` are their private states
        by then."""

    def update_vector(self, server: State, upload: State) -> Tensor:
        """The change, over the clients' steps, of the tensors that they send."""
