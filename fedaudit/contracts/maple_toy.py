"""Dual prompts on the tiny random CLIP of `prompt_toy`, whose pictures are random."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace

import torch

from fedaudit.backbones.clip import ImageFeatures
from fedaudit.contracts import prompt_toy
from fedaudit.trainers.maple import Learner, Settings

SETTINGS = Settings(prompt_length=4, batch=4, local_epochs=0, rate=0.1)


@functools.cache
def pictures(sizes: tuple[int, ...], test: int = 12) -> torch.Tensor:
    """Random prepared images [n, 3, H, W] of the records of a federation."""
    g = torch.Generator().manual_seed(5)
    height, width = prompt_toy.clip().model.visual.image_size
    return torch.randn(len(prompt_toy.federation(sizes, test=test).ids), 3, height, width, generator=g)


def learner(settings: Settings = SETTINGS, sizes: tuple[int, ...] = prompt_toy.SIZES, *, test: int = 12) -> Learner:
    """The learner of a federation with clients of these sizes."""
    world = prompt_toy.federation(sizes, test=test)
    row = {record: i for i, record in enumerate(world.ids)}
    with torch.no_grad():
        tokens = world.clip.vision.tokens(pictures(sizes, test))
    soft = world.learner()
    cut = ImageFeatures(row, tokens[:, 0], list(tokens))
    return Learner(world.clip, soft.features, cut, world.labels, world.classes, settings)


def disguised(tokens: ImageFeatures, records: Collection[str]) -> ImageFeatures:
    """Other pictures for some records."""
    rows = {tokens._row[record] for record in records}
    return replace(tokens, _patches=[-t if i in rows else t for i, t in enumerate(tokens._patches)])  # type: ignore
