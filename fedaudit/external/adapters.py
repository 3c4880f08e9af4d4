"""LoRA adapters in safetensors files of an external run: headers are checked without torch, tensors get this project's
names."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.external.files import OwnFiles
from fedaudit.external.headers import ITEM, read_header
from fedaudit.external.names import NUMBERED, ClientNames
from fedaudit.external.peft_config import NAME, PeftConfig
from fedaudit.external.schema import CLIENT, RUN, one_line
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.base import State

ROUNDING = {"F64": 2**-24, "F32": 2**-24, "F16": 2**-11, "BF16": 2**-8}  # relative, as tensors are read in float32
LARGEST = 10_000  # absolute value in a factor: trained ones lie far below; above it a model's activations overflow
_HALF = re.compile(r"(?P<layer>[\w.-]+?)\.(?:(?P<own>[AB])|lora_(?P<peft>[AB])(?:\.(?P<name>\w+))?\.weight)", re.ASCII)
_OF_PICTURES = re.compile(
    r"vision|visual|image_encoder|clip|siglip|projector|connector|resampler|qformer|perceiver", re.I
)

Shape = tuple[int, int]


@dataclass(frozen=True)
class Adapter:
    """An adapter file as its header describes it. Factor A is [rank, in], factor B is [out, rank]."""

    path: Path
    names: Mapping[str, str]  # name in the file, by this project's name
    shapes: Mapping[str, Shape]  # by this project's name
    size: int  # bytes of all tensors
    precision: float = 0.0  # largest relative rounding error of a tensor's dtype, once read in float32
    factors: Mapping[str, float] = field(default_factory=dict)  # by name: what a factor B is multiplied by when read

    def load(self) -> State:
        """The tensors in float32, by this project's names. InputError: unreadable, NaN, infinite or huge values."""
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(user_files.read_bytes(self.path))
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.path} cannot be read as safetensors ({reason})") from error
        state = {name: tensors[in_file].to(torch.float32) for name, in_file in self.names.items()}
        for name, tensor in state.items():
            check_values(tensor, f"{self.path}: {name}")
        return {name: tensor * self.factors.get(name, 1.0) for name, tensor in state.items()}


def check_values(tensor: Tensor, name: str) -> None:
    """InputError, which begins with `name`: the tensor holds NaN, infinite or huge values."""
    if not tensor.isfinite().all():
        raise InputError(f"{name} holds NaN or infinite values, where a model holds finite numbers")
    extreme = tensor.flatten()[tensor.abs().argmax()].item()
    if abs(extreme) > LARGEST:
        raise InputError(
            f"{name} holds {extreme:g}, where a model's numbers lie between -{LARGEST} and {LARGEST} "
            "(did the training diverge?)"
        )


def adapter_name(name: str) -> str:
    """The name that peft gave the adapter of a tensor, as `client_0` in `lora_A.client_0.weight`; "default" if none."""
    half = _HALF.fullmatch(name)
    return (half["name"] if half else None) or "default"


def canonical(name: str) -> str | None:
    """This project's name, such as `layers.0.self_attn.q_proj.A`, of a LoRA factor A or B that has this or peft's name;
    None if `name` is not of one.

    The name begins at the component `layers`; without one, at the parent of the last number (`h.0.attn.c_attn`).
    """
    half = _HALF.fullmatch(name)
    parts = half["layer"].split(".") if half else []
    numbers = [i for i, part in enumerate(parts[:-1]) if part.isdecimal()]
    if not half or not numbers:
        return None
    start = next((i - 1 for i in numbers if i and parts[i - 1] == "layers"), max(numbers[-1] - 1, 0))
    return ".".join([*parts[start:], half["own"] or half["peft"]])


def read_models(files: OwnFiles, *, gaps: bool) -> dict[int, Adapter]:
    """The global models in `models/` by the number of the round that they are sent out in, sorted; only headers are
    read. InputError: fewer than two, or without `gaps` a number is missing."""
    folder = files.root / "models"
    paths = _numbered(files, folder, "round")
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
    return {r: read_adapter(files, paths[r]) for r in sorted(paths)}


def read_uploads(files: OwnFiles, models: Collection[int], names: ClientNames) -> dict[int, dict[int, Adapter]]:
    """Uploads by round and client. InputError: a round whose own or whose next model is not among `models`."""
    folder = files.root / "uploads"
    uploads = {}
    for r, path in sorted(_numbered(files, folder, "round", suffix="").items()):
        if r >= max(models):
            raise InputError(
                f"{path} has no model after it: {files.root / 'models'}/round-{r + 1:03d}.safetensors is missing"
            )
        if r not in models:
            raise InputError(
                f"{path} has no model that its clients started from: "
                f"{files.root / 'models'}/round-{r:03d}.safetensors is missing"
            )
        sent = _numbered(files, path, "client", names=names)
        uploads[r] = {k: read_adapter(files, sent[k]) for k in sorted(sent)}
    return uploads


