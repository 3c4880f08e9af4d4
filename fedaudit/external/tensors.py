"""Tensor files of an external run: what their headers say, read without torch, and the files of each round by number
and client."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.files import OwnFiles
from fedaudit.external.names import NUMBERED, ClientNames
from fedaudit.external.peft_config import NAME as PEFT_CONFIG
from fedaudit.external.schema import CLIENT, RUN, one_line
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.trainers.base import State

ROUNDING = {"F64": 2**-24, "F32": 2**-24, "F16": 2**-11, "BF16": 2**-8}  # relative, as tensors are read in float32
LARGEST = 10_000  # absolute value of a number: trained ones lie far below; above it a model's activations overflow

_ENDINGS = r"\.(?:safetensors|pth|pt|pth\.tar(?:-\d+)?)"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file as its header describes it, with this project's names of the tensors."""

    path: Path
    names: Mapping[str, str]  # name in the file, by this project's name
    shapes: Mapping[str, Shape]  # by this project's name
    size: int  # bytes of all tensors
    precision: float = 0.0  # largest relative rounding error of a tensor's dtype, once read in float32
    factors: Mapping[str, float] = field(default_factory=dict)  # by name: what a tensor is multiplied by when read
    zeros: Mapping[str, Shape] = field(default_factory=dict)  # by name: tensors that are not in the file, and are zero

    @property
    def unscaled(self) -> TensorFile:
        """The file as a server averages it: without scales that differ from file to file."""
        return self

    def load(self) -> State:
        """The tensors, by this project's names, numbers in float32 and indices as they are. InputError: unreadable,
        NaN, infinite or huge values."""
        import torch

        state = {}
        for name, tensor in self.raw().items():
            read = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
            check_values(read, f"{self.path}: {name}")
            state[name] = read * self.factors[name] if name in self.factors else read
        return state | {name: torch.zeros(shape) for name, shape in self.zeros.items()}

    def raw(self) -> dict[str, Tensor]:
        """The tensors as they are in the file, by this project's names."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(user_files.read_bytes(self.path))
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.path} cannot be read as safetensors ({reason})") from error
        return {name: tensors[in_file] for name, in_file in self.names.items()}


Read = Callable[[Path], TensorFile]


def check_values(tensor: Tensor, name: str) -> None:
    """InputError unless all numbers of the tensor `name` are finite and at most LARGEST; indices may be larger."""
    if not tensor.numel() or not tensor.is_floating_point():
        return
    if not tensor.isfinite().all():
        raise InputError(f"{name} holds NaN or infinite values, where a model holds finite numbers")
    extreme = tensor.flatten()[tensor.abs().argmax()].item()
    if abs(extreme) > LARGEST:
        raise InputError(
            f"{name} holds {extreme:g}, where a model's numbers lie between -{LARGEST} and {LARGEST} "
            "(did the training diverge?)"
        )


def precision_of(entries: Mapping[str, Mapping[str, Any]]) -> float:
    """The largest rounding error (`ROUNDING`) of the tensors that a header lists."""
    return max((ROUNDING.get(entry["dtype"], 0.0) for entry in entries.values()), default=0.0)


def size_of(entries: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of the tensors that a header lists."""
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in entries.values())


def model_paths(files: OwnFiles, *, gaps: bool) -> dict[int, Path]:
    """The global models in `models/` by the number of the round that they are sent out in, sorted. InputError: fewer
    than two, or without `gaps` a number is missing."""
    folder = files.root / "models"
    paths = numbered(files, folder, "round")
    if len(paths) < (1 if gaps else 2):
        raise InputError(
            f"{folder} holds {len(paths)} models; a run has at least two, before and after its first round"
        )
    for r in range(max(paths)):
        if r not in paths and not gaps:
            raise InputError(
                f"{folder}/round-{r:03d}.safetensors is missing; there are models up to round {max(paths)} (if not "
                f'every round was kept, {RUN} says "gaps": true)'
            )
    return dict(sorted(paths.items()))


def read_by_round(
    files: OwnFiles, kind: str, models: Collection[int], names: ClientNames, read: Read
) -> dict[int, dict[int, TensorFile]]:
    """The files of clients in a folder of rounds, `kind` ("uploads"), by round and client; `read` reads a header.
    InputError: a round whose own or whose next model is not among `models`."""
    folder = files.root / kind
    paths: dict[tuple[int, int], Path] = {}
    rounds = dict(sorted(numbered(files, folder, "round", suffix="").items()))
    for r, path in rounds.items():
        if r >= max(models):
            raise InputError(
                f"{path} has no model after it: {files.root / 'models'}/round-{r + 1:03d}.safetensors is missing"
            )
        if r not in models:
            raise InputError(
                f"{path} has no model that its clients started from: "
                f"{files.root / 'models'}/round-{r:03d}.safetensors is missing"
            )
        paths |= {(r, k): sent for k, sent in sorted(numbered(files, path, "client", names=names).items())}
    uploads: dict[int, dict[int, TensorFile]] = {r: {} for r in rounds}
    for (r, k), file in zip(paths, each(read, paths.values()), strict=True):
        uploads[r][k] = file
    return uploads


def numbered(
    files: OwnFiles, folder: Path, word: str, *, suffix: str = ".safetensors", names: ClientNames = NUMBERED
) -> dict[int, Path]:
    """Paths by number in a folder of `round-000` or `client-03` with a suffix, for .safetensors also that of a file of
    torch.save; clients go by `names`. InputError: anything else in it."""
    paths: dict[int, Path] = {}
    for path in files.listed(folder):
        if path.name == PEFT_CONFIG and word == "round":
            continue
        endings = _ENDINGS if suffix == ".safetensors" else re.escape(suffix)
        match = re.fullmatch(rf"{word}-(.+?){endings}", path.name)
        all_names = names if word == "client" else NUMBERED
        number = all_names.number(match[1]) if match else None
        if match is None or number is None:
            example = (f"client-{names.example}" if word == "client" else "round-000") + suffix
            raise InputError(
                f"{one_line(str(path), most=5000)} is not expected here; valid are names such as {example}"
            )
        if word == "client" and not CLIENT.holds(number):
            raise InputError(f"{path}: {number} must be {CLIENT.words}")
        if number in paths:
            raise InputError(f"{path} and {paths[number]} are both {word} {number}; each once")
        paths[number] = path
    return paths
