"""Clipping and noise as methods call them (`clip` and `noise`), with a record of every mechanism that ran.

Privacy is local if a client calls `noise` in a step, and central if the server calls it on an average.
`fedaudit.privacy.accountant` computes epsilon from the record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedaudit.privacy.clipping import add_noise, clipped_mean, count_longer
from fedaudit.privacy.ledger import Mechanism, sensitivity
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Noised


class Party(Protocol):
    """Adds noise: clients in one step, each for itself (`LocalStep`), or the server in one round (`Site`)."""

    @property
    def party(self) -> str: ...  # "client" or "server"
    @property
    def noised(self) -> Noised: ...

    def generators(self, purpose: str) -> Sequence[torch.Generator]: ...


@dataclass(frozen=True)
class Protection:
    """How gradients are clipped, and the standard deviation of the noise on each release. A release is a noised tensor:
    a name of `Method.local` or `shared`."""

    privacy: Privacy = field(default_factory=lambda: Privacy(epsilon=math.inf))
    stds: Mapping[str, float] = field(default_factory=dict)  # by release
    batch: int = 8  # the public |B|

    @property
    def private(self) -> bool:
        """Whether epsilon is finite. Without privacy nothing is clipped or noised."""
        return math.isfinite(self.privacy.epsilon)

    @property
    def per_record(self) -> bool:
        """Whether each record's gradient is clipped, so that gradients of single records are needed."""
        return self.private and self.privacy.clip == "record"

    def clip(self, gradients: Tensor, weights: Tensor, release: str, party: Party) -> Tensor:
        """The mean [N, ...] of clipped gradients [R, N, ...], R records of N clients, over the public |B|; records
        whose `weights` [R, N] are 0 add nothing. If not `per_record`, R = 1: the batch's mean, which is clipped with
        privacy. Without privacy it is returned unchanged.

        `party.noised` counts the gradients longer than C over all calls for this release.
        """
        if not self.private:
            return gradients[0]
        how, norm = self.privacy.clip, self.privacy.clip_norm
        counted = weights if self.per_record else weights.amax(0, keepdim=True)  # an empty batch has no mean
        cut, total = count_longer(gradients, counted, norm=norm)
        before = party.noised.clipped.get(release, (0, 0))
        party.noised.clipped[release] = before[0] + cut, before[1] + total
        return clipped_mean(gradients, weights if self.per_record else None, how=how, norm=norm, batch=self.batch)

    def noise(self, mean: Tensor, release: str, party: Party, *, averaged: int = 1) -> Tensor:
        """`mean` [N, ...], an average over `averaged` clients, plus Gaussian noise, which is recorded in
        `party.noised`. Without privacy it is returned unchanged.

        ValueError: the party already noised this release in this step. The two would be accounted as one.
        """
        if not self.private:
            return mean
        if any(m.release == release for m in party.noised.mechanisms):
            raise ValueError(f"{release} is noised twice in one step; take another step (client.steps) or another name")
        how, norm = self.privacy.clip, self.privacy.clip_norm
        mechanism = Mechanism(
            release=release,
            party=party.party,
            clip=how,
            clip_norm=norm,
            sensitivity=sensitivity(clip=how, norm=norm, batch=self.batch, clients=averaged),
            std=self.stds[release],
            dimension=mean[0].numel(),
            sampler=self.privacy.sampler,
            batch=self.batch,
        )
        party.noised.mechanisms.append(mechanism)
        party.noised.signals[release] = float(mean.flatten(1).norm(dim=1).mean())
        return add_noise(mean, mechanism.std, party.generators(f"noise on {release}"))
