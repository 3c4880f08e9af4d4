"""A frozen vision-language model, and records as it reads them; image embeddings are computed once and cached.

Works for image-text-to-text models of transformers that put image embeddings at placeholder tokens, such as LLaVA; a
check on one record refuses others. The built-in model is `fedaudit.backbones.EMBEDDED`, made by `recipes.vlm`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones.model_folders import needs_packages, on_one_line, unloadable
from fedaudit.backbones.resolve import weights_hash
from fedaudit.backbones.vlm_batches import (
    IGNORE,
    POSITIONS,
    Batch,
    EmbeddedPrompt,
    Encoded,
    Stored,
    extend_input,
    pack_tensors,
    pad_rows,
    unpack_tensors,
)
from fedaudit.backbones.vlm_embeddings import Reader
from fedaudit.backbones.vlm_loading import CHUNK, DTYPES, user_class
from fedaudit.machinery import user_files
from fedaudit.machinery.engines.local import forks
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import ENCODING, Stage, unseen
from fedaudit.machinery.store import Folder, key_of
from fedaudit.tasks.base import Record

__all__ = ["CHUNK", "IGNORE", "Batch", "EmbeddedPrompt", "Encoded", "FrozenVLM", "load"]

SHARD = 64_000_000  # bytes of image embeddings per file at most
IN_MEMORY = 1_000_000_000  # bytes of image embeddings; more are read from disk when a batch needs them
# of the largest logit, between two ways to compute the same; of float32 with TF32's products in the last
TOLERANCE = {(torch.float32, "highest"): 1e-3, (torch.bfloat16, "highest"): 5e-2, (torch.float32, "high"): 2e-2}


class FrozenVLM(Reader):
    """A pre-trained model whose weights are never trained; adapters are added elsewhere.

    For a model that needs code of its own, a user's class `Backbone` inherits from this one and overrides `open`,
    `language_model`, `see` or `whole`.
    """

    code = ""  # SHA-256 of the file with the user's subclass

    def encode(
        self,
        records: Sequence[Record],
        cache: Folder,
        *,
        say: Callable[[str], None],
        stage: Stage = unseen,
        workers: int = 1,
        sample: bool = False,
    ) -> dict[str, Encoded]:
        """The records as the model reads them, {id: encoded}; image embeddings are from `cache`, where `workers`
        processes first add missing ones. sample: of missing ones only the first file is computed, and its pictures
        stand for the others.

        say: called with a sentence about each damaged file. InputError: the model reads images in a way that cannot be
        cached, or a picture or a text cannot be used.
        """
        shards = self._shards(records)
        missing = [name for name in shards if not cache.usable(name, say)]
        if missing:
            with self._readable(records[:1]):
                self._check(records[0])
            # only a forked worker has the model already
            with (
                Executor(lambda: self, workers=workers if forks() else 1) as readers,
                stage(ENCODING, len(missing), "batch") as advance,
            ):
                computed = missing[:1] if sample else missing
                packs = readers.map(FrozenVLM._pack, (shards[name] for name in computed))
                for name, tensors in zip(computed, packs, strict=True):
                    cache.write_tensors(name, tensors)
                    advance()
        read_from = {name: name for name in shards} | (dict.fromkeys(missing, missing[0]) if sample and missing else {})
        in_memory = sum((cache.path / name).stat().st_size for name in read_from.values()) < IN_MEMORY
        return {
            record.id: self._encoded(record, prompt, source)
            for name, part in shards.items()
            for record, (prompt, source) in zip(
                part, unpack_tensors(shards[read_from[name]], cache, read_from[name], in_memory=in_memory), strict=False
            )
        }

    def count_tokens(self, record: Record) -> tuple[int, int]:
        """How many image tokens the processor makes of a record's picture, and how many other tokens there are; no
        weights are needed. InputError: the record cannot be used."""
        with self._readable([record]):
            ids = self._processed([record])["input_ids"][0]
            self._require_image(record, ids)
            tokens = len(ids) + len(self._text(record)) + 1
            self._check_length(record, tokens)
        of_image = int((ids == self.image_token).sum())
        return of_image, tokens - of_image

    def _pack(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """The embedded prompts of records as the tensors of one file."""
        with self._readable(records):
            return pack_tensors(records, self.see(records))

    def embed(self, ids: Tensor, records: Sequence[Encoded]) -> Tensor:
        """Input embeddings [B, T, width] of padded ids [B, T], with the image embeddings of `records` at the image
        tokens. Without records, all ids are words."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids.to(self.device))
        at = (ids == self.image_token).to(self.device)
        if records:
            features = torch.cat([r.features for r in records]).to(self.device, embeddings.dtype)
            embeddings = embeddings.masked_scatter(at[..., None], features)  # an index by a mask would wait for a GPU
        return embeddings

    def batch(self, records: Sequence[Encoded]) -> Batch:
        """Records as one batch, padded on the right, where the causal mask hides padding from every real position.
        Labels are the text and its end token, IGNORE elsewhere."""
        lengths = [len(r.ids) for r in records]
        ids, inputs = self._inputs(records, lengths, left=False)
        position = torch.arange(ids.shape[1])[None]
        prompts = torch.tensor([r.prompt for r in records])[:, None]
        labels = torch.where((position >= prompts) & (position < torch.tensor(lengths)[:, None]), ids, IGNORE)
        return Batch(inputs, labels.to(self.device))

    @torch.no_grad()
    def generate(self, model: Any, records: Sequence[Encoded], max_new_tokens: int) -> list[str]:
        """Greedy answers of `model` (this one with adapters) to the records' instructions, of at most `max_new_tokens`
        tokens, in order."""
        answers: list[str] = []
        size = self.chunk(max((r.prompt for r in records), default=1) + max_new_tokens)
        for start in range(0, len(records), size):
            part = records[start : start + size]
            # padded on the left, so that all answers start at one position
            _, inputs = self._inputs(part, [r.prompt for r in part], left=True)
            answers += self.tokenizer.batch_decode(
                self._greedy(model, inputs, max_new_tokens), skip_special_tokens=True
            )
        return answers

    def _greedy(self, model: Any, inputs: dict[str, Tensor], steps: int) -> Tensor:
        """Likeliest next tokens [B, up to `steps`] after left-padded prompts; rows that ended are padded. It does not
        call the model's own `generate`, as that of some types accepts no embeddings."""
        mask = inputs["attention_mask"]
        positions = inputs.get(POSITIONS, (mask.cumsum(-1) - 1).clamp_min(0))
        stops = torch.tensor(self._stops, device=self.device)
        ended = torch.zeros(len(mask), dtype=torch.bool, device=self.device)
        arguments: dict[str, Any] = inputs | ({"logits_to_keep": 1} if self.keeps_logits else {})
        tokens: list[Tensor] = []
        for _ in range(steps):
            if POSITIONS in self._forward:
                arguments[POSITIONS] = positions
            out = model(**arguments, use_cache=True)
            tokens.append(out.logits[:, -1].argmax(-1).masked_fill(ended, self.tokenizer.pad_token_id))
            ended |= torch.isin(tokens[-1], stops)
            if ended.all():
                break
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
            positions = positions[..., -1:] + 1
            arguments = {
                "inputs_embeds": self.model.get_input_embeddings()(tokens[-1][:, None]),
                "attention_mask": mask,
                "past_key_values": out.past_key_values,
            }
        return torch.stack(tokens, dim=-1)

    def _inputs(
        self, records: Sequence[Encoded], lengths: Sequence[int], *, left: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The first `lengths` tokens of records, padded, as (ids [B, T], the model's keyword arguments)."""
        pairs = list(zip(records, lengths, strict=True))
        ids = pad_rows([r.ids[:n] for r, n in pairs], self.tokenizer.pad_token_id, left=left)
        mask = pad_rows([torch.ones(n, dtype=torch.int64) for _, n in pairs], left=left)
        extra = {name: pad_rows([r.extra[name][..., :n] for r, n in pairs], left=left) for name in records[0].extra}
        inputs = {"attention_mask": mask} | extra
        return ids, {"inputs_embeds": self.embed(ids, records)} | {n: t.to(self.device) for n, t in inputs.items()}

    def _encoded(self, record: Record, prompt: EmbeddedPrompt, source: Tensor | Stored) -> Encoded:
        tail = torch.cat([self._text(record), torch.tensor([self._stops[0]])])
        self._check_length(record, len(prompt.ids) + len(tail))
        places = torch.nonzero(prompt.ids == self.image_token).flatten()
        image = slice(int(places[0]), int(places[-1]) + 1)
        extra = {name: extend_input(name, values, len(tail), self.text_type) for name, values in prompt.extra.items()}
        return Encoded(record.id, torch.cat([prompt.ids, tail]), len(prompt.ids), image, source, extra)

    def _shards(self, records: Sequence[Record]) -> dict[str, Sequence[Record]]:
        """The records split into runs in order, {name of the file with the run's image embeddings: records}; {} without
        records."""
        if not records:
            return {}
        with self._readable(records[:1]):
            features = self.see(records[:1])[0].features
        size = max(1, min(CHUNK, SHARD // max(1, features.nbytes)))
        parts = [records[start : start + size] for start in range(0, len(records), size)]
        return {f"features-{self._key(part)}.safetensors": part for part in parts}

    def _key(self, records: Sequence[Record]) -> str:
        import transformers

        return key_of(
            {
                "backbone": [weights_hash(self.path), self.code, str(self.dtype), self.device.type],
                "precision": torch.get_float32_matmul_precision(),
                "versions": [torch.__version__, transformers.__version__],
                "records": [[r.id, r.prompt, r.digest] for r in records],
            }
        )

    @torch.no_grad()
    def _check(self, record: Record) -> None:
        """Raise InputError unless, on this record, cached embeddings give the whole model's logits, and no token sees
        later ones."""
        prompt = self.see([record])[0]
        encoded = self._encoded(record, prompt, prompt.features)
        last = len(encoded.ids) - 1
        _, inputs = self._inputs([encoded], [last + 1], left=False)
        cached, whole = self.model(**inputs).logits[0], self.whole(record, encoded.ids)
        if not whole.isfinite().all():
            raise self._refused("its logits are not finite: its weights hold NaN or infinities")
        if not self.same(cached, whole):
            raise self._uncacheable("with cached image embeddings its logits are others")
        _, inputs = self._inputs([encoded], [last], left=False)
        if not self.same(self.model(**inputs).logits[0], cached[:last]):
            raise self._uncacheable("what it says of a token depends on later ones")

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether logits `a` equal logits `b` up to rounding, relative to the largest of `b`."""
        difference = (a.float() - b.float()).abs().max()
        precision = torch.get_float32_matmul_precision() if self.dtype == torch.float32 else "highest"
        return bool(difference <= TOLERANCE[self.dtype, precision] * b.float().abs().max())

    @contextmanager
    def _readable(self, records: Sequence[Record]) -> Iterator[None]:
        """Turn what a model raises on these records into an InputError that names them."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {on_one_line(error)}"
            which = records[0].called if len(records) == 1 else f"one of {records[0].called} to {records[-1].called}"
            raise self._refused(
                needs_packages(error, self.path)
                or f"this model cannot read {which} ({reason}); one with its own code takes --backbone-code"
            ) from error


def load(path: Path, device: str = "cpu", dtype: str = "float32", code: str = "") -> FrozenVLM:
    """Load the model in a folder; with `code`, a user's file, through its class `Backbone`. InputError: it is no
    image-text-to-text model, lacks weights or packages, or `code` cannot be used."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # everything it warns about is checked here
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype} is not valid; valid are {', '.join(DTYPES)}")
    kind = FrozenVLM
    if code:
        kind = user_class(file := Path(os.path.expanduser(code)), FrozenVLM)
        kind.code = user_files.sha256(file)
    try:
        return kind(path, device, dtype)
    except InputError:
        raise
    except Exception as error:  # the model's files and the user's code can raise anything
        raise unloadable(path, error, "an image-text-to-text model", code) from error