def read_owners(files: OwnFiles, names: ClientNames) -> dict[int, Adapter]:
    """The true models of clients in `owners/`, by client; {} if there is no such folder. InputError: an unexpected or
    unreadable file."""
    folder = files.root / "owners"
    paths = _numbered(files, folder, "client", names=names) if os.path.lexists(folder) else {}
    return {k: read_adapter(files, path) for k, path in paths.items()}


def check_tensors(
    models: Sequence[Adapter], uploads: Sequence[Mapping[int, Adapter]], owners: Mapping[int, Adapter],
    config: PeftConfig | None,
) -> int:  # fmt: skip
    """Check names and shapes of all tensors against the first global model, and return its rank, with a `config` the
    one that this states. InputError: they do not fit, or a client in `owners` never took part."""
    rank = _check_global(models[0], config)
    _check_adapter_names([*models, *owners.values(), *(message for sent in uploads for message in sent.values())])
    for model in models[1:]:
        _check_message(model, models[0], whole=True)
    for message in (message for sent in uploads for message in sent.values()):
        _check_message(message, models[0], whole=False)
    for client, owner in owners.items():
        if not any(client in sent for sent in uploads):
            raise InputError(f"{owner.path}: client {client} took part in no round, so that it has no model of its own")
        _check_owner(owner, models[0])
    return rank


def without_b(adapter: Adapter) -> Adapter:
    """The adapter with B zero, so that it changes nothing: what peft starts from."""
    return dataclasses.replace(adapter, factors={name: 0.0 for name in adapter.shapes if name.endswith(".B")})


Uploads = Sequence[Mapping[int, Adapter]]


def scaled(
    models: Sequence[Adapter], uploads: Uploads, owners: Mapping[int, Adapter], config: PeftConfig
) -> tuple[list[Adapter], list[dict[int, Adapter]], dict[int, Adapter]]:
    """Return the adapters so that they are read with one scale for all layers, that of the configuration's alpha and
    rank. In a layer with a scale of its own the factor B is multiplied by the ratio."""
    ratio = {name: config.scale(name[:-2]) / config.scale("") for name in models[0].shapes if name.endswith(".B")}
    factors = {name: factor for name, factor in ratio.items() if factor != 1}

    def change(adapter: Adapter) -> Adapter:
        return dataclasses.replace(adapter, factors={**factors, **adapter.factors})

    return (
        [change(model) for model in models],
        [{k: change(message) for k, message in sent.items()} for sent in uploads],
        {k: change(owner) for k, owner in owners.items()},
    )


def _numbered(
    files: OwnFiles, folder: Path, word: str, *, suffix: str = ".safetensors", names: ClientNames = NUMBERED
) -> dict[int, Path]:
    """Paths by number in a folder of `round-000` or `client-03` with a suffix; clients go by `names`. InputError:
    anything else in it."""
    paths: dict[int, Path] = {}
    for path in files.listed(folder):
        if path.name == NAME and word == "round":
            continue
        match = re.fullmatch(rf"{word}-(.+){re.escape(suffix)}", path.name)
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


def read_adapter(files: OwnFiles, path: Path) -> Adapter:
    """Read the header of an adapter file. InputError: unreadable, truncated, or a tensor that is no factor."""
    names: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    size, precision = 0, 0.0
    for in_file, entry in read_header(files, path).items():
        name, shape = canonical(in_file), entry["shape"]
        if tower := _OF_PICTURES.search(in_file.partition(".layers.")[0]):
            raise InputError(
                f"{path}: {one_line(in_file)} adapts what reads pictures ({tower[0]}), and attacks ask the language "
                "model about pictures that were encoded once, without an adapter; train with target_modules that "
                "match the language model only, as a pattern .*language_model.*q_proj"
            )
        if name is None:
            raise InputError(
                f"{path}: {one_line(in_file)} is no name of an adapter's tensor; valid are "
                "layers.0.self_attn.q_proj.A (or .B) and peft's ...layers.0.self_attn.q_proj.lora_A.weight"
            )
        if name in names:
            both = f"{one_line(names[name])} and {one_line(in_file)} are both {one_line(name)}"
            raise InputError(f"{path}: {both}; each tensor once")
        if entry["dtype"] not in ITEM or len(shape) != 2 or 0 in shape:
            raise InputError(
                f"{path}: {in_file} is {one_line(entry['dtype'])} {one_line(str(shape))}, where a factor of an "
                f"adapter is a matrix of {', '.join(ITEM)}"
            )
        names[name], shapes[name] = in_file, (shape[0], shape[1])
        size += entry["data_offsets"][1] - entry["data_offsets"][0]
        precision = max(precision, ROUNDING[entry["dtype"]])
    return Adapter(path, names, shapes, size, precision)


