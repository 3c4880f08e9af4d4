"""What an outsider who knows a method can compute of its messages and states: what attacks ask of a method, and its
training never does.

A method whose rules differ from its family's names a class of its own, below it in the same file (`Method.messages`).
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
    """Of any method."""

    method: Known

    @property
    def nonlinear(self) -> str:
        """Why messages are no sums of records' gradients, as attacks that solve them need; "" where they are. A method
        of prompts says so by refusing the contract that they are."""
        return self.method.refuses.get("explains", "")

    def used_records(self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int]) -> set[str]:
        """Those of a client's list that were in a batch of its if it took part in `rounds`, whatever their weight."""
        return set(records) if rounds else set()

    def shared_records(self, records: Sequence[str], *, client: int, seed: int) -> set[str]:
        """Those of a client's list that others are given as they are."""
        return set()

    def model_selector(self, client: int) -> State:
        """What a state of the server's needs beside it to be read as a client's, where it holds several models."""
        return {}

    def broadcast_part(self, server: State, client: int) -> State:
        """What the server's state holds of one client that all others are sent, by the names that `model` knows; {}
        where they are sent no more than the released model."""
        return {}

    def replay(
        self, server: State, own: State, upload: State, learner: Any, generator: torch.Generator, sizes: Sequence[int]
    ) -> State:
        """What clients' own parts became in a round, for who sees no more than the uploads: `update` without records,
        noise and the clients' chance.

        States lead with the clients, whose n_k are `sizes`. By default a part that no upload tells anything about
        stays as it was.
        """
        return own


@runtime_checkable
class Sending(Protocol):
    """What attacks on messages ask beside where records are classes. States are of one client, or lead with M of them;
    `server` is what they were sent."""

    def round_start(self, server: State, own: State) -> State:
        """What clients start a round from."""

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        """The clients' models right after their own steps, before any other message is mixed in; `own` is what they
        keep to themselves by then."""

    def update_vector(self, server: State, upload: State) -> Tensor:
        """How clients changed what they send."""
