"""Local steps that are clipped and noised, whatever is trained: who is in each, and what the ledger says of a round.

A method loops over `client.steps()`. Each step owns a minibatch, a noise stream and an entry in the ledger; what ran in
a round is the sum of its steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedaudit.privacy.accountant import noise_stds
from fedaudit.privacy.ledger import Turn, epoch_length, sensitivity
from fedaudit.privacy.settings import Privacy
from trainers.base import Client, Method, Noised, Participation, Schedule, generator
from trainers.messages import MethodMessages
from trainers.protection import Protection

OneStep = TypeVar("OneStep", bound="LocalStep")


class StepSettings(Protocol):
    """What a learner's settings say of local steps."""

    @property
    def batch(self) -> int: ...

    @property
    def local_steps(self) -> int: ...

    @property
    def local_epochs(self) -> int: ...


class Work(ABC, Generic[OneStep]):
    """Clients at work in a round, who have the same number of steps to take; `steps` deals them out."""

    def __init__(self, clients: Sequence[Participation], method: PrivateMethod[Any]) -> None:
        self.clients, self.method = clients, method
        self.due = method.steps(len(clients[0].records))
        self._taken: list[OneStep] = []

    @abstractmethod
    def step(self, index: int) -> OneStep:
        """The step of that number, from 0."""

    def steps(self, n: int | None = None) -> Iterator[OneStep]:
        """The clients' next `n` steps of this round, by default all. ValueError: more than the method says."""
        for _ in range(self.due if n is None else n):
            if len(self._taken) == self.due:
                raise ValueError(f"a round of this method has {self.due} steps (PrivateMethod.steps), and no more")
            self._taken.append(self.step(len(self._taken)))
            yield self._taken[-1]

    @property
    def noised(self) -> Noised:
        """What ran in every step of this round. ValueError: steps were left out, or noised different releases."""
        if not self.method.local and not self.method.shared:
            return Noised()  # it looks at no record
        if len(self._taken) != self.due:
            raise ValueError(f"{len(self._taken)} of the {self.due} steps of a round were taken (PrivateMethod.steps)")
        each = [step.noised for step in self._taken]
        first = each[0]
        if any(set(one.mechanisms) != set(first.mechanisms) for one in each):
            raise ValueError("every step must noise the same releases in the same way")
        return Noised(
            first.mechanisms,
            {name: float(np.mean([one.signals[name] for one in each])) for name in first.signals},
            {name: _added(one.clipped[name] for one in each) for name in first.clipped},
            [_turn(client, self.due, self.method) for client in self.clients],
        )


class LocalStep:
    """One step of each of some clients: it owns their minibatches, a noise stream, and an entry in the ledger."""

    party = "client"

    def __init__(self, work: Work[Any], index: int) -> None:
        self.clients, self.method, self.noised = work.clients, work.method, Noised()
        self._index = index

    def generators(self, purpose: str) -> list[torch.Generator]:
        """Each client's own randomness in this step."""
        return [client.generator(purpose, self._index) for client in self.clients]

    @functools.cached_property
    def records(self) -> list[list[str]]:
        """Each client's minibatch."""
        return [self.method.minibatch(client, self._index) for client in self.clients]

    def noise(self, mean: Tensor, release: str) -> Tensor:
        """`mean` [N, ...] with each client's own noise (LDP); as it is where the server noises the clients' average
        (GDP)."""
        return mean if release in self.method.central else self.method.protection.noise(mean, release, self)


def _added(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    some, all_of_them = map(sum, zip(*counts, strict=True))
    return some, all_of_them


def _turn(client: Participation, steps: int, method: PrivateMethod[Any]) -> Turn:
    """The steps of a round; a new shuffle where an epoch begins."""
    n, before = len(client.records), len(client.earlier) * steps
    length = epoch_length(records=n, batch=method.settings.batch)
    begun = sum(t % length == 0 for t in range(before, before + steps))
    return Turn(
        client=client.client,
        records=n,
        steps=steps,
        shuffles=begun if method.protection.privacy.sampler == "epochs" else 0,
    )


def epoch_batch(client: Participation, size: int, step: int) -> list[int]:
    """Fixed-size batches without replacement within an epoch; what does not fill a batch waits for the next shuffle.

    `step` counts from the client's first one of the run.
    """
    size = min(size, len(client.records))
    epoch, place = divmod(step, epoch_length(records=len(client.records), batch=size))
    order = torch.randperm(
        len(client.records), generator=generator(client.seed, "client", client.client, "epoch", epoch)
    )
    chosen: list[int] = order[place * size : (place + 1) * size].tolist()
    return chosen


def poisson_batch(client: Participation, size: int, step: int) -> list[int]:
    """Every record with probability |B| / n_i, by a coin of its own; `step` counts within the round."""
    n = len(client.records)
    coins = torch.rand(n, generator=client.generator("batch", step))
    chosen: list[int] = (coins < size / n).nonzero()[:, 0].tolist()
    return chosen


@dataclass(frozen=True)
class PrivateMethod(Method[Client]):
    """A method whose clients can clip and noise what their records reach: the tensors that it calls `local` and
    `shared`."""

    params: Any  # its own
    settings: StepSettings  # the learner's own
    protection: Protection = field(default_factory=Protection)

    def protected(self, privacy: Privacy, schedule: Schedule, sizes: Sequence[int]) -> Self:
        """The same method with the noise that `privacy` asks for in a run; `sizes` are the clients' numbers of
        records."""
        # the paper's noise takes S = C / |B| however the gradients are clipped; calibrated noise takes what holds
        how = "record" if privacy.sigma == "nominal" else privacy.clip
        far = {
            name: sensitivity(clip=how, norm=privacy.clip_norm, batch=self.settings.batch,
                              clients=schedule.per_round if name in self.central else 1)
            for name in (*self.local, *self.shared)
        }  # fmt: skip
        stds = {}
        if math.isfinite(privacy.epsilon) and far:
            steps = [schedule.rounds * self.steps(n) for n in sizes]
            stds = noise_stds(privacy, far, steps=steps, batch=self.settings.batch, records=sizes)
        return dataclasses.replace(self, protection=Protection(privacy, stds, self.settings.batch))

    def steps(self, records: int) -> int:
        """How many a client with so many records takes in a round."""
        epoch = epoch_length(records=records, batch=self.settings.batch)
        return int(self.settings.local_epochs * epoch or self.settings.local_steps)

    def minibatch(self, client: Participation, step: int) -> list[str]:
        """The records of a client's step in a round."""
        size = self.settings.batch
        if self.protection.privacy.sampler == "poisson":
            return [client.records[i] for i in poisson_batch(client, size, step)]
        before = len(client.earlier) * self.steps(len(client.records))
        return [client.records[i] for i in epoch_batch(client, size, before + step)]

    @property
    def messages(self) -> PrivateMessages[Any]:
        return PrivateMessages(self)


KnownSteps = TypeVar("KnownSteps", bound=PrivateMethod[Any])


class PrivateMessages(MethodMessages[KnownSteps]):
    """Of a method of local steps (`trainers.messages`)."""

    def used_records(self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int]) -> set[str]:
        """Few rounds leave some of a client's training records out of every batch."""
        working = (Participation(client, r, seed, records, None, rounds[:i]) for i, r in enumerate(rounds))
        steps = range(self.method.steps(len(records)))
        return {record for one in working for step in steps for record in self.method.minibatch(one, step)}
