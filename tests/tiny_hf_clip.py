"""Tiny CLIPModels of transformers with random weights, saved as Hugging Face's folders, with the word-level tokenizer of `tiny_clip`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from tests import tiny_clip

TOWER = {"hidden_size": 32, "intermediate_size": 70, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = TOWER | {"max_position_embeddings": tiny_clip.CONTEXT_LENGTH, "vocab_size": len(tiny_clip.VOCABULARY),
                "bos_token_id": tiny_clip.VOCABULARY["<start>"], "eos_token_id": tiny_clip.VOCABULARY["<end>"]}  # fmt: skip
VISION = TOWER | {"hidden_size": 48, "intermediate_size": 100, "image_size": 32, "patch_size": 8}


def model(*, activation: str = "quick_gelu", text: dict[str, Any] = TEXT, vision: dict[str, Any] = VISION) -> Any:
    """Weights are larger than initial ones, so that every part of the model matters."""
    described = [{"hidden_act": activation} | tower for tower in (text, vision)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        built = CLIPModel(CLIPConfig(text_config=described[0], vision_config=described[1], projection_dim=24))
        for name, weight in built.named_parameters():
            if name != "logit_scale":
                weight.data += 0.1 * torch.randn_like(weight)
    return built.eval()


def save(folder: Path, **more: Any) -> Path:
    """A folder with such a model."""
    return put(model(**more), folder, 32)


def put(built: Any, folder: Path, size: int, *, shard: str = "1GB") -> Path:
    """A folder with a model of transformers, as its authors would publish it; weights in files of at most `shard`."""
    built.save_pretrained(folder, max_shard_size=shard)
    CLIPImageProcessor(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size},
        image_mean=tiny_clip.MEAN, image_std=tiny_clip.STD,
    ).save_pretrained(folder)  # fmt: skip
    tiny_clip.tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
