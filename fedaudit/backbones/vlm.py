"""A frozen vision-language model and records as it reads them; image embeddings are computed once and cached.

Works for the image-text-to-text models of transformers that put image embeddings at placeholder tokens (the LLaVA family). The embedded model is
`fedaudit.backbones.EMBEDDED`; its recipe is `pretrain_vlm`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedaudit.errors import InputError
from fedaudit.store import Folder
from fedaudit.tasks.base import Record

IGNORE = -100  # label of a token that is no target
CHUNK = 64  # records per forward pass; fixed, so that the numbers do not depend on what is computed beside them


@dataclass(frozen=True, eq=False)
class Encoded:
    """One record as the language model reads it: instruction with image tokens, then text and end of sequence."""

    id: str
    ids: Tensor  # [T]
    prompt: int  # number of tokens before the text
    image: slice  # positions of the image tokens
    features: Tensor  # [P, width], what the frozen vision tower and connector put at the image tokens

    @property
    def spans(self) -> dict[str, slice]:
        """Rows of the token signals (row i predicts token i + 1) that belong to image, instruction and caption.

        The instruction is what stands behind the image: the words before it are the same for everybody and see no image. A part of
        n tokens gives n - 1 rows, as in Li et al. (2024); the caption part starts at the last token of the prompt, so that every
        token of the caption is predicted once.
        """
        return {
            "image": slice(self.image.start, self.image.stop - 1),
            "instruction": slice(self.image.stop, self.prompt - 1),
            "caption": slice(self.prompt - 1, len(self.ids) - 1),
        }


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded records: embeddings [B, T, width], mask [B, T], labels [B, T] (IGNORE outside the text)."""

    embeddings: Tensor
    mask: Tensor
    labels: Tensor


class FrozenVLM:
    """A pre-trained model that nobody trains; adapters are put on it elsewhere."""

    def __init__(self, path: Path, device: str = "cpu") -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()  # what it would warn of is checked below
        self.path, self.device = path, torch.device(device)
        model, report = AutoModelForImageTextToText.from_pretrained(
            path, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
        absent = sorted(set(report["missing_keys"]) | set(report["mismatched_keys"]))
        if absent:
            raise ValueError(
                f"its weights lack {len(absent)} of the tensors that config.json describes, {absent[0]} first"
            )
        self.model = model.to(self.device).eval()
        self.model.requires_grad_(False)
        self.processor = AutoProcessor.from_pretrained(path, local_files_only=True)
        self.tokenizer = self.processor.tokenizer
        self.image_token: int = self.model.config.image_token_id

    def encode(
        self, records: Sequence[Record], instruction: str, cache: Folder, *, say: Callable[[str], None]
    ) -> dict[str, Encoded]:
        """Records by id; image embeddings come from `cache`, which is filled first where it lacks them. `say` names damage."""
        name = f"features-{self._content(records, instruction)}.safetensors"
        if not cache.usable(name, say):
            prompts, features = self._run_vision(records, instruction)
            found = {r.id: f for r, f in zip(records, features, strict=True)}
            cache.write_tensors(name, found | {f"prompt/{r.id}": p for r, p in zip(records, prompts, strict=True)})
        stored = cache.read_tensors(name)
        return {r.id: self._encoded(r, stored[f"prompt/{r.id}"], stored[r.id]) for r in records}

    def _encoded(self, record: Record, prompt: Tensor, features: Tensor) -> Encoded:
        text = self.tokenizer(" " + record.text, add_special_tokens=False, return_tensors="pt").input_ids[0]
        end = torch.tensor([self.tokenizer.eos_token_id])
        places = torch.nonzero(prompt == self.image_token).flatten()
        image = slice(int(places[0]), int(places[-1]) + 1)
        return Encoded(record.id, torch.cat([prompt, text, end]), len(prompt), image, features)

    @torch.no_grad()
    def _run_vision(self, records: Sequence[Record], instruction: str) -> tuple[list[Tensor], list[Tensor]]:
        """Prompt ids [T_p] and image embeddings [P, width] of every record."""
        prompts: list[Tensor] = []
        features: list[Tensor] = []
        for start in range(0, len(records), CHUNK):
            part = records[start : start + CHUNK]
            inputs = self.processor(
                images=[record.image for record in part],
                text=[instruction] * len(part),
                return_tensors="pt",
                padding=True,
            )
            prompts += [
                ids[mask.bool()] for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
            ]
            out = self.model.get_image_features(inputs["pixel_values"].to(self.device))
            found = getattr(out, "pooler_output", out)
            features += [f.float().cpu().contiguous() for f in found]
        return prompts, features

    def _content(self, records: Sequence[Record], instruction: str) -> str:
        digest = hashlib.sha256(instruction.encode())
        for weights in sorted(self.path.glob("*.safetensors")):
            digest.update(hashlib.sha256(weights.read_bytes()).digest())
        for record in records:
            digest.update(
                record.id.encode() + str(record.image.shape).encode() + np.ascontiguousarray(record.image).tobytes()
            )
        return digest.hexdigest()[:16]

    def embed(self, ids: Tensor, features: Iterable[Tensor]) -> Tensor:
        """Input embeddings [B, T, width] of ids [B, T] with the image embeddings in place."""
        embeddings = self.model.get_input_embeddings()(ids.to(self.device))
        at = (ids == self.image_token).to(self.device)
        embeddings[at] = torch.cat(list(features)).to(self.device, embeddings.dtype)
        return embeddings

    def batch(self, records: Sequence[Encoded]) -> Batch:
        """Records padded on the right; the causal mask keeps padding out of every real position."""
        ids = pad_sequence([r.ids for r in records], batch_first=True, padding_value=self.tokenizer.pad_token_id)
        lengths = torch.tensor([len(r.ids) for r in records])[:, None]
        position = torch.arange(ids.shape[1])[None]
        prompts = torch.tensor([r.prompt for r in records])[:, None]
        labels = torch.where((position >= prompts) & (position < lengths), ids, IGNORE)
        mask = (position < lengths).long()
        embeddings = self.embed(ids, (r.features for r in records))
        return Batch(embeddings, mask.to(self.device), labels.to(self.device))

    @torch.no_grad()
    def generate(self, model: Any, records: Sequence[Encoded], max_new_tokens: int) -> list[str]:
        """Greedy answers of `model` (this one with adapters) to the records' instructions."""
        answers: list[str] = []
        for start in range(0, len(records), CHUNK):
            part = records[start : start + CHUNK]
            longest = max(r.prompt for r in part)
            pads = [longest - r.prompt for r in part]  # on the left, so that all answers start at one position
            pad = self.tokenizer.pad_token_id
            ids = torch.stack(
                [torch.cat([r.ids.new_full((n,), pad), r.ids[: r.prompt]]) for r, n in zip(part, pads, strict=True)]
            )
            mask = (torch.arange(longest)[None] >= torch.tensor(pads)[:, None]).long().to(self.device)
            out = model.generate(
                inputs_embeds=self.embed(ids, (r.features for r in part)),
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
            answers += self.tokenizer.batch_decode(out, skip_special_tokens=True)
        return answers


def load(path: Path, device: str = "cpu") -> FrozenVLM:
    """The model in a folder. InputError if it is no image-text-to-text model or if its weights are another architecture's."""
    try:
        return FrozenVLM(path, device)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"--backbone {path}: cannot be loaded as an image-text-to-text model ({reason})") from error
