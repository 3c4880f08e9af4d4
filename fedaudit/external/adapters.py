"""LoRA adapters in safetensors files of an external run: headers are checked without torch, tensors get this project's
names."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.external.files import OwnFiles
from fedaudit.external.headers import read_header
from fedaudit.external.names import ClientNames, unwrapped
from fedaudit.external.peft_config import NAME, PeftConfig
from fedaudit.external.schema import RUN, one_line
from fedaudit.external.tensors import ROUNDING, Shape, TensorFile, numbered, precision_of, size_of
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from fedaudit.trainers.base import State

_HALF = re.compile(r"(?P<layer>[\w.-]+?)\.(?:(?P<own>[AB])|lora_(?P<peft>[AB])(?:\.(?P<name>\w+))?\.weight)", re.ASCII)
SCALES = ("own rank", "global rank")  # what alpha is divided by, where ranks differ
SAY_SCALE = f'{RUN} ("format": 2) must say what alpha is divided by: "scale", "{SCALES[0]}" or "{SCALES[1]}"'


@dataclass(frozen=True)
class Adapters:
    """Facts about the adapters of an external run. Factor A is [rank, in], factor B is [out, rank]."""

    learner: ClassVar[str] = "lora"
    nothing_private: ClassVar[bool] = False  # what clients send need not be their whole model
    start_token: ClassVar[None] = None  # adapters tell nothing of the text encoder
    classes: ClassVar[tuple[str, ...]] = ()  # records are texts
    untold: ClassVar[str] = ""  # no attack here repeats a training of adapters, so that nothing is missing

    alpha: float
    rank: int  # of the global model, or one to which all adapters were brought (ranks.py)
    targets: tuple[str, ...]  # last components of the adapted layers' names: k_proj, q_proj
    bases: tuple[TensorFile, ...] = ()  # what was merged into the backbone before rounds
    scale_read: bool = False  # whether the scale was read of the model or its configuration, not told
    places: tuple[str, ...] = ()  # names in their model of the adapted layers, as files have them
    notes: tuple[str, ...] = ()  # sentences on peft's configuration

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the learner's Settings that the run states."""
        return {"rank": self.rank, "alpha": self.alpha, "target_modules": ",".join(self.targets)}

    @property
    def files(self) -> list[TensorFile]:
        """Tensor files that belong to whole rounds, beside the global models."""
        return [*self.bases]

    def more_tensors(self, r: int) -> State:
        """Tensors of round r as in a transcript that are neither models nor clients': none."""
        return {}

    def sent_state(self, before: State, upload: State) -> State:
        """The state that an upload is, if the model `before` was sent out."""
        return upload


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
    parts = place(name).split(".") if half else []
    numbers = [i for i, part in enumerate(parts[:-1]) if part.isdecimal()]
    if not half or not numbers:
        return None
    start = next((i - 1 for i in numbers if i and parts[i - 1] == "layers"), max(numbers[-1] - 1, 0))
    return ".".join([*parts[start:], half["own"] or half["peft"]])


def place(name: str) -> str:
    """The layer that a factor is of, by its name in the model that was trained, as far as the factor's name tells:
    without peft's own modules, and those that wrap others in a training."""
    half = _HALF.fullmatch(name)
    parts = unwrapped(half["layer"] if half else name).split(".")
    return ".".join(parts[2:] if parts[:2] == ["base_model", "model"] else parts)


def places(adapters: Iterable[TensorFile]) -> tuple[str, ...]:
    """The layers that adapters are of, each once, sorted (`place`)."""
    return tuple(sorted({place(in_file) for adapter in adapters for in_file in adapter.names.values()}))


def targets_of(model: TensorFile, config: PeftConfig | None) -> tuple[str, ...]:
    """The adapted layers as the learner's target_modules names them: the ends of their names, or their whole names
    where the configuration may leave some out."""
    layers = {name[:-2] for name in model.shapes}
    return tuple(sorted(layers if config and config.partial else {layer.rpartition(".")[2] for layer in layers}))


def notes_of(config: PeftConfig | None) -> tuple[str, ...]:
    """Sentences on what a configuration says that a reader of the report should know."""
    if config is None:
        return ()
    sentences = []
    if config.unknown:
        sentences.append(
            f"{config.path.name} has settings that FedAudit does not know ({'; '.join(config.unknown)}): if they "
            "change what an adapted layer computes, attacks ask another model than the trained one."
        )
    if config.start is False:
        sentences.append(
            f"The adapter started from random numbers ({config.path.name}: init_lora_weights is false): the model "
            "before training was not the backbone."
        )
    if config.of_backbone:
        sentences.append(
            f"The backbone is used less what the first adapter does, as {config.path.name} says (init_lora_weights "
            f"{config.start})."
        )
    return tuple(sentences)


def read_owners(files: OwnFiles, names: ClientNames) -> dict[int, TensorFile]:
    """The true models of clients in `owners/`, by client; {} if there is no such folder. InputError: an unexpected or
    unreadable file."""
    folder = files.root / "owners"
    paths = numbered(files, folder, "client", names=names) if os.path.lexists(folder) else {}
    return {k: read_adapter(files, path) for k, path in paths.items()}


