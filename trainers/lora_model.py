"""Low-rank adapters in a frozen vision-language model: the layers, the export, and what an adapted model answers.

The papers write W = W0 + A B with A random and B zero at the start. peft computes W0 + scale * lora_B lora_A with
lora_A random and lora_B zero, so the paper's A is peft's `lora_A` and the paper's B is peft's `lora_B`. An adapter maps
names as `layers.0.self_attn.q_proj.A` to tensors: A is [rank, in], B is [out, rank].
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor

from fedaudit.backbones.vlm import Encoded, FrozenVLM
from fedaudit.backbones.vlm_prefix import Prefix, shared
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.base import State
from fedaudit.trainers.lowrank import train_as_one, train_beside

if TYPE_CHECKING:
    from fedaudit.trainers.lora import Settings

FOLD_BELOW = 50_000_000  # adapted weights
KEPT = 5  # numbers that a pass keeps per token and output feature of the linear layers, measured on Llama
PASS = 8  # records of a pass on a processor: their activations stay in its cache (64 take a tenth longer)


class LoraModel:
    """A frozen model with one adapter, whose tensors are replaced by those of the adapter that is asked for (this costs
    less than a millisecond). Adapters may have different ranks."""

    def __init__(self, vlm: FrozenVLM, data: dict[str, Encoded], settings: Settings, memory: int = 0) -> None:
        from peft import LoraConfig, get_peft_model

        self.vlm, self.data, self.settings, self.memory = vlm, data, settings, memory
        linear = [vlm.model.get_submodule(name).weight for name in vlm.projections("all")]
        self._bytes_per_token = KEPT * sum(weight.element_size() * weight.shape[0] for weight in linear)
        targets = vlm.projections(settings.target_modules)
        config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, target_modules=targets)
        with warnings.catch_warnings():
            # peft calls transformers in a deprecated way
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
            self.model = get_peft_model(vlm.model, config).eval()
        self.model.requires_grad_(False)  # `Learner.train` passes in the tensors that it trains
        layers = {vlm.short(name): self.model.base_model.model.get_submodule(name) for name in targets}
        self._names = {
            f"{short}.{half}": f"base_model.model.{name}.lora_{half}.default.weight"
            for short, name in zip(layers, targets, strict=True)
            for half in "AB"
        }
        self.parameters: dict[str, Tensor] = {n: self.model.get_parameter(full) for n, full in self._names.items()}
        weights = [layer.base_layer.weight for layer in layers.values()]
        # folding B A into the weights needs a copy of them; large models lack the memory, half precision would round
        small = sum(w.numel() for w in weights) < FOLD_BELOW and all(w.dtype == torch.float32 for w in weights)
        self._folded = {n: (m, m.base_layer.weight.clone()) for n, m in layers.items()} if small else {}
        for layer in layers.values():
            (train_as_one if small else train_beside)(layer)
        # large models have so many image tokens that a shared prefix of words saves nothing
        self._shared = self._usable_prefix() if small else 0

    def load_adapter(self, adapter: State) -> None:
        """Load `adapter` into the model. InputError: its layers are not the model's, or its factors do not fit
        these."""
        if odd := sorted(adapter.keys() ^ self.parameters.keys()):
            raise InputError(
                f"an adapter of {len(adapter)} tensors does not fit the model, whose {self.settings.target_modules} "
                f"projections take {len(self.parameters)} ({odd[0]} is in one of them only)"
            )
        for name, tensor in adapter.items():
            parameter, outer = self.parameters[name], 1 if name.endswith(".A") else 0
            if tensor.shape[outer] != parameter.shape[outer]:
                shape, features = " x ".join(map(str, tensor.shape)), parameter.shape[outer]
                raise InputError(f"{name} is {shape}, where the model has {features} features")
            parameter.data = tensor.detach().to(parameter.device, torch.float32)

    @contextmanager
    def _at(self, adapter: State) -> Iterator[None]:
        """Load `adapter` for inference, as a context: in small models B A is added to the weights meanwhile, so that a
        pass costs no more than one of the base model."""
        self.load_adapter(adapter)
        if not self._folded:
            yield
            return
        scale = self.settings.alpha / self.settings.rank
        with torch.no_grad():
            for name, (layer, frozen) in self._folded.items():
                a, b = self.parameters[f"{name}.A"], self.parameters[f"{name}.B"]
                torch.addmm(frozen, b, a, alpha=scale, out=layer.base_layer.weight)
                layer.folded = True
            try:
                yield
            finally:
                for layer, frozen in self._folded.values():
                    layer.base_layer.weight.copy_(frozen)
                    layer.folded = False

    def export(self, adapter: State, folder: Path) -> None:
        """Write an adapter in peft's format into `folder`; load it by `PeftModel.from_pretrained(base, folder)`."""
        from peft import LoraConfig

        rank = next(t.shape[0] for name, t in adapter.items() if name.endswith(".A"))
        config = LoraConfig(
            r=rank,
            lora_alpha=self.settings.alpha * rank / self.settings.rank,  # the scale stays that of the training
            lora_dropout=0.0,
            target_modules=self.vlm.projections(self.settings.target_modules),
            inference_mode=True,
            base_model_name_or_path=str(self.vlm.path),
        )
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {self._names[name].replace(".default", ""): t.contiguous() for name, t in adapter.items()}
        write_atomic(folder / "adapter_model.safetensors", safetensors.torch.save(tensors, metadata={"format": "pt"}))
        config.save_pretrained(str(folder))

    def words(self, record: str) -> str:
        """The part of a record that enters the loss, as text, without its end token (which enters too)."""
        encoded = self.data[record]
        return self.vlm.tokenizer.decode(encoded.ids[encoded.prompt : -1])

    def tokens(self, record: str) -> list[str]:
        """All tokens of a record, each as text by itself, without surrounding spaces."""
        return [self.vlm.tokenizer.decode([int(i)]).strip() for i in self.data[record].ids]

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """Yield chunks of records of similar length, each a list of (index in `records`, logits [T, V])."""
        with self._at(state):
            yield from self._chunks(records)

    @torch.no_grad()
    def _chunks(self, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        encoded = [self.data[record] for record in records]
        size = self.vlm.chunk(max(len(e.ids) for e in encoded))
        prefix = self._prefix(encoded[0], self._shared) if self._shared else None
        for part in _by_length(encoded, min(size, PASS) if self.vlm.device.type == "cpu" else size):
            inputs = self.vlm.batch([encoded[i] for i in part]).inputs
            logits = prefix.logits(inputs) if prefix else self.model(**inputs, use_cache=False).logits
            yield [(i, rows[: len(encoded[i].ids)]) for i, rows in zip(part, logits.float(), strict=True)]

    @torch.no_grad()
    def inputs(
        self, adapter: State, records: Sequence[str], reduce: Callable[[str, Tensor], Tensor | None]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Yield chunks of records of similar length as (indices in `records`, `reduce(layer, inputs [R, T, in])` by
        adapted layer). Layers for which `reduce` returns None are left out. Rows after a record's tokens are padding.
        """
        by_layer: dict[str, Tensor] = {}

        def hook(name: str, layer: Any, inputs: tuple[Tensor]) -> None:
            if (reduced := reduce(name, inputs[0])) is not None:
                by_layer[name] = reduced

        layers = {name: self._layer(name) for name in dict.fromkeys(name[:-2] for name in adapter)}
        handles = [layer.register_forward_pre_hook(functools.partial(hook, name)) for name, layer in layers.items()]
        encoded = [self.data[record] for record in records]
        size = self.vlm.chunk(max((len(e.ids) for e in encoded), default=1))
        try:
            with self._at(adapter):
                for part in _by_length(encoded, size):
                    self.model(**self.vlm.batch([encoded[i] for i in part]).inputs, use_cache=False)
                    yield part, dict(by_layer)
        finally:
            for handle in handles:
                handle.remove()

    def _layer(self, name: str) -> torch.nn.Module:
        """The adapted layer called `name` in adapters."""
        layer: torch.nn.Module = self.model.get_submodule(self._names[f"{name}.A"].rpartition(".lora_A")[0])
        return layer

    def _prefix(self, record: Encoded, length: int) -> Prefix:
        """The keys and values of a record's first `length` tokens under the adapter that is loaded."""
        return Prefix(self.model, self.vlm.embed(record.ids[None, :length], []))

    @torch.no_grad()
    def _usable_prefix(self) -> int:
        """Number of first tokens that all records share, and that can be computed once for all; 0 if there are none, or
        if the model's logits differ when it goes on from them."""
        if not (length := shared(self.data.values())):
            return 0
        record = next(iter(self.data.values()))
        inputs = self.vlm.batch([record]).inputs
        try:
            split = self._prefix(record, length).logits(inputs)
        except Exception:  # some models do not take these arguments with a cache
            return 0
        return length if self.vlm.same(split, self.model(**inputs, use_cache=False).logits) else 0


def _by_length(encoded: Sequence[Encoded], size: int) -> Iterator[list[int]]:
    """Yield the indices of records from the shortest to the longest, `size` at a time."""
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), i))
    yield from (order[start : start + size] for start in range(0, len(order), size))
