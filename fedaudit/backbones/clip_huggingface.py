"""Hugging Face's CLIPModel as a model of open_clip: other names, and q, k and v in one tensor."""

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones.clip_files import QUICK_GELU
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

_TOWERS = {"text_model": "", "vision_model": "visual."}
_NAMES = {  # tensors outside the residual blocks
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",  # so spelt there
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
}
_TURNED = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}  # y = x W, not x Wᵀ
_PARTS = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_BLOCK = re.compile(r"(text_model|vision_model)\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_RESAMPLING = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def build_model(source: ClipSource) -> Any:
    """The open_clip model that the configuration in a Hugging Face folder describes, randomly initialised, with its
    `preprocess_cfg`."""
    from open_clip import CLIP
    from open_clip.factory import set_model_preprocess_cfg
    from transformers import CLIPConfig

    config = CLIPConfig.from_pretrained(source.folder, local_files_only=True)
    vision, text = config.vision_config, config.text_config
    model = CLIP(
        config.projection_dim,
        {
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "head_width": vision.hidden_size // vision.num_attention_heads,
            **_transformer(vision),
        },
        {
            "context_length": text.max_position_embeddings,
            "vocab_size": text.vocab_size,
            "heads": text.num_attention_heads,
            **_transformer(text),
        },
        quick_gelu=source.activation == QUICK_GELU,
    )
    set_model_preprocess_cfg(model, _preprocessing(source, vision.image_size))
    return model


def _transformer(tower: Any) -> dict[str, Any]:
    """The part of open_clip's configuration of one tower that has the same keys for text and vision."""
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "mlp_ratio": (tower.intermediate_size + 0.5) / tower.hidden_size,  # open_clip rounds width times ratio down
        "norm_kwargs": {"eps": tower.layer_norm_eps},
    }


def to_open_clip_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{open_clip's name: tensor}, q, k and v joined, projections transposed. Left out are position_ids, and q, k, v of
    a layer that lacks one; tensors that CLIPModel does not have keep their name."""
    tensors_by_name: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("position_ids"):  # a buffer that older versions stored
            continue
        if block := _BLOCK.fullmatch(name):
            tower, number, part, kind = block.groups()
            place = f"{_TOWERS[tower]}transformer.resblocks.{number}"
            parts = [f"{name.partition('self_attn.')[0]}self_attn.{one}_proj.{kind}" for one in "qkv"]
            if name not in parts:
                tensors_by_name[f"{place}.{_PARTS.get(part, part)}.{kind}"] = tensor
            elif all(one in tensors for one in parts):
                tensors_by_name[f"{place}.attn.in_proj_{kind}"] = torch.cat([tensors[one] for one in parts])
        elif name in _TURNED:
            tensors_by_name[_TURNED[name]] = tensor.t()
        else:
            tensors_by_name[_NAMES.get(name, name)] = tensor
    return tensors_by_name


def _preprocessing(source: ClipSource, size: int) -> dict[str, Any]:
    """Image preprocessing as open_clip's preprocess_cfg, from the folder's own file. InputError if open_clip cannot do
    it."""
    assert source.images is not None
    content = json.loads(user_files.read_bytes(source.images))
    settings = content.get("image_processor", content)
    edges = [_edge(settings.get(name, size)) for name in ("size", "crop_size")]
    steps = all(settings.get(f"do_{step}", True) for step in ("resize", "center_crop", "rescale", "normalize"))
    interpolation = _RESAMPLING.get(settings.get("resample", 3))
    if edges != [size, size] or interpolation is None or not steps:
        raise InputError(
            f"--backbone {source.folder}: {source.images.name} must resize the shorter side to {size} (bilinear or "
            f"bicubic), cut out {size} x {size}, rescale and normalise, as CLIP does"
        )
    return {
        "size": size,
        "mode": "RGB",
        "mean": tuple(settings["image_mean"]),
        "std": tuple(settings["image_std"]),
        "interpolation": interpolation,
        "resize_mode": "shortest",
        "fill_color": 0,
    }


def _edge(size: Any) -> Any:
    """The shorter side of a size, which older folders give as a number."""
    return size.get("shortest_edge", size.get("height")) if isinstance(size, dict) else size
