"""Reading a method's uploads and states: what attacks who know the method compute. Its training never uses this.

A method whose uploads are read differently from those of its base class returns a class of its own from
`Method.messages`, defined below it in the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from trainers.base import Method, State

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

    def used_records(self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int]) -> set[str]:
        """Those of a client's records, of any weight, that are in its batches if it takes part in exactly `rounds`."""
        return set(records) if rounds else set()

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
