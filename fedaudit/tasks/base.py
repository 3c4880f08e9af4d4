"""What a task gives: a federation of clients with records, and the truth about who was trained on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.errors import InputError


@dataclass(frozen=True, eq=False)
class Record:
    """One image with its text. `id` is stable and says nothing about membership."""

    id: str
    group: str  # what the partition goes by: the object class of a caption, the topic of a question
    image: NDArray[np.uint8]  # [H, W, 3]
    text: str  # what the model learns to say
    references: tuple[str, ...] = ()  # right answers, for evaluation

    def __post_init__(self) -> None:
        if self.image.ndim != 3 or self.image.shape[2] != 3 or self.image.size == 0:
            raise InputError(f"record {self.id}: its image must be [height, width, 3], not {list(self.image.shape)}")
        if not self.text.strip():
            raise InputError(f"record {self.id}: its text is empty")


@dataclass(frozen=True, eq=False)
class Client:
    """One party. Members and held-out records come from one draw and a coin per record: they are exchangeable."""

    name: str
    records: tuple[
        Record, ...
    ]  # the candidates of an attack: members and held-out records in an order that says nothing
    reference: tuple[Record, ...]  # more of the same distribution, never trained on: thresholds are taken from these
    member: NDArray[np.bool_] = field(repr=False)  # [len(records)]; for training and for audits only

    @property
    def training_records(self) -> tuple[Record, ...]:
        return tuple(record for record, used in zip(self.records, self.member, strict=True) if used)


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a task, records that no client holds, and a test set."""

    instruction: str  # prompt template with one <image>
    clients: tuple[Client, ...]
    novel: tuple[Record, ...]  # out of distribution: the papers' own non-members
    test: tuple[Record, ...]  # for utility, with several references each

    @property
    def records(self) -> dict[str, Record]:
        """Every record by id."""
        everything = [*self.novel, *self.test]
        for client in self.clients:
            everything += [*client.records, *client.reference]
        return {record.id: record for record in everything}

    @property
    def truth(self) -> dict[str, bool]:
        """Record id to membership, for every candidate of every client. Reaches audits, never attacks."""
        return {
            record.id: bool(used)
            for client in self.clients
            for record, used in zip(client.records, client.member, strict=True)
        }


def coin_flips(n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Membership [n] by a fair coin per record, all flipped again until each side has two records (one of n < 4)."""
    while True:
        member = rng.random(n) < 0.5
        if min(member.sum(), n - member.sum()) >= min(2, n // 2):
            return member


def dirichlet_proportions(
    clients: int, classes: int, concentration: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Class proportions [clients, classes] of each client, Dirichlet(concentration) (FedRand, section 4.1)."""
    return rng.dirichlet(np.full(classes, concentration), size=clients)


def check_positive(params: Any, names: Sequence[str]) -> None:
    """Raise ValueError for the first field in `names` that is not positive."""
    for name in names:
        if not getattr(params, name) > 0:
            raise ValueError(f"{name} must be positive, not {getattr(params, name)}")
