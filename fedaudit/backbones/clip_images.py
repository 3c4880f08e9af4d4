"""Image features of a frozen CLIP: computed once per picture, stored on disk under a hash of its content."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.vlm_batches import Stored
from fedaudit.machinery.progress import ENCODING, Stage
from fedaudit.machinery.store import Folder, key_of

Argument = TypeVar("Argument")
Result = TypeVar("Result")

BATCH = 16  # pictures per forward pass, always: other pictures in the batch must not change a feature
SHARD = 64_000_000  # bytes of features per file at most
PICTURES = 32 * BATCH  # per file at most: an interrupted run computes no more than these again
IN_MEMORY = 1_000_000_000  # bytes of patch features; more are read from disk when they are asked for


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of records, looked up by record id."""

    _row: Mapping[str, int]
    _features: Tensor = field(repr=False)  # [pictures, E]
    _patches: Sequence[Tensor | Stored] | None = field(repr=False)  # by picture, [1 + M, E] with the feature first

    def rows(self, ids: Sequence[str]) -> Tensor:
        """Features [n, E] of records by id: L2-normalised from `encode`, class tokens from `FrozenCLIP.tokens`."""
        return self._features[[self._row[i] for i in ids]]

    def patches(self, ids: Sequence[str]) -> Tensor:
        """Patch features [n, M, E]: L2-normalised from `encode`, patch tokens from `FrozenCLIP.tokens`. ValueError:
        there are none."""
        if self._patches is None:
            raise ValueError("patches were not encoded; call encode with patches=True")
        stored = [self._patches[self._row[i]] for i in ids]
        return torch.stack([p.read()[1:] if isinstance(p, Stored) else p[1:] for p in stored]).to(self._features.device)


def encode(
    pictures: Mapping[str, Any],
    see: Callable[[Sequence[Any]], Tensor],
    model: Mapping[str, Any],
    cache: Folder,
    *,
    say: Callable[[str], None],
    stage: Stage,
    threads: int = 1,
    sample: bool = False,
) -> dict[str, Stored]:
    """Where the features [rows, E] of each picture are stored, {SHA-256 of its content: place}; missing ones are
    computed first.

    see: prepares BATCH pictures and computes their features, [BATCH, rows, E]. model: everything but the picture that
    decides them. threads: how many batches are seen at once, each by one thread, so that no feature depends on it.
    sample: of the missing pictures only one batch is computed, and the first of it stands for the others.
    """
    prefix = f"clip-{key_of(model)}-"
    stored: dict[str, Stored] = {}
    for name in cache.names():
        if name.startswith(prefix) and cache.usable(name, say):
            stored |= _listed(cache, name)
    missing = [digest for digest in pictures if digest not in stored]
    if missing:
        parts = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
        with ThreadPoolExecutor(threads) as pool, stage(ENCODING, len(parts), "batch") as advance:
            parts = parts[:1] if sample else parts
            batches = _ahead(
                pool, lambda part: see([pictures[d] for d in (part * BATCH)[:BATCH]]).cpu(), parts, 2 * threads
            )
            shard: dict[str, Tensor] = {}
            for i, (part, features) in enumerate(zip(parts, batches, strict=True), start=1):
                shard |= dict(zip(part, features, strict=False))  # what fills up the last batch is left out
                if len(shard) + BATCH > min(PICTURES, SHARD // features[0].nbytes) or i == len(parts):
                    name = f"{prefix}{key_of({'pictures': list(shard)})}.safetensors"
                    cache.write_tensors(name, shard)
                    stored |= _listed(cache, name)
                    shard = {}
                advance()
        if sample:
            stored = dict.fromkeys(missing, stored[missing[0]]) | stored
    return {digest: stored[digest] for digest in pictures}


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[Argument], Result], jobs: Iterable[Argument], most: int
) -> Iterator[Result]:
    """Results of the jobs in their order; the pool has at most `most` unfinished or waiting ones at a time."""
    waiting = iter(jobs)
    futures = deque(pool.submit(function, job) for job in islice(waiting, most))
    while futures:
        result = futures.popleft().result()
        futures.extend(pool.submit(function, job) for job in islice(waiting, 1))
        yield result


def gather_features(row: Mapping[str, int], stored: Sequence[Stored], empty: Tensor, *, patches: bool) -> ImageFeatures:
    """Features of records, read from files. row: record id to index in `stored`. empty: a tensor [0, E] of the wanted
    type and device. patches: whether to keep patch features, in memory if they fit (`IN_MEMORY`)."""
    from safetensors import safe_open

    features: list[Tensor] = [empty] * len(stored)
    size = 0
    by_file = sorted(range(len(stored)), key=lambda i: stored[i].file)
    for file, same in groupby(by_file, key=lambda i: stored[i].file):
        with safe_open(file, framework="pt") as opened:
            for i in same:
                rows = opened.get_slice(stored[i].key)
                features[i] = rows[:1]
                size += 4 * math.prod(rows.get_shape())
    kept = [s.read() for s in stored] if patches and size < IN_MEMORY else stored
    return ImageFeatures(row, torch.cat(features).to(empty) if features else empty, kept if patches else None)


def _listed(cache: Folder, name: str) -> dict[str, Stored]:
    from safetensors import safe_open

    file = (cache.path / name).absolute()
    with safe_open(file, framework="pt") as opened:
        return {key: Stored(file, key) for key in opened.keys()}  # noqa: SIM118, no mapping


def see(model: Any, pixels: Tensor, *, patches: bool) -> Tensor:
    """L2-normalised features [B, 1, E] of preprocessed images [B, 3, H, W], or with `patches` [B, 1 + M, E].

    A ViT's patches are its patch tokens after the last norm, projected like the class token. A ResNet's are the outputs
    of its attention pool at every position; its feature is the output at their mean. FedOTP takes both so (Li et al.
    2024).
    """
    if not patches:
        return F.normalize(model.encode_image(pixels), dim=-1)[:, None]
    visual = model.visual
    pool = getattr(visual, "attnpool", None)
    shape = "NCHW" if pool is not None else "NLC"
    intermediates = visual.forward_intermediates(pixels, indices=1, normalize_intermediates=True, output_fmt=shape)
    last = intermediates["image_intermediates"][-1]
    tokens = _pooled(pool, last) if pool is not None else (last @ visual.proj if visual.proj is not None else last)
    return F.normalize(torch.cat([intermediates["image_features"][:, None], tokens], dim=1), dim=-1)


def _pooled(pool: Any, x: Tensor) -> Tensor:
    """Outputs [B, H W, E] of an attention pool at every position of a feature map [B, channels, H, W]."""
    x = x.flatten(2).mT
    x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + pool.positional_embedding
    q, k, v = (
        part(x).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2) for part in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    output: Tensor = pool.c_proj(F.scaled_dot_product_attention(q[:, :, 1:], k, v).transpose(1, 2).flatten(2))
    return output
