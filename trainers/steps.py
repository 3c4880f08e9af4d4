"""Local steps with clipping and noise, for any learner: the minibatch of each, and its entry in the privacy ledger.

A method loops over `client.steps()`. Each step has its own minibatch, noise stream and entry in the ledger; a round's
entry is the sum of its steps'.
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
from fedaudit.trainers.base import Client, Method, Noised, Participation, Schedule, generator
from fedaudit.trainers.messages import MethodMessages
from fedaudit.trainers.protection import Protection

OneStep = TypeVar("OneStep", bound="LocalStep")


class StepSettings(Protocol):
    """Fields of a learner's settings that local steps need."""

    @property
    def batch(self) -> int: ...

    @property
    def local_steps(self) -> int: ...

    @property
    def local_epochs(self) -> int: ...


class Work(ABC, Generic[OneStep]):
    """Clients in a round that take the same number of steps, `due`. Loop over `steps()`."""

    def __init__(self, clients: Sequence[Participation], method: PrivateMethod[Any]) -> None:
        self.clients, self.method = clients, method
        self.due = method.steps(len(clients[0].records))
        self._taken: list[OneStep] = []

    @abstractmethod
    def step(self, index: int) -> OneStep:
        """Step number `index` of the round, from 0."""

    def steps(self, n: int | None = None) -> Iterator[OneStep]:
        """Yield the clients' next `n` steps of this round, by default all `due`. ValueError: more than `due`."""
        for _ in range(self.due if n is None else n):
            if len(self._taken) == self.due:
                raise ValueError(f"a round of this method has {self.due} steps (PrivateMethod.steps), and no more")
            self._taken.append(self.step(len(self._taken)))
            yield self._taken[-1]

    @property
    def noised(self) -> Noised:
        """The record of this round's noise: mechanisms of one step, means and counts over all. ValueError: steps were
        left out, or noised different releases."""
        if not self.method.local and not self.method.shared:
            return Noised()  # the method uses no record
        if len(self._taken) != self.due:
            raise ValueError(f"{len(self._taken)} of the {self.due} steps of a round were taken (PrivateMethod.steps)")
        each = [step.noised for step in self._taken]
        first = each[0]
        if any(set(one.mechanisms) != set(first.mechanisms) for one in each):
            raise ValueError("every step must noise the same releases in the same way")
        return Noised(
            first.mechanisms,
            {name: float(np.mean([one.signals[name] for one in each])) for name in first.signals},
            {name: _sum_pairs(one.clipped[name] for one in each) for name in first.clipped},
            [_turn(client, self.due, self.method) for client in self.clients],
        )


class LocalStep:
    """One step of each of N clients, with their minibatches, noise streams and record of noise."""

    party = "client"

    def __init__(self, work: Work[Any], index: int) -> None:
        self.clients, self.method, self.noised = work.clients, work.method, Noised()
        self._index = index

    def generators(self, purpose: str) -> list[torch.Generator]:
        """A generator per client for this step; each `purpose` has an independent stream."""
        return [client.generator(purpose, self._index) for client in self.clients]

    @functools.cached_property
    def records(self) -> list[list[str]]:
        """The ids of each client's minibatch."""
        return [self.method.minibatch(client, self._index) for client in self.clients]

    def noise(self, mean: Tensor, release: str) -> Tensor:
        """`mean` [N, ...] plus each client's own noise (LDP); unchanged if the server noises this release (GDP)."""
        return mean if release in self.method.central else self.method.protection.noise(mean, release, self)


