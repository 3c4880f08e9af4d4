"""A tiny LLaVA with random weights, saved with a working processor, as if it had been downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = (
    "<pad> <bos> <eos> <unk> <image> <video> <|image_pad|> <|video_pad|> <|vision_start|> <|vision_end|> "
    "<start_of_image> <end_of_image> <image_soft_token> <img> </img> <IMG_CONTEXT> <fake_token_around_image> "
    "<global-img> <end_of_utterance> <|image|> [IMG] [IMG_BREAK] [IMG_END]"
).split()
TILES = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
WORDS = (
    "describe the picture USER ASSISTANT : . a an cat dog bird red blue on under table chair small large what is this"
).split()
ROLES = {
    "image_token": "<image>",
    "video_token": "<video>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
}
VOCABULARY = list(dict.fromkeys([*SPECIAL, *TILES, *WORDS]))
ID = {word: i for i, word in enumerate(VOCABULARY)}
SIZE, PATCH, WIDTH = 16, 4, 32  # pixels, pixels, features
TEXT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.4,
}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
PIXELS = {"do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
SQUARE = {"height": SIZE, "width": SIZE}


def tokenizer(*, pad: str | None = "<pad>", **roles: str) -> Any:
    """Word-level; `roles` name special tokens that a processor asks for by attribute."""
    built = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", ID["<bos>"])])
    return t.PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token=pad, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        extra_special_tokens=[*SPECIAL[4:], *TILES], model_specific_special_tokens=roles or None,
    )  # fmt: skip


def llava(text: Any = None) -> tuple[Any, Any]:
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**VISION), text_config=text or t.LlamaConfig(**TEXT),
        image_token_index=ID["<image>"], vision_feature_layer=-2, image_seq_length=16, tie_word_embeddings=False,
    )  # fmt: skip
    images = t.CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=SQUARE, **PIXELS)
    processor = t.LlavaProcessor(
        images, tokenizer(), patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return t.LlavaForConditionalGeneration(config), processor


def save(folder: Path, build: Callable[[], tuple[Any, Any]], *, shard: str = "1GB") -> Path:
    """The model that `build` makes from one seed, in `folder`; weights in files of at most `shard`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = build()
    model.save_pretrained(folder, max_shard_size=shard)
    processor.save_pretrained(folder)
    return folder
