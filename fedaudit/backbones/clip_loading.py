"""Build the open_clip model of a source and load its weights: tensors only, never pickled objects."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones import clip_huggingface
from fedaudit.backbones.clip_files import QUICK_GELU
from fedaudit.backbones.clip_source import RANDOM_SEED, ClipSource
from fedaudit.machinery.errors import InputError

_TAGGED = ("mean", "std", "interpolation", "resize_mode")  # image preprocessing in a tag of open_clip


def open_model(where: str, source: ClipSource) -> Any:
    """The open_clip model of a source in float32, with its `preprocess_cfg`; weights are random from a fixed seed if
    the source has none. InputError, beginning with `where`: the weights do not fit."""
    from open_clip.factory import load_checkpoint

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(RANDOM_SEED)
        model = clip_huggingface.build_model(source) if source.huggingface else _build(source)
    if source.weights is None:
        return model
    try:
        if source.huggingface:
            model.load_state_dict(clip_huggingface.to_open_clip_names(_tensors(source)))
        else:
            load_checkpoint(model, str(source.weights), weights_only=True)
    except Exception as error:  # the user's files can raise anything
        raise InputError(f"{where}: {_misfit(model, source)}") from error
    return model


def _build(source: ClipSource) -> Any:
    import open_clip

    tag = open_clip.get_pretrained_cfg(source.architecture, source.tag) if source.tag else {}
    return open_clip.create_model(
        source.architecture or f"local-dir:{source.folder}",
        load_weights=False,
        force_quick_gelu=source.activation == QUICK_GELU,
        force_preprocess_cfg={key: tag[key] for key in _TAGGED if key in tag},
    )


def _tensors(source: ClipSource) -> dict[str, Tensor]:
    """All tensors of the weights or their shards, by name. ValueError: one is no tensor, or a name stands twice."""
    from open_clip.factory import load_state_dict

    tensors: dict[str, Tensor] = {}
    for file in source.shards or (source.weights,):
        part = load_state_dict(str(file), weights_only=True)
        if not isinstance(part, dict) or not all(isinstance(value, Tensor) for value in part.values()):
            raise ValueError(f"not all values of {file} are tensors")
        if twice := part.keys() & tensors.keys():
            raise ValueError(f"{file} holds {min(twice)} once more")
        tensors |= part
    return tensors


def _misfit(model: Any, source: ClipSource) -> str:
    """Why the weights do not fit the model, as part of a sentence."""
    assert source.weights is not None
    file, kind = source.weights.name, source.architecture or "the model in its configuration"
    try:
        tensors = _tensors(source)
    except Exception:  # the user's files can raise anything
        return (
            f"{file} cannot be loaded: it is damaged, or holds more than tensors by name, which is never unpickled; "
            "save the model's state_dict as *.safetensors"
        )
    if source.huggingface:
        tensors = clip_huggingface.to_open_clip_names(tensors)
    elif "text_model.final_layer_norm.weight" in tensors:
        return f"{file} holds tensors by Hugging Face's names; give the folder with its config.json as --backbone"
    return f"{file} does not hold {kind}: {_difference(model.state_dict(), tensors)}"


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
