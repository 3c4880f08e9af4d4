"""Clipping and noise as methods call them: two verbs, and a record of every mechanism that ran.

Local or central privacy is only where `noise` is called: on what a client computed in a step, or on what the server
averaged. Epsilon is computed elsewhere, from the record (`fedaudit.privacy.accountant`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedaudit.privacy.clipping import add_noise, clipped_mean, count_longer
from fedaudit.privacy.ledger import Mechanism, sensitivity
from fedaudit.privacy.settings import Privacy
from trainers.base import Noised


class Party(Protocol):
    """Who adds noise: clients in one step, each for itself, or the server in one round."""

    @property
    def party(self) -> str: ...  # "client" or "server"
    @property
    def noised(self) -> Noised: ...

    def generators(self, purpose: str) -> Sequence[torch.Generator]: ...


@dataclass(frozen=True)
class Protection:
    """How gradients are clipped, and the standard deviation of the noise on each release."""

    privacy: Privacy = field(default_factory=lambda: Privacy(epsilon=math.inf))
    stds: Mapping[str, float] = field(default_factory=dict)
    batch: int = 8  # the public |B|

    @property
    def private(self) -> bool:
        return math.isfinite(self.privacy.epsilon)

    @property
    def per_record(self) -> bool:
        """Whether gradients of single records are needed."""
        return self.private and self.privacy.clip == "record"

    def clip(self, gradients: Tensor, weights: Tensor, release: str, party: Party) -> Tensor:
        """The mean [N, ...] of clipped gradients [R, N, ...]; without privacy, and where the mean is clipped, R = 1 is
        the batch's mean.

        The party's record counts how many of them were longer than C, over all calls for this release.
        """
        if not self.private:
            return gradients[0]
        how, norm = self.privacy.clip, self.privacy.clip_norm
        counted = weights if self.per_record else weights.amax(0, keepdim=True)  # an empty batch has no mean
        cut, asked = count_longer(gradients, counted, norm=norm)
        before = party.noised.clipped.get(release, (0, 0))
        party.noised.clipped[release] = before[0] + cut, before[1] + asked
        return clipped_mean(gradients, weights if self.per_record else None, how=how, norm=norm, batch=self.batch)

    def noise(self, mean: Tensor, release: str, party: Party, *, averaged: int = 1) -> Tensor:
        """`mean` [N, ...], an average over `averaged` clients, with Gaussian noise; the party's record says what
        ran.

        ValueError: the party has noised this release before, in the same step. Two releases would count as one.
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