def read_scales(
    path: Path, stated: Mapping[str, float], model: TensorFile, config: PeftConfig | None
) -> dict[str, float]:
    """The scale of each layer as the model's modules had it, which run.json (`path`) states; {} if it does not.
    InputError: layers are not those of the first global `model`, or a `config` states another scale."""
    scales = {(canonical(f"{layer}.A") or f"{layer}.A")[:-2]: float(scale) for layer, scale in stated.items()}
    layers = {name[:-2] for name in model.shapes}
    if scales and scales.keys() != layers:
        other = min(scales.keys() ^ layers)
        has, lacks = ("scaling", model.path) if other in scales else (model.path, "scaling")
        raise InputError(f"{path}: {has} has the layer {one_line(other)}, which {lacks} lacks")
    for layer, scale in scales.items():
        if config and not math.isclose(scale, config.scale(layer), rel_tol=1e-6):
            raise InputError(
                f"{path}: scaling of {layer} is {scale:g}, and {config.path} makes it {config.scale(layer):g}"
            )
    return scales


def check_tensors(
    models: Sequence[TensorFile], uploads: Sequence[Mapping[int, TensorFile]], owners: Mapping[int, TensorFile],
    config: PeftConfig | None, *, several: bool = False,
) -> int:  # fmt: skip
    """Check names and shapes of all tensors against the first global model, and return its rank, with a `config` the
    one that this states. With `several`, uploads may have other ranks, and so may layers and later models without a
    `config`. InputError: they do not fit, or a client in `owners` never took part."""
    rank = _check_global(models[0], config, several=several)
    _check_adapter_names([*models, *owners.values(), *(message for sent in uploads for message in sent.values())])
    for model in models[1:]:
        if several and config:
            _check_global(model, config, several=several)
        _check_message(model, models[0], whole=True, several=several)
    for message in (message for sent in uploads for message in sent.values()):
        _check_message(message, models[0], whole=False, several=several)
    for client, owner in owners.items():
        if not any(client in sent for sent in uploads):
            raise InputError(f"{owner.path}: client {client} took part in no round, so that it has no model of its own")
        _check_owner(owner, models[0])
    return rank


def without_b(adapter: TensorFile) -> TensorFile:
    """The adapter with B zero, so that it changes nothing: what peft starts from."""
    return dataclasses.replace(adapter, factors={name: 0.0 for name in adapter.shapes if name.endswith(".B")})


Uploads = Sequence[Mapping[int, TensorFile]]


def scaled(
    models: Sequence[TensorFile], uploads: Uploads, private: Uploads, scale_of: Callable[[str], float], scale: float
) -> tuple[list[TensorFile], list[dict[int, TensorFile]], list[dict[int, TensorFile]]]:
    """Return the adapters so that they are read with one `scale` for all layers: the factor B of each is multiplied by
    the ratio to its own, `scale_of`."""
    ratio = {name: scale_of(name[:-2]) / scale for name in models[0].shapes if name.endswith(".B")}
    factors = {name: factor for name, factor in ratio.items() if not math.isclose(factor, 1, rel_tol=1e-6)}

    def change(adapter: TensorFile) -> TensorFile:
        return dataclasses.replace(adapter, factors={**factors, **adapter.factors})

    return (
        [change(model) for model in models],
        [{k: change(message) for k, message in sent.items()} for sent in uploads],
        [{k: change(owner) for k, owner in owners.items()} for owners in private],
    )


def read_adapter(files: OwnFiles, path: Path) -> TensorFile:
    """Read the header of an adapter file. InputError: unreadable, truncated, or a tensor that is no factor."""
    names: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    entries = read_header(files, path)
    for in_file, entry in entries.items():
        name, shape = canonical(in_file), entry["shape"]
        if name is None:
            raise InputError(
                f"{path}: {one_line(in_file)} is no name of an adapter's tensor; valid are "
                "layers.0.self_attn.q_proj.A (or .B) and peft's ...layers.0.self_attn.q_proj.lora_A.weight"
            )
        if name in names:
            both = f"{one_line(names[name])} and {one_line(in_file)} are both {one_line(name)}"
            raise InputError(
                f"{path}: {both}; each tensor once, of the language model alone: train with target_modules that match "
                "no other part, as a pattern .*language_model.*q_proj"
            )
        if entry["dtype"] not in ROUNDING or len(shape) != 2 or 0 in shape:
            raise InputError(
                f"{path}: {in_file} is {one_line(entry['dtype'])} {one_line(str(shape))}, where a factor of an "
                f"adapter is a matrix of {', '.join(ROUNDING)}"
            )
        names[name], shapes[name] = in_file, (shape[0], shape[1])
    return TensorFile(path, names, shapes, size_of(entries), precision_of(entries))


def _check_adapter_names(adapters: Sequence[TensorFile]) -> None:
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


