"""What clients of the LoRA methods train: low-rank adapters on the language model of a frozen vision-language model.

Naming, said once: the papers write W = W0 + A B with A random and B zero at the start. peft computes W0 + scale * lora_B lora_A with lora_A random
and lora_B zero, so the paper's A is peft's `lora_A` and the paper's B is peft's `lora_B`. A state maps names as
`layers.0.self_attn.q_proj.A` to tensors: A is [rank, in], B is [out, rank].
Source: FedRand (section 4.1, "Implementation details"); Hu et al. (2022).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.vlm import CHUNK, IGNORE, Encoded, FrozenVLM
from trainers.base import State

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
FOLD_BELOW = 50_000_000  # adapted weights
MAX_NEW_TOKENS = 28  # the longest caption of the embedded task has 24


@dataclass(frozen=True)
class Settings:
    rank: int = field(default=8, metadata={"help": "rank of the adapters"})
    alpha: float = field(default=16.0, metadata={"help": "LoRA scaling numerator: the update is alpha / rank * B A"})
    targets: str = field(default="all", metadata={"help": "adapted projections: all seven, or attention (the paper's)"})
    learning_rate: float = field(default=4e-3, metadata={"help": "AdamW learning rate"})
    weight_decay: float = field(default=1e-6, metadata={"help": "AdamW weight decay"})
    batch: int = field(default=8, metadata={"help": "records per local step"})
    local_steps: int = field(default=32, metadata={"help": "local steps per participation"})

    def __post_init__(self) -> None:
        for name in ("rank", "batch", "local_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("alpha", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay must not be negative, not {self.weight_decay}")
        if self.targets not in ("all", "attention"):
            raise ValueError(f"targets must be all or attention, not {self.targets!r}")


class Learner:
    """Trains, evaluates and scores adapter states on one frozen model, one state at a time.

    There is one adapter; states are copied into its tensors (a swap costs less than a millisecond).
    """

    def __init__(self, vlm: FrozenVLM, data: dict[str, Encoded], settings: Settings) -> None:
        from peft import LoraConfig, get_peft_model

        self.vlm, self.data, self.settings = vlm, data, settings
        names = ATTENTION + (FEED_FORWARD if settings.targets == "all" else ())
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=0.0,
            target_modules=rf".*language_model.*\.({'|'.join(names)})",
        )
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`is_gradient_checkpointing` is deprecated"
            )  # peft asks transformers the old way
            self.model = get_peft_model(vlm.model, config).eval()
        self.parameters: dict[str, Tensor] = {
            _short(name): p for name, p in self.model.named_parameters() if p.requires_grad
        }
        layers = {n.partition("language_model.")[2]: m for n, m in self.model.named_modules() if hasattr(m, "lora_A")}
        size = sum(layer.base_layer.weight.numel() for layer in layers.values())
        # folding needs a copy of the adapted weights: not for models where that would double the memory
        self._folded = {n: (m, m.base_layer.weight.clone()) for n, m in layers.items()} if size < FOLD_BELOW else {}

    def initial(self, generator: torch.Generator) -> State:
        """The common public start: A uniform in +-1/sqrt(in) (peft's own law), B zero."""
        state = {}
        for name, parameter in sorted(self.parameters.items()):
            if name.endswith(".A"):
                state[name] = (2 * torch.rand(parameter.shape, generator=generator) - 1) / parameter.shape[1] ** 0.5
            else:
                state[name] = torch.zeros(parameter.shape)
        return state

    @torch.no_grad()
    def put(self, state: State) -> None:
        """Make `state` the adapter's values."""
        if state.keys() != self.parameters.keys():
            raise ValueError(f"a state holds {len(state)} tensors where the adapter has {len(self.parameters)}")
        for name, tensor in state.items():
            self.parameters[name].copy_(tensor)

    def train(self, state: State, records: Sequence[str], generator: torch.Generator) -> State:
        """`local_steps` AdamW steps on the records' captions from `state`: a fresh optimizer, shuffled epochs."""
        self.put(state)
        optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        queue: list[Tensor] = []
        for _ in range(self.settings.local_steps):
            if not queue:
                queue = list(torch.randperm(len(records), generator=generator).split(self.settings.batch))
            batch = self.vlm.batch([self.data[records[i]] for i in queue.pop(0).tolist()])
            logits = self.model(inputs_embeds=batch.embeddings, attention_mask=batch.mask).logits
            # eq. 1 per token, as usual for language models: the mean over all caption tokens of the batch
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {name: parameter.detach().cpu().clone() for name, parameter in self.parameters.items()}

    @contextmanager
    def _at(self, state: State) -> Iterator[None]:
        """The model at `state`, for inference: small models fold B A into the weights, which costs no more than the base model."""
        self.put(state)
        if not self._folded:
            yield
            return
        scale = self.settings.alpha / self.settings.rank
        with torch.no_grad(), self.model.disable_adapter():
            for name, (layer, frozen) in self._folded.items():
                a, b = self.parameters[f"{name}.A"], self.parameters[f"{name}.B"]
                torch.addmm(frozen, b, a, alpha=scale, out=layer.base_layer.weight)
            try:
                yield
            finally:
                for layer, frozen in self._folded.values():
                    layer.base_layer.weight.copy_(frozen)

    def logits(self, state: State, records: Sequence[str]) -> list[Tensor]:
        """Logits [T, V] of each record under `state`."""
        found = {i: rows for part in self.chunks(state, records) for i, rows in part}
        return [found[i] for i in range(len(records))]

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """(position in `records`, logits [T, V]) of records of similar length, a chunk at a time: memory stays bounded."""
        with self._at(state):
            yield from self._chunks(records)

    @torch.no_grad()
    def _chunks(self, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        encoded = [self.data[record] for record in records]
        order = sorted(range(len(records)), key=lambda i: (len(encoded[i].ids), i))
        for start in range(0, len(order), CHUNK):
            part = order[start : start + CHUNK]
            batch = self.vlm.batch([encoded[i] for i in part])
            logits = self.model(inputs_embeds=batch.embeddings, attention_mask=batch.mask).logits
            yield [(i, rows[: len(encoded[i].ids)]) for i, rows in zip(part, logits, strict=True)]

    def evaluate(self, state: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        """Caption loss (nats per token) and greedy answer of each record."""
        with self._at(state):
            logits = dict(pair for part in self._chunks(records) for pair in part)
            answers = self.vlm.generate(self.model, [self.data[record] for record in records], MAX_NEW_TOKENS)
        losses = []
        for i, record in enumerate(records):
            rows, encoded = logits[i], self.data[record]
            target = encoded.ids[encoded.prompt :].to(rows.device)
            losses.append(F.cross_entropy(rows[encoded.prompt - 1 : -1], target).item())
        return losses, answers


def _short(name: str) -> str:
    match = re.search(r"(layers\..*)\.lora_([AB])\.", name)
    if match is None:
        raise ValueError(f"{name} is no LoRA matrix of a transformer layer")
    return f"{match[1]}.{match[2]}"
