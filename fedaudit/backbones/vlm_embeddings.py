"""What a frozen model makes of a prompt and a picture before its language model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fedaudit.backbones.vlm_batches import POSITIONS, EmbeddedPrompt, extended
from fedaudit.backbones.vlm_loading import Opened
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.base import IMAGE, Record


class Reader(Opened):
    """A model whose own forward pass is stopped where its language model is called, with the image embeddings in
    place."""

    @torch.no_grad()
    def see(self, records: Sequence[Record]) -> list[EmbeddedPrompt]:
        """Prompts and pictures of a few records after the frozen parts, in one vision pass."""
        given = self._processed(records)
        for record, mask in zip(records, given["attention_mask"], strict=True):
            self._check_length(record, int(mask.sum()))  # before the vision pass
        embeddings, positions = self._reached(given)
        found = []
        for i, mask in enumerate(given["attention_mask"].bool().cpu()):
            ids = given["input_ids"][i].cpu()[mask]
            extra = {name: rows[i].cpu()[mask] for name, rows in self._types(given).items()}
            if positions is not None and positions.ndim == 3:  # one that is arange comes about by itself
                extra[POSITIONS] = positions[:, i].cpu()[:, mask].clone()
            if not (ids == self.image_token).any():
                raise InputError(f"{records[i].called}: the model's processor puts no image tokens into its prompt")
            features = embeddings[i].cpu()[mask][ids == self.image_token].clone()
            found.append(EmbeddedPrompt(ids, features, extra))
        return found

    @torch.no_grad()
    def whole(self, record: Record, ids: Tensor) -> Tensor:
        """Logits [T, V] of prompt, picture and text by the whole model: what the cached embeddings must reproduce."""
        given = self._processed([record])
        more = len(ids) - given["input_ids"].shape[1]
        types = {n: extended(n, rows.cpu(), more, self.text_type) for n, rows in self._types(given).items()}
        given |= types | {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        logits: Tensor = self.model(**{name: value.to(self.device) for name, value in given.items()}).logits[0]
        return logits

    def _processed(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """What the processor makes of prompts and pictures: the model's inputs, prompts with their image tokens."""
        from PIL import Image

        given = self.processor(
            images=[[Image.fromarray(record.image)] for record in records],
            text=[record.prompt.replace(IMAGE, self._placeholder) for record in records],
            return_tensors="pt",
            padding=True,
        ).to(self.device, self.dtype)
        return {name: value for name, value in given.items() if name != "labels"}

    def _reached(self, given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Embeddings [B, T, width] and position ids that the language model is called with; it is not run."""

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
            raise _Reached(kwargs)

        handle = self.language_model().register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(**given)
        except _Reached as reached:
            embeddings, positions = reached.inputs.get("inputs_embeds"), reached.inputs.get(POSITIONS)
        else:
            raise self._uncacheable("its language model is not called")
        finally:
            handle.remove()
        if embeddings is None:
            raise self._uncacheable("its language model is called with token ids")
        return embeddings, positions

    def _types(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Further inputs [B, T] that the model takes and the processor gives, such as token types."""
        shape, known = given["input_ids"].shape, ("input_ids", "attention_mask")
        return {n: t for n, t in given.items() if n in self._forward and n not in known and t.shape == shape}

    def _uncacheable(self, reason: str) -> InputError:
        return self._refused(
            f"this model reads images in a way that cannot be cached as embeddings ({reason}); give --backbone-code"
        )


class _Reached(Exception):
    """The language model is about to run on these inputs."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = inputs
