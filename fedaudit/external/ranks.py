"""Adapters of several ranks, and what was merged into the backbone before a round, as adapters of one rank.

Zero rows of A and zero columns of B change no function, and two products add up where rows and columns stand one after
the other. So an adapter and a base are one adapter: first the base's rows and columns, then its own, then zeros.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedaudit.external.adapters import Uploads, check_fits, check_pairs, partner, rank_of, read_adapter
from fedaudit.external.files import OwnFiles
from fedaudit.external.peft_config import PeftConfig
from fedaudit.external.schema import RUN
from fedaudit.external.tensors import Shape, TensorFile, numbered
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from fedaudit.trainers.base import State

BASE = "base"  # folder of what was merged into the backbone
MOST = 4096  # rank of a learner's adapter


@dataclass(frozen=True)
class StackedFile(TensorFile):
    """An adapter as part of one of a larger rank, behind a base."""

    adapter: TensorFile = field(kw_only=True)
    base: TensorFile | None = field(kw_only=True)
    starts: Mapping[str, int] = field(kw_only=True)  # by layer: how many rows of A and columns of B are the base's

    @property
    def unscaled(self) -> TensorFile:
        return dataclasses.replace(self, factors={})

    def load(self) -> State:
        state, base = {}, self.base.load() if self.base else {}
        for name, tensor in self.adapter.load().items():
            axis = 0 if name.endswith(".A") else 1
            parts = [(self.starts[name[:-2]], tensor * self.factors.get(name, 1.0))]
            parts += [(0, base[name])] if name in base else []
            state[name] = tensor.new_zeros(self.shapes[name])
            for start, part in parts:
                state[name].narrow(axis, start, part.shape[axis]).copy_(part)
        return state


@dataclass(frozen=True)
class _Stack:
    """How the adapters of a run become ones of one rank."""

    alpha: float
    config: PeftConfig | None
    own_rank: bool  # whether alpha is divided by each adapter's own rank, not by the global model's
    global_ranks: Mapping[str, int]  # by layer: the largest of the global models
    starts: Mapping[str, int]  # by layer: the largest rank of a base
    rank: int

    def place(self, adapter: TensorFile, base: TensorFile | None, model: TensorFile) -> StackedFile:
        """The adapter in its place; `model` is the global one beside which it is read, whose B stands for a B that it
        lacks."""
        shapes = {name: self._shape(name, shape) for name, shape in adapter.shapes.items()}
        factors = {}
        for name, shape in adapter.shapes.items():
            layer, rank = name[:-2], rank_of(name, shape)
            if name.endswith(".B"):
                factors[name] = self._scale(layer, rank) * self.rank / self.alpha
            elif partner(name) not in adapter.shapes:
                factors[name] = self._scale(layer, rank) / self._scale(layer, rank_of(name, model.shapes[name]))
        scaled_base = base and dataclasses.replace(
            base,
            factors={n: base.factors.get(n, 1.0) * self.rank / self.alpha for n in base.shapes if n.endswith(".B")},
        )
        precision = max(adapter.precision, base.precision if base else 0.0)
        return StackedFile(
            adapter.path, adapter.names, shapes, adapter.size, precision, factors,
            adapter=adapter, base=scaled_base, starts=self.starts,
        )  # fmt: skip

    def _scale(self, layer: str, rank: int) -> float:
        """The factor of B A in an adapter that has this rank in this layer."""
        rank = rank if self.own_rank else self.global_ranks[layer]
        if self.config is None:
            return self.alpha / rank
        ratio = self.config.layer_rank(layer) / rank
        return self.config.scale(layer) * (ratio**0.5 if self.config.root else ratio)

    def _shape(self, name: str, shape: Shape) -> Shape:
        return (self.rank, shape[1]) if name.endswith(".A") else (shape[0], self.rank)


def read_bases(files: OwnFiles, numbers: Sequence[int], model: TensorFile) -> list[TensorFile | None]:
    """Return what was merged into the backbone before each of the global models, whose `numbers` are those in the
    training; None before the first file. InputError: a file is unreadable, belongs to no model, does not fit the first
    global `model`, or is missing after another one."""
    folder = files.root / BASE
    paths = numbered(files, folder, "round") if os.path.lexists(folder) else {}
    for r, path in sorted(paths.items()):
        if r not in numbers:
            raise InputError(f"{path} has no model: {files.root / 'models'}/round-{r:03d}.safetensors is missing")
    for r in numbers:
        if r not in paths and r > min(paths, default=r):
            raise InputError(
                f"{folder}/round-{r:03d}.safetensors is missing; what was merged before round {min(paths)} is still in "
                "the model of this round, and each file holds all that was merged"
            )
    bases = {r: read_adapter(files, path) for r, path in paths.items()}
    for base in bases.values():
        _check_base(base, model)
    return [bases.get(r) for r in numbers]


def _check_base(base: TensorFile, model: TensorFile) -> None:
    """InputError unless the base has pairs of factors for layers that the global `model` adapts."""
    for name in base.shapes:
        check_fits(base, name, model)
        if partner(name) not in base.shapes:
            raise InputError(f"{base.path}: {name} is there without {partner(name)}; a base has both of each layer")
    check_pairs(base)


def at_one_rank(
    models: Sequence[TensorFile], uploads: Uploads, private: Uploads, bases: Sequence[TensorFile | None], *,
    alpha: float, config: PeftConfig | None, own_rank: bool, changes: bool,
) -> tuple[list[TensorFile], list[dict[int, TensorFile]], list[dict[int, TensorFile]], int]:  # fmt: skip
    """Return global models, uploads, clients' own models, and the one rank that all of them are read with.

    Then alpha / rank * B A is the update of every one, and that of its base. InputError: an upload is a change of a
    model of another rank, or the rank is larger than MOST.
    """
    adapters = [*models, *(file for by_client in (*uploads, *private) for file in by_client.values())]
    ranks = _largest(adapters)
    starts = dict.fromkeys(ranks, 0) | _largest([base for base in bases if base is not None])
    rank = max(starts[layer] + ranks[layer] for layer in ranks)
    if rank > MOST:
        raise InputError(
            f"{models[0].path.parent.parent}: the adapters of the run, with their base, have rank {rank}, {MOST} at "
            "most; a base can be written as factors of a rank that is no more than its layers are wide"
        )
    stack = _Stack(alpha, config, own_rank, _largest(models), starts, rank)
    if changes:
        for model, sent in zip(models, uploads, strict=False):
            for message in sent.values():
                _check_change(message, model)
    rounds = list(zip(models, bases, strict=True))
    return (
        [stack.place(model, base, model) for model, base in rounds],
        [
            {k: stack.place(message, None if changes else base, model) for k, message in sent.items()}
            for sent, (model, base) in zip(uploads, rounds, strict=False)
        ],
        [
            {k: stack.place(owner, base, model) for k, owner in owners.items()}
            for owners, (model, base) in zip(private, rounds, strict=False)
        ],
        stack.rank,
    )


def _largest(adapters: Sequence[TensorFile]) -> dict[str, int]:
    """The largest rank of each layer."""
    ranks: dict[str, int] = {}
    for adapter in adapters:
        for name, shape in adapter.shapes.items():
            ranks[name[:-2]] = max(ranks.get(name[:-2], 0), rank_of(name, shape))
    return ranks


def _check_change(message: TensorFile, model: TensorFile) -> None:
    """InputError if a change has another rank than the model that it is of."""
    for name, shape in message.shapes.items():
        if shape != model.shapes[name]:
            raise InputError(
                f"{message.path}: {name} is a change of rank {rank_of(name, shape)} of a model of rank "
                f"{rank_of(name, model.shapes[name])} ({model.path}), which leaves open what the client kept of the "
                f'rest; where ranks differ, uploads are states ({RUN} without "uploads": "changes")'
            )
