"""A pre-trained model and its processor, opened by transformers; its parts, and the tokens that it uses."""

import functools
import importlib.util
import inspect
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedaudit.backbones.model_folders import on_one_line
from fedaudit.backbones.texts import check_length, positions
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.base import IMAGE, Record

CHUNK = 64  # records per forward pass at most; fixed, so that results do not depend on the machine
LOGITS = 256_000_000  # bytes of float32 logits per forward pass at most
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ELSEWHERE = re.compile(r"vision|visual|image|projector|connector|lm_head")  # parts that get no adapters

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_OF_LANGUAGE = ("model", "transformer", "decoder", "language_model", "text_model", "lm", "llm")  # what layers lie in
_Class = TypeVar("_Class")


class Opened:
    """A frozen model on its device, with its processor and tokenizer. ValueError: the folder's model has no part
    that is a language model, or lacks weights."""

    def __init__(self, path: Path, device: str = "cpu", dtype: str = "float32") -> None:
        self.path, self.device, self.dtype = path, torch.device(device), DTYPES[dtype]
        self.model, self.processor = self.open()
        self.model.to(self.device).eval().requires_grad_(False)
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        if self.tokenizer.pad_token_id is None:  # any will do: the mask marks padding
            self.tokenizer.pad_token = self.tokenizer.convert_ids_to_tokens(self._stops[0])
        self.image_token = self.find_image_token()
        self._positions = positions(self.model.config)
        self._forward = inspect.signature(self.model.forward).parameters
        self.keeps_logits = "logits_to_keep" in self._forward
        # PaliGemma attends in both directions at type 0; the types of other models mark images
        self.text_type = int(getattr(self.model.config, "model_type", "") == "paligemma")
        part = self.language_model()
        self.language_prefix: str = next((name for name, m in self.model.named_modules() if m is part), "")
        if not self.language_prefix:
            raise ValueError("its language model is no part of its own")
        # now, because adapters add layers later
        self._modules = [name for name, _ in self.model.named_modules()]
        self._linear = [
            f"{self.language_prefix}.{name}"
            for name, module in part.named_modules()
            if isinstance(module, nn.Linear) and re.search(r"(^|\.)\d+\.", name) and not _ELSEWHERE.search(name)
        ]

    def open(self) -> tuple[Any, Any]:
        """The folder's model in `self.dtype`, and its processor (with a `tokenizer`). ValueError: the weights lack a
        tensor."""
        from transformers import AutoModelForImageTextToText, AutoProcessor

        placed = {} if self.device.type == "cpu" else {"device_map": {"": self.device}}  # no copy in the CPU's memory
        model, report = AutoModelForImageTextToText.from_pretrained(
            self.path, dtype=self.dtype, local_files_only=True, output_loading_info=True, trust_remote_code=False,
            use_safetensors=True, ignore_mismatched_sizes=True, **placed,
        )  # fmt: skip
        other = {str(key) for key, *_ in report["mismatched_keys"]}  # each with two sizes
        absent = sorted({str(key) for key in report["missing_keys"]} | other)
        if absent:
            raise ValueError(
                f"its weights lack {len(absent)} of the tensors that config.json describes, {absent[0]} first"
            )
        return model, AutoProcessor.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)

    def language_model(self) -> nn.Module:
        """The transformer of the language model inside `self.model`; it is called with `inputs_embeds`."""
        decoder: nn.Module = self.model.get_decoder()
        return decoder

    def find_image_token(self) -> int:
        """The id of the token whose embeddings `see` replaces by image embeddings. ValueError: none is configured."""
        config, processor = self.model.config, self.processor
        names = ("image_token_id", "image_token_index")
        token = next(
            (getattr(c, n) for c in (config, processor) for n in names if getattr(c, n, None) is not None), None
        )
        if token is None:
            raise ValueError("neither its configuration nor its processor names an image token")
        return int(token)

    def projections(self, which: str) -> list[str]:
        """Names in `self.model` of the language model's linear layers: "all", those of "attention", or a list such
        as "q_proj,v_proj". InputError: there are none, or none of a given name."""
        if which == "all":
            chosen = self._linear
        elif which == "attention":
            chosen = [n for n in self._linear if _ATTENTION.search(self.short(n).rpartition(".")[0])]
        else:
            ends, whole = ({name(n) for n in self._linear} for name in (_end, self.short))
            for name in set(which.split(",")) - ends - whole:
                raise InputError(
                    f"--target-modules {which}: the language model of {self.path} has no {name}; valid are all, "
                    f"attention, or some of " + ", ".join(sorted(ends))
                )
            chosen = [n for n in self._linear if {_end(n), self.short(n)} & {*which.split(",")}]
        if not chosen:
            raise self._refused(f"its language model has no linear layers to adapt ({which})")
        return list(chosen)

    def require_language(self, places: Iterable[str]) -> None:
        """InputError: one of the layers, by their names in a model that was trained, is not of the language model.

        A name tells where a layer is if this model has modules that end with it; a name that is not here, as older
        versions of transformers gave others, must name no part of a model but those that a language model is in.
        """
        outer = {*self.language_prefix.split("."), *_OF_LANGUAGE}
        for place in places:
            named = [name for name in self._modules if f".{name}".endswith(f".{place}")]
            parts = place.split(".")
            above = parts[: next((i for i, part in enumerate(parts) if part == "layers" or part.isdecimal()), 0)]
            if not above:
                continue
            inside = all(name.startswith(f"{self.language_prefix}.") for name in named)
            if not (inside if named else {*above} <= outer):
                raise InputError(
                    f"{place} is no layer of the language model ({self.language_prefix}): attacks ask that one alone, "
                    "about pictures that were encoded once, without an adapter; train with target_modules that match "
                    "nothing else, as a pattern .*language_model.*q_proj"
                )

    def short(self, name: str) -> str:
        """A name in `self.model` as one in the language model, such as `layers.0.self_attn.q_proj`."""
        return name.removeprefix(f"{self.language_prefix}.")

    def chunk(self, length: int) -> int:
        """The number of records of `length` tokens per forward pass that keeps the logits below 256 MB: 1 to
        `CHUNK`."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        return max(1, min(CHUNK, LOGITS // (4 * length * vocabulary)))

    @property
    def _placeholder(self) -> str:
        """The text that stands for a picture in what the processor takes."""
        token = str(getattr(self.processor, "image_token", IMAGE))
        if token == IMAGE or not getattr(self.processor, "chat_template", None):
            return token
        # some models wrap the token into others, which only their template knows
        content = [{"type": "text", "text": "before"}, {"type": "image"}, {"type": "text", "text": "after"}]
        chat = self.processor.apply_chat_template([{"role": "user", "content": content}])
        match = re.search(r"before(.*)after", chat, re.DOTALL)
        return match[1].strip() if match and token in match[1] else token

    def _text(self, record: Record) -> Tensor:
        """Token ids of a record's text, continuing its prompt. InputError: one is the image token, or unknown."""
        before = record.prompt.partition(IMAGE)[2]
        text = f" {record.text}"
        start, joined = self._instruction(before), self._ids(before + text)
        # tokenizers that mark the start of a text (SentencePiece) must not do so in the middle
        ids = joined[len(start) :] if start and joined[: len(start)] == start else self._ids(text)
        if self.image_token in ids:
            raise InputError(f"{record.called}: its text holds the model's image token")
        vocabulary = len(self.model.get_input_embeddings().weight)
        if max(ids, default=0) >= vocabulary:
            raise self._refused(
                f"its tokenizer has a token {max(ids)}, and its language model knows {vocabulary} tokens"
            )
        return torch.tensor(ids, dtype=torch.int64)

    def _check_length(self, record: Record, tokens: int) -> None:
        """InputError if all tokens of a record, its end among them, are more than the model's positions."""
        check_length(record, tokens, self._positions, self.path)

    @functools.lru_cache(maxsize=64)  # noqa: B019, one model per process: most records share an instruction
    def _instruction(self, text: str) -> list[int]:
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @property
    def _stops(self) -> list[int]:
        """Ids of the tokens that end an answer; the first one ends the texts that are trained on."""
        values = [
            getattr(c, "eos_token_id", None)
            for c in (self.tokenizer, getattr(self.model, "generation_config", None), self.model.config)
        ]
        ids = [int(i) for n in values if n is not None for i in (n if isinstance(n, list) else [n])]
        if not ids:
            raise self._refused("neither its tokenizer nor its configuration names an end-of-sequence token")
        return list(dict.fromkeys(ids))

    def _refused(self, reason: str) -> InputError:
        return InputError(f"--backbone {self.path}: {reason}")


def _end(name: str) -> str:
    return name.rpartition(".")[2]


def user_class(file: Path, base: type[_Class]) -> type[_Class]:
    """Execute the user's file; return its class `Backbone`. InputError: it cannot be imported, or has no such subclass
    of `base`."""
    if not os.path.isfile(file):
        raise InputError(f"--backbone-code {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"backbone_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"--backbone-code {file}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {on_one_line(error)}"
        raise InputError(f"--backbone-code {file}: cannot be imported ({reason})") from error
    kind = getattr(module, "Backbone", None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InputError(f"--backbone-code {file}: defines no class Backbone that is a {base.__name__}")
    return kind
