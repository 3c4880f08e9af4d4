"""Build the open_clip model of a source and load its weights: tensors only, never pickled objects."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones import clip_huggingface
from fedaudit.backbones.clip_files import QUICK_GELU
from fedaudit.backbones.clip_source import RANDOM_SEED, ClipSource, architectures_of
from fedaudit.backbones.weight_files import UnfitFile, read_weights
from fedaudit.machinery.errors import InputError

_TAGGED = ("mean", "std", "interpolation", "resize_mode")  # image preprocessing in a tag of open_clip


def open_model(where: str, source: ClipSource, *, numbers: bool = True) -> Any:
    """The open_clip model of a source in float32, with its `preprocess_cfg`; weights are random from a fixed seed if
    the source has none. Without `numbers` it lies on the device "meta", and of the weights only names and shapes are
    read. InputError, beginning with `where`: the weights do not fit."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu" if numbers else "meta") as device:
        torch.default_generator.manual_seed(RANDOM_SEED)
        model = clip_huggingface.build_model(source) if source.huggingface else _build(source, str(device))
    if source.weights is None:
        return model
    try:
        tensors = _tensors(source, numbers)
        model.load_state_dict(_fitted(model, tensors))
    except Exception as error:  # the user's files can raise anything
        raise InputError(f"{where}: {_misfit(model, source, error)}") from error
    return model


def _fitted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by open_clip's names as `model` has them: as open_clip's own load_checkpoint does, which reads files by
    other ways."""
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed

    state: dict[str, Tensor] = convert_state_dict(model, tensors)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    if "logit_scale" in state:  # a number, or a vector of one
        state["logit_scale"] = state["logit_scale"].reshape(model.logit_scale.shape)
    resize_pos_embed(state, model)
    resize_text_pos_embed(state, model)
    return state


def _build(source: ClipSource, device: str) -> Any:
    import open_clip

    tag = open_clip.get_pretrained_cfg(source.architecture, source.tag) if source.tag else {}
    return open_clip.create_model(
        source.architecture or f"local-dir:{source.folder}",
        load_weights=False,
        device=device,
        force_quick_gelu=source.activation == QUICK_GELU,
        force_preprocess_cfg={key: tag[key] for key in _TAGGED if key in tag},
    )


def _tensors(source: ClipSource, numbers: bool) -> dict[str, Tensor]:
    """All tensors of the weights or their shards, by open_clip's names. UnfitFile: a file holds none; ValueError: a
    name stands twice."""
    tensors: dict[str, Tensor] = {}
    for file in source.shards or (source.weights,):
        assert file is not None
        part = read_weights(file).load(numbers=numbers)
        if twice := part.keys() & tensors.keys():
            raise ValueError(f"{file} holds {min(twice)} once more")
        tensors |= part
    return clip_huggingface.to_open_clip_names(tensors) if source.huggingface else tensors


def _misfit(model: Any, source: ClipSource, error: Exception) -> str:
    """Why the weights do not fit the model, as part of a sentence."""
    assert source.weights is not None
    file, kind = source.weights.name, source.architecture or "the model in its configuration"
    if isinstance(error, UnfitFile):
        return f"{file} {error}"
    try:
        tensors = _tensors(source, False)
    except Exception:  # the user's files can raise anything
        return f"{file} cannot be loaded: it is damaged, or its shards do not belong together"
    fitting = architectures_of({name: tuple(one.shape) for name, one in tensors.items()}) if source.architecture else []
    other = f"; it is a {' or '.join(fitting)}" if fitting and source.architecture not in fitting else ""
    return f"{file} does not hold {kind}: {_difference(model.state_dict(), tensors)}{other}"


def _difference(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> str:
    """The first difference in names and shapes between two sets of tensors, as part of a sentence; "its tensors cannot
    be copied" if there is none."""
    lacking = [name for name in expected if name not in actual]
    if lacking:
        return f"it lacks {len(lacking)} of {len(expected)} tensors, {_shown(lacking[0])} first"
    further = [name for name in actual if name not in expected]
    if further:
        return f"it has {len(further)} tensors that this model has not, {_shown(further[0])} first"
    sizes = ([tuple(one[name].shape) for name in expected] for one in (actual, expected))
    others = [parts for parts in zip(expected, *sizes, strict=True) if parts[1] != parts[2]]
    if others:
        name, its, ours = others[0]
        return f"{len(others)} of {len(expected)} tensors have another size, {name} first: {its}, not {ours}"
    return "its tensors cannot be copied"


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) < 100 else ascii(name)[:100]