def _check_adapter_names(adapters: Sequence[Adapter]) -> None:
    """InputError if tensors belong to adapters of several names, of which attacks could ask one only."""
    files: dict[str, Path] = {}
    for adapter in adapters:
        for in_file in adapter.names.values():
            files.setdefault(adapter_name(in_file), adapter.path)
    if len(files) > 1:
        (one, path), (other, second), *_ = files.items()
        raise InputError(
            f"{second}: an adapter called {one_line(other)}, where {path} holds one called "
            f"{one_line(one)}; a run has one adapter, of one name"
        )


def _check_global(adapter: Adapter, config: PeftConfig | None) -> int:
    """The rank of a global model. InputError: no tensors, A without B or B without A, or several ranks that no `config`
    states."""
    shapes = adapter.shapes
    if not shapes:
        raise InputError(f"{adapter.path} holds no tensors; a global model has a pair A and B per adapted layer")
    rank = next(_inner(name, shape) for name, shape in shapes.items())
    for name, shape in shapes.items():
        other = _partner(name)
        if other not in shapes:
            raise InputError(f"{adapter.path}: {name} is there without {other}; a global model has both of each layer")
        if config and _inner(name, shape) != config.layer_rank(name[:-2]):
            raise InputError(
                f"{adapter.path}: {name} has rank {_inner(name, shape)}, where {config.path} states "
                f"{config.layer_rank(name[:-2])}"
            )
        if not config and _inner(name, shape) != rank:
            raise InputError(
                f"{adapter.path}: {name} has rank {_inner(name, shape)} where {next(iter(shapes))} has {rank}; all "
                f"layers of a run have one rank, unless peft's {NAME} beside run.json states others"
            )
    present = {name.split(".")[-2] for name in shapes}
    if config and (absent := sorted(set(config.targets) - present)):
        raise InputError(
            f"{adapter.path} holds no adapter of {absent[0]}, which {config.path} names in target_modules; it has "
            f"{', '.join(sorted(present))}"
        )
    return config.rank if config else rank


def _check_message(adapter: Adapter, model: Adapter, *, whole: bool) -> None:
    """InputError unless the tensors fit the global `model`; with `whole`, none of its tensors may be missing."""
    for name, shape in adapter.shapes.items():
        if name not in model.shapes:
            raise InputError(f"{adapter.path}: {name} is not in the global model ({model.path})")
        if shape != model.shapes[name]:
            raise InputError(
                f"{adapter.path}: {name} has shape {list(shape)} where the global model has {list(model.shapes[name])}"
            )
    absent = sorted(model.shapes.keys() - adapter.shapes.keys())
    if whole and absent:
        raise InputError(f"{adapter.path} lacks {absent[0]}, which {model.path} has")


def _check_owner(adapter: Adapter, model: Adapter) -> None:
    """InputError unless the adapter has both factors A and B, of a rank of its own in each layer, for exactly the
    layers of the global `model`."""
    for name in sorted(model.shapes.keys() | adapter.shapes.keys()):
        if name not in adapter.shapes:
            raise InputError(f"{adapter.path} lacks {name}; a client's own model is a whole adapter")
        if name not in model.shapes:
            raise InputError(f"{adapter.path}: {name} is not in the global model ({model.path})")
        shape, rank = adapter.shapes[name], _inner(_partner(name), adapter.shapes.get(_partner(name), (0, 0)))
        fitting = (rank, model.shapes[name][1]) if name.endswith(".A") else (model.shapes[name][0], rank)
        if rank and shape != fitting:
            raise InputError(
                f"{adapter.path}: {name} has shape {list(shape)} where {list(fitting)} would fit the model"
            )


def _partner(name: str) -> str:
    """Name of the other factor of the same layer."""
    return name[:-1] + ("B" if name.endswith("A") else "A")


def _inner(name: str, shape: Shape) -> int:
    """Rank of a factor."""
    return shape[0] if name.endswith(".A") else shape[1]
