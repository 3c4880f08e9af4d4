"""A small federation of prompts on a tiny random CLIP."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.clip import FrozenCLIP, ImageFeatures, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.contracts import tiny_clip
from fedaudit.trainers.base import Participation
from fedaudit.trainers.prompts import Learner, Settings

NAMES = ("cat", "the big mountain lion", "digit seven", "dog", "small blue letter")
SIZES = (10, 6, 3)  # records of the clients: two batches of four in an epoch, one, and fewer than a batch
PATCHES = 5
SETTINGS = Settings(prompt_length=4, batch=4, global_rate=0.1, local_rate=0.06)


@dataclass(frozen=True)
class TinyFederation:
    """All that a bench holds, by record id: [n, E] and [n, M, E] features, labels, and each client's records."""

    clip: Any
    ids: tuple[str, ...]
    features: Tensor
    patches: Tensor
    labels: dict[str, int]
    training: tuple[tuple[str, ...], ...]
    test: tuple[str, ...]
    classes: tuple[str, ...] = NAMES
    left_out: frozenset[str] = frozenset()  # of the training records those that weigh 0

    def learner(self, settings: Settings = SETTINGS) -> Learner:
        row = {record: i for i, record in enumerate(self.ids)}
        both = torch.cat([self.features[:, None], self.patches], dim=1)
        return Learner(self.clip, ImageFeatures(row, self.features, list(both)), self.labels, self.classes, settings)

    def clients(
        self, learner: Learner, *, seed: int = 0, r: int = 0, earlier: Sequence[int] = ()
    ) -> list[Participation]:
        """All clients in one round."""
        return [Participation(k, r, seed, ids, learner, earlier, self.left_out) for k, ids in enumerate(self.training)]


@functools.cache
def clip(device: str = "cpu") -> FrozenCLIP:
    """A text encoder of two layers, 16 wide."""
    text = {"context_length": 16, "width": 16, "heads": 2, "layers": 2}
    with tempfile.TemporaryDirectory() as folder:
        saved = tiny_clip.save(Path(folder) / "tiny", tiny_clip.config(embed_dim=12, text=text))
        loaded = load(resolve_clip(str(saved), ""), device)
    with torch.no_grad():
        loaded.model.positional_embedding.mul_(
            5
        )  # a flat landscape, in which rounding does not grow from round to round
    return loaded


@functools.cache
def federation(sizes: tuple[int, ...] = SIZES, *, test: int = 12) -> TinyFederation:
    """Clients with random pictures of all classes; the patches of a picture look like it."""
    training = tuple(tuple(f"{k}-{i}" for i in range(n)) for k, n in enumerate(sizes))
    tests = tuple(f"test-{i}" for i in range(test))
    ids = (*(record for mine in training for record in mine), *tests)
    g = torch.Generator().manual_seed(sum(sizes))
    features = F.normalize(torch.randn(len(ids), clip().embed, generator=g), dim=-1)
    patches = F.normalize(features[:, None] + 0.3 * torch.randn(len(ids), PATCHES, clip().embed, generator=g), dim=-1)
    labels = dict(zip(ids, torch.randint(len(NAMES), (len(ids),), generator=g).tolist(), strict=True))
    return TinyFederation(clip(), ids, features, patches, labels, training, tests)
