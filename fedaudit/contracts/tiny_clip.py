"""Tiny CLIPs with random weights, saved as folders in open_clip's format, with a word-level tokenizer of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "a photo of the digit letter zero one two three four five six seven eight nine red blue big small cat dog mountain "
    "lion ."
).split()
VOCABULARY = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS, "<start>", "<end>"])}
CONTEXT_LENGTH = 32
TEXT = {"context_length": CONTEXT_LENGTH, "vocab_size": len(VOCABULARY), "width": 32, "heads": 4, "layers": 3}
VIT = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def config(*, vision: dict[str, Any] = VIT, text: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"embed_dim": 24, "vision_cfg": vision, "text_cfg": TEXT | (text or {}), **more}


def tokenizer() -> Tokenizer:
    built = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    built.normalizer = normalizers.Lowercase()
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(word, VOCABULARY[word]) for word in ("<start>", "<end>")]
    built.post_processor = processors.TemplateProcessing(single="<start> $A <end>", special_tokens=ends)
    return built


def save(folder: Path, model_cfg: dict[str, Any] | None = None, *, seed: int = 0, half: bool = False) -> Path:
    """Save a model of `model_cfg` in a folder; its weights are larger than initial ones, so that every part of it
    matters."""
    from open_clip.model import CLIP, CustomTextCLIP

    described = model_cfg or config()
    built = {key: value for key, value in described.items() if key != "custom_text"}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = (CustomTextCLIP if described.get("custom_text") else CLIP)(**built)
        for name, weight in model.named_parameters():
            if weight.ndim and name != "logit_scale":
                weight.data += 0.1 * torch.randn_like(weight)
        for name, buffer in model.named_buffers():  # running statistics of the ResNet
            if buffer.is_floating_point() and "running" in name:
                buffer.data = buffer.data + 0.3 * torch.rand_like(buffer)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        key: (t.half() if half and t.is_floating_point() else t).contiguous() for key, t in model.state_dict().items()
    }
    save_file(state, folder / "open_clip_model.safetensors")
    whole = {"model_cfg": described, "preprocess_cfg": {"mean": MEAN, "std": STD}}
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder
