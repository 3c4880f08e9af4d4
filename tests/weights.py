"""Weights as people have them, in miniature: a tiny architecture of open_clip, OpenAI's archives, CLIP's own tokenizer."""

import functools
import importlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaudit.backbones import clip_source
from fedaudit.contracts import tiny_clip

PLACE = tempfile.TemporaryDirectory()  # of what tests copy; it ends with the process
DESCRIBED = tiny_clip.config(text={"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1},
                             vision=tiny_clip.VIT | {"width": 64, "head_width": 64})  # fmt: skip


@functools.cache
def _model() -> Path:
    return tiny_clip.save(Path(PLACE.name, "hub"), DESCRIBED)


def two_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny architecture and its twin with QuickGELU, as open_clip's own; the state dict of a model of both."""
    factory = importlib.import_module("open_clip.factory")
    both = {"ViT-tiny": DESCRIBED, "ViT-tiny-quickgelu": DESCRIBED | {"quick_gelu": True}}
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", {**factory._MODEL_CONFIGS, **both})
    for name, model in both.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(model))
    monkeypatch.setattr(clip_source, "_architectures", lambda: {name: tmp_path / f"{name}.json" for name in both})
    return shutil.copytree(_model(), tmp_path / "hub") / "open_clip_model.safetensors"


def archive(tensors: dict[str, Tensor], file: Path) -> Path:
    """A TorchScript archive with these tensors under their names, and the three sizes that OpenAI's hold besides."""
    sizes = {"input_resolution": 32, "context_length": 77, "vocab_size": 49408}
    root = nn.Module()
    for name, tensor in (tensors | {key: torch.tensor(value) for key, value in sizes.items()}).items():
        place = root
        *path, last = name.split(".")
        for part in path:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = getattr(place, part)
        place.register_buffer(last, tensor)
    torch.jit.save(torch.jit.script(root), file)
    return file


@functools.cache
def clip_tokenizer() -> Any:
    """The tokenizer of CLIP as transformers holds it, from the vocabulary that open_clip brings."""
    from open_clip.tokenizer import SimpleTokenizer
    from transformers import CLIPTokenizer

    simple = SimpleTokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(word, word): i for word, i in simple.encoder.items()}
    return CLIPTokenizer(vocab=vocabulary, merges=list(simple.bpe_ranks), model_max_length=77)
