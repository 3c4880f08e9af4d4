"""Embeddings of prompts and pictures up to the input of a frozen model's language model."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fedaudit.backbones.vlm_batches import POSITIONS, EmbeddedPrompt, extend_input
from fedaudit.backbones.vlm_loading import Opened
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.base import IMAGE, Record


class Reader(Opened):
    """A model whose forward pass can be stopped at the call of its language model, with image embeddings in place."""

    @torch.no_grad()
    def see(self, records: Sequence[Record]) -> list[EmbeddedPrompt]:
        """The embedded prompts of a few records, in one vision pass. InputError: one cannot be used."""
        inputs = self._processed(records)
        for record, mask in zip(records, inputs["attention_mask"], strict=True):
            self._check_length(record, int(mask.sum()) + len(self._text(record)) + 1)  # before the vision pass
        inputs = {name: values.to(self.device) for name, values in inputs.items()}
        embeddings, positions = self._reached(inputs)
        prompts = []
        for i, mask in enumerate(inputs["attention_mask"].bool().cpu()):
            ids = inputs["input_ids"][i].cpu()[mask]
            extra = {name: rows[i].cpu()[mask] for name, rows in self._types(inputs).items()}
            if positions is not None and positions.ndim == 3:  # consecutive ones are the model's default
                extra[POSITIONS] = positions[:, i].cpu()[:, mask].clone()
            self._require_image(records[i], ids)
            features = embeddings[i].cpu()[mask][ids == self.image_token].clone()
            prompts.append(EmbeddedPrompt(ids, features, extra))
        return prompts

    def _require_image(self, record: Record, ids: Tensor) -> None:
        if not (ids == self.image_token).any():
            raise InputError(f"{record.called}: the model's processor puts no image tokens into its prompt")

    @torch.no_grad()
    def whole(self, record: Record, ids: Tensor) -> Tensor:
        """Logits [T, V] of prompt, picture and text by the whole model, for comparison with cached embeddings."""
        inputs = self._processed([record])
        further = len(ids) - inputs["input_ids"].shape[1]
        types = {n: extend_input(n, rows.cpu(), further, self.text_type) for n, rows in self._types(inputs).items()}
        inputs |= types | {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        logits: Tensor = self.model(**{name: value.to(self.device) for name, value in inputs.items()}).logits[0]
        return logits

    def _processed(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """The model's inputs for these records' prompts and pictures, {name: tensor [B, ..]} on the CPU, made by its
        processor; prompts have their image tokens."""
        from PIL import Image

        inputs = self.processor(
            images=[[Image.fromarray(record.image)] for record in records],
            text=[record.prompt.replace(IMAGE, self._placeholder) for record in records],
            return_tensors="pt",
            padding=True,
        ).to("cpu", self.dtype)
        return {name: value for name, value in inputs.items() if name != "labels"}

    def _reached(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Embeddings [B, T, width] and position ids (or None) with which the model calls its language model.
        InputError: it is not called, or called with token ids."""

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
            raise _Reached(kwargs)

        handle = self.language_model().register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(**inputs)
        except _Reached as reached:
            embeddings, positions = reached.inputs.get("inputs_embeds"), reached.inputs.get(POSITIONS)
        else:
            raise self._uncacheable("its language model is not called")
        finally:
            handle.remove()
        if embeddings is None:
            raise self._uncacheable("its language model is called with token ids")
        return embeddings, positions

    def _types(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Further inputs [B, T] of the model that the processor makes, such as token types."""
        shape, others = inputs["input_ids"].shape, ("input_ids", "attention_mask")
        return {n: t for n, t in inputs.items() if n in self._forward and n not in others and t.shape == shape}

    def _uncacheable(self, reason: str) -> InputError:
        return self._refused(
            f"this model reads images in a way that cannot be cached as embeddings ({reason}); give --backbone-code"
        )


class _Reached(Exception):
    """Raised when the language model is about to be called, with its keyword arguments as `inputs`."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = inputs
