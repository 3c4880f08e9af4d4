"""The image encoder of a frozen CLIP as a function of learned visual prompts, for many clients and pictures at once.

No prompt changes the input of the first layer: class token and patch embeddings with their positions. It is computed
once per picture. The prompts of the first layer come behind these tokens; those of each further layer replace the
previous layer's outputs for prompts (MaPLe, Khattak et al. 2023, eqs. 4 and 5).
"""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.clip_text import after_attention, heads
from fedaudit.machinery.errors import InputError

KEPT = 12  # numbers per token and unit of width that a layer keeps for a backward pass, measured


class VisionTower:
    """The weights of an open_clip vision transformer. InputError: the model's image encoder is something else."""

    def __init__(self, model: Any, name: str) -> None:
        from open_clip.transformer import VisionTransformer

        visual = model.visual
        if not isinstance(visual, VisionTransformer) or visual.attn_pool is not None:
            kind = "one with attention pooling" if hasattr(visual, "transformer") else type(visual).__name__
            raise InputError(
                f"--backbone {name}: its image encoder ({kind}) has no place for visual prompts; "
                "take a vision transformer such as ViT-B-16"
            )
        self._visual = visual
        self.blocks = list(visual.transformer.resblocks)
        self.width = int(visual.positional_embedding.shape[1])  # of a token

    @property
    def token_bytes(self) -> int:
        """Bytes that a token holds for a backward pass, in all layers."""
        return 4 * KEPT * self.width * len(self.blocks)

    def tokens(self, pixels: Tensor) -> Tensor:
        """Input of the first layer for preprocessed images [n, 3, H, W]: [n, 1 + M, d], the class token first."""
        embedded: Tensor = self._visual._embeds(pixels)
        return embedded

    def __call__(self, tokens: Tensor, prompts: Tensor | None = None) -> Tensor:
        """L2-normalised features [N, B, E] of B pictures for each of N clients, from tokens [N, B, 1 + M, d] (see
        `tokens`), with the clients' b prompts in each of the first D layers, [N, D, b, d]. Differentiable once in the
        prompts."""
        x = tokens.flatten(0, 1)
        length, layers = x.shape[1], [] if prompts is None else list(prompts.unbind(1))
        for block, below in itertools.zip_longest(self.blocks, layers):
            if below is not None:
                placed = self._visual.ln_pre(below) if below is layers[0] else below
                x = torch.cat([x[:, :length], placed.repeat_interleave(tokens.shape[1], dim=0)], dim=1)
            q, k, v = heads(block, block.ln_1(x), 0, 3)
            if block is self.blocks[-1]:  # outputs for prompts are not needed
                q, x = q[:, :, :length], x[:, :length]
            x = after_attention(block, x, F.scaled_dot_product_attention(q, k, v, scale=1.0))  # queries come scaled
        pooled, _ = self._visual._pool(x)
        projection = self._visual.proj
        features = pooled if projection is None else pooled @ projection
        return F.normalize(features, dim=-1).unflatten(0, tokens.shape[:2])
