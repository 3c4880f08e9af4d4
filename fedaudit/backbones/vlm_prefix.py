"""Prefix caching: the leading tokens that all prompts share are computed once per model instead of once per record."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from fedaudit.backbones.vlm_batches import Encoded


def shared(records: Collection[Encoded]) -> int:
    """The number of leading tokens that all records share before their image and text. 0 for models with further
    inputs: positions or types may not continue from a prefix."""
    if not records or any(record.extra for record in records):
        return 0
    first = next(iter(records))
    length = min(min(record.image.start, record.prompt) for record in records)
    same = torch.stack([record.ids[:length] == first.ids[:length] for record in records]).all(dim=0)
    return int(same.cumprod(dim=0).sum())


class Prefix:
    """Keys and values of the shared leading tokens, for one state of a model."""

    def __init__(self, model: Any, embeddings: Tensor) -> None:
        """Run the model on the tokens' `embeddings` [1, P, width]. ValueError: its cache is not keys and values."""
        out = model(inputs_embeds=embeddings, use_cache=True)
        layers = getattr(out.past_key_values, "layers", ())
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            raise ValueError("the model's cache is not keys and values of every token")
        self._model, self._length, self._logits = model, embeddings.shape[1], out.logits
        self._kept = [(layer.keys, layer.values) for layer in layers]

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits [B, T, V] of a batch of whole rows, padded on the right; each must begin with the shared tokens, which
        is not checked."""
        rows = len(inputs["inputs_embeds"])
        past = DynamicCache([tuple(kept.expand(rows, -1, -1, -1) for kept in pair) for pair in self._kept])
        rest = self._model(
            inputs_embeds=inputs["inputs_embeds"][:, self._length :],
            attention_mask=inputs["attention_mask"],
            past_key_values=past,
            use_cache=True,
        )
        return torch.cat([self._logits.expand(rows, -1, -1), rest.logits], dim=1)