def _check_global(adapter: TensorFile, config: PeftConfig | None, *, several: bool) -> int:
    """The rank of a global model. InputError: no tensors, A without B or B without A, or several ranks that neither a
    `config` states nor `several` allows."""
    shapes = adapter.shapes
    if not shapes:
        raise InputError(f"{adapter.path} holds no tensors; a global model has a pair A and B per adapted layer")
    rank = next(rank_of(name, shape) for name, shape in shapes.items())
    for name, shape in shapes.items():
        other = partner(name)
        if other not in shapes:
            raise InputError(f"{adapter.path}: {name} is there without {other}; a global model has both of each layer")
        if config and rank_of(name, shape) != config.layer_rank(name[:-2]):
            raise InputError(
                f"{adapter.path}: {name} has rank {rank_of(name, shape)}, where {config.path} states "
                f"{config.layer_rank(name[:-2])}"
            )
        if not config and not several and rank_of(name, shape) != rank:
            raise InputError(
                f"{adapter.path}: {name} has rank {rank_of(name, shape)} where {next(iter(shapes))} has {rank}; all "
                f"layers of a run have one rank, unless peft's {NAME} beside run.json states others, or {SAY_SCALE}"
            )
    check_pairs(adapter)
    present = {name.split(".")[-2] for name in shapes}
    numbers = {int(part) for name in shapes for part in name.split(".") if part.isdecimal()}
    if config and config.numbers is not None and numbers != config.numbers:
        raise InputError(
            f"{adapter.path} holds adapters of the layers {one_line(str(sorted(numbers)))}, and {config.path} says "
            f"{one_line(str(sorted(config.numbers)))} (layers_to_transform)"
        )
    if config and not config.partial and (absent := sorted(set(config.targets) - present)):
        raise InputError(
            f"{adapter.path} holds no adapter of {absent[0]}, which {config.path} names in target_modules; it has "
            f"{', '.join(sorted(present))}"
        )
    return config.rank if config else rank


def _check_message(adapter: TensorFile, model: TensorFile, *, whole: bool, several: bool) -> None:
    """InputError unless the tensors fit the global `model`, with `several` those of other ranks too; with `whole`, none
    of its tensors may be missing."""
    for name, shape in adapter.shapes.items():
        check_fits(adapter, name, model)
        rank, fitting = rank_of(name, shape), rank_of(name, model.shapes[name])
        if rank != fitting and not several:
            raise InputError(
                f"{adapter.path}: {name} has rank {rank} where the global model ({model.path}) has {fitting}; "
                f"where ranks differ, {SAY_SCALE}"
            )
    check_pairs(adapter)
    absent = sorted(model.shapes.keys() - adapter.shapes.keys())
    if whole and absent:
        raise InputError(f"{adapter.path} lacks {absent[0]}, which {model.path} has")


def _check_owner(adapter: TensorFile, model: TensorFile) -> None:
    """InputError unless the adapter has both factors A and B, of a rank of its own in each layer, for exactly the
    layers of the global `model`."""
    for name in sorted(model.shapes.keys() | adapter.shapes.keys()):
        if name not in adapter.shapes:
            raise InputError(f"{adapter.path} lacks {name}; a client's own model is a whole adapter")
        if name not in model.shapes:
            raise InputError(f"{adapter.path}: {name} is not in the global model ({model.path})")
        shape, rank = adapter.shapes[name], rank_of(partner(name), adapter.shapes.get(partner(name), (0, 0)))
        fitting = (rank, model.shapes[name][1]) if name.endswith(".A") else (model.shapes[name][0], rank)
        if rank and shape != fitting:
            raise InputError(
                f"{adapter.path}: {name} has shape {list(shape)} where {list(fitting)} would fit the model"
            )


def check_fits(adapter: TensorFile, name: str, model: TensorFile) -> None:
    """InputError unless the global `model` has the tensor `name`, of the same shape but for its rank."""
    if name not in model.shapes:
        raise InputError(f"{adapter.path}: {name} is not in the global model ({model.path})")
    shape, fitting = adapter.shapes[name], model.shapes[name]
    outer = 1 if name.endswith(".A") else 0
    if shape[outer] != fitting[outer]:
        raise InputError(f"{adapter.path}: {name} has shape {list(shape)} where the global model has {list(fitting)}")


def check_pairs(adapter: TensorFile) -> None:
    """InputError if the factors A and B of a layer have different ranks."""
    for name, shape in adapter.shapes.items():
        other = partner(name)
        if other in adapter.shapes and rank_of(name, shape) != rank_of(other, adapter.shapes[other]):
            raise InputError(
                f"{adapter.path}: {name} has rank {rank_of(name, shape)} and {other} has "
                f"{rank_of(other, adapter.shapes[other])}; the factors of a layer have one rank"
            )


def partner(name: str) -> str:
    """Name of the other factor of the same layer."""
    return name[:-1] + ("B" if name.endswith("A") else "A")


def rank_of(name: str, shape: Shape) -> int:
    """Rank of a factor."""
    return shape[0] if name.endswith(".A") else shape[1]
