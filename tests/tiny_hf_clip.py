"""Tiny CLIPModels of transformers with random weights, saved as Hugging Face's folders, with the word-level tokenizer of `tiny_clip`."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from fedaudit.contracts import tiny_clip

TOWER = {"hidden_size": 32, "intermediate_size": 70, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = TOWER | {"max_position_embeddings": tiny_clip.CONTEXT_LENGTH, "vocab_size": len(tiny_clip.VOCABULARY),
                "bos_token_id": tiny_clip.VOCABULARY["<start>"], "eos_token_id": tiny_clip.VOCABULARY["<end>"]}  # fmt: skip
VISION = TOWER | {"hidden_size": 48, "intermediate_size": 100, "image_size": 32, "patch_size": 8}

MINIATURE = "a photo of the cat cats dog it is isn ' t 's big café naïve 日本 ! ? 0 1 7 . , ( )".split()


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


def save_older(folder: Path) -> Path:
    """A folder with such a model and a miniature of CLIP's vocabulary in two files."""
    merges = miniature_merges()
    size = 2 * len(byte_symbols()) + len(merges) + 2
    save(folder, text=TEXT | {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1})
    put_older(folder, merges)
    return folder


def put_older(folder: Path, merges: list[tuple[str, str]]) -> None:
    """vocab.json and merges.txt as older folders hold CLIP's byte pairs, in the place of tokenizer.json."""
    symbols = byte_symbols().values()
    words = [*symbols, *(f"{symbol}</w>" for symbol in symbols), *("".join(pair) for pair in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink(missing_ok=True)


def byte_symbols() -> dict[int, str]:
    """What byte pairs write for every byte, in the order of CLIP's vocabulary."""
    from open_clip.tokenizer import bytes_to_unicode

    symbols: dict[int, str] = bytes_to_unicode()
    return symbols


def miniature_merges() -> list[tuple[str, str]]:
    """The pairs that put the words of MINIATURE together from the left, symbol by symbol."""
    pairs: dict[tuple[str, str], None] = {}
    for word in MINIATURE:
        parts = [byte_symbols()[byte] for byte in word.encode()]
        parts[-1] += "</w>"
        while len(parts) > 1:
            pairs[parts[0], parts[1]] = None
            parts[:2] = ["".join(parts[:2])]
    return list(pairs)


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