def _sum_pairs(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    first, second = map(sum, zip(*counts, strict=True))
    return first, second


def _turn(client: Participation, steps: int, method: PrivateMethod[Any]) -> Turn:
    """The entry for the ledger of a client's steps in this round: its numbers of records and steps, and of the epochs
    that begin in them (0 with other samplers)."""
    n, before = len(client.records), len(client.earlier_rounds) * steps
    length = epoch_length(records=n, batch=method.settings.batch)
    epochs = sum(t % length == 0 for t in range(before, before + steps))
    return Turn(
        client=client.client,
        records=n,
        steps=steps,
        shuffles=epochs if method.protection.privacy.sampler == "epochs" else 0,
    )


def steps_of_round(settings: StepSettings, records: int) -> int:
    """Number of steps in a round of a client with so many records, in batches of one size."""
    return settings.local_epochs * epoch_length(records=records, batch=settings.batch) or settings.local_steps


def epoch_batch(client: Participation, size: int, step: int) -> list[int]:
    """Indices of a client's records in its batch of at most `size` in a step, drawn without replacement within an
    epoch. Records that do not fill a last batch are left out of the epoch. `step` counts from the client's first one of
    the run."""
    size = min(size, len(client.records))
    epoch, position = divmod(step, epoch_length(records=len(client.records), batch=size))
    order = torch.randperm(
        len(client.records), generator=generator(client.seed, "client", client.client, "epoch", epoch)
    )
    chosen: list[int] = order[position * size : (position + 1) * size].tolist()
    return chosen


def poisson_batch(client: Participation, size: int, step: int) -> list[int]:
    """Indices of a client's records in a Poisson batch, which may be empty: each is in it with probability `size` /
    n_i, independently. `step` counts within the round."""
    n = len(client.records)
    coins = torch.rand(n, generator=client.generator("batch", step))
    chosen: list[int] = (coins < size / n).nonzero()[:, 0].tolist()
    return chosen


@dataclass(frozen=True)
class PrivateMethod(Method[Client]):
    """Base class of methods whose clients can clip and noise the tensors that they compute from records: those that the
    method names in `local` and `shared`."""

    params: Any  # the method's `Params`
    settings: StepSettings  # the learner's
    protection: Protection = field(default_factory=Protection)

    def protected(self, privacy: Privacy, schedule: Schedule, sizes: Sequence[int]) -> Self:
        """A copy of the method with the noise that keeps a run of `schedule` within `privacy`; `sizes` are the clients'
        numbers of records."""
        # the paper's noise uses S = C / |B| for every kind of clipping; calibrated noise uses the true sensitivity
        how = "record" if privacy.sigma == "nominal" else privacy.clip
        sensitivities = {
            name: sensitivity(clip=how, norm=privacy.clip_norm, batch=self.settings.batch,
                              clients=schedule.per_round if name in self.central else 1)
            for name in (*self.local, *self.shared)
        }  # fmt: skip
        stds = {}
        if math.isfinite(privacy.epsilon) and sensitivities:
            steps = [schedule.rounds * self.steps(n) for n in sizes]
            stds = noise_stds(privacy, sensitivities, steps=steps, batch=self.settings.batch, records=sizes)
        return dataclasses.replace(self, protection=Protection(privacy, stds, self.settings.batch))

    def steps(self, records: int) -> int:
        """Number of local steps in a round of a client with so many records."""
        return steps_of_round(self.settings, records)

    def minibatch(self, client: Participation, step: int) -> list[str]:
        """The ids of the records in a client's minibatch; `step` counts within the round."""
        size = self.settings.batch
        if self.protection.privacy.sampler == "poisson":
            return [client.records[i] for i in poisson_batch(client, size, step)]
        before = len(client.earlier_rounds) * self.steps(len(client.records))
        return [client.records[i] for i in epoch_batch(client, size, before + step)]

    @property
    def messages(self) -> PrivateMessages[Any]:
        return PrivateMessages(self)


KnownSteps = TypeVar("KnownSteps", bound=PrivateMethod[Any])


class PrivateMessages(MethodMessages[KnownSteps]):
    """Reads the uploads of a method of local steps (`trainers.messages`)."""

    def used_records(
        self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int], settings: Any
    ) -> set[str]:
        """Those of a client's records, of any weight, that are in a batch of `rounds`, which are all rounds in which
        the client takes part. If these are few, some records are in none."""
        working = (Participation(client, r, seed, records, None, rounds[:i]) for i, r in enumerate(rounds))
        steps = range(self.method.steps(len(records)))
        return {record for one in working for step in steps for record in self.method.minibatch(one, step)}
