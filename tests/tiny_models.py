"""Tiny models of many families with random weights, saved with a working processor, as if they had been downloaded."""

from collections.abc import Callable
from typing import Any

import transformers as t

from fedaudit.contracts.tiny_llava import (  # noqa: F401, others take them from here
    ID,
    PATCH,
    PIXELS,
    ROLES,
    SIZE,
    SQUARE,
    TEXT,
    VISION,
    VOCABULARY,
    WIDTH,
    llava,
    save,
    tokenizer,
)


def vipllava() -> tuple[Any, Any]:
    config = t.VipLlavaConfig(
        vision_config=t.CLIPVisionConfig(**VISION), text_config=t.LlamaConfig(**TEXT),
        image_token_index=ID["<image>"], vision_feature_layers=[-2, -1], image_seq_length=16, tie_word_embeddings=False,
    )  # fmt: skip
    return t.VipLlavaForConditionalGeneration(config), llava()[1]


def llava_next() -> tuple[Any, Any]:
    grid = [[SIZE, 2 * SIZE], [2 * SIZE, SIZE], [2 * SIZE, 2 * SIZE]]
    config = t.LlavaNextConfig(
        vision_config=t.CLIPVisionConfig(**VISION), text_config=t.MistralConfig(**TEXT), image_grid_pinpoints=grid,
        image_token_index=ID["<image>"], vision_feature_layer=-2, tie_word_embeddings=False,
    )  # fmt: skip
    images = t.LlavaNextImageProcessor(
        size={"shortest_edge": SIZE}, crop_size=SQUARE, image_grid_pinpoints=grid, **PIXELS
    )
    processor = t.LlavaNextProcessor(
        images, tokenizer(), patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return t.LlavaNextForConditionalGeneration(config), processor


def llava_onevision() -> tuple[Any, Any]:
    grid = [[SIZE, SIZE], [SIZE, 2 * SIZE], [2 * SIZE, SIZE], [2 * SIZE, 2 * SIZE]]
    config = t.LlavaOnevisionConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False), text_config=t.Qwen2Config(**TEXT),
        image_grid_pinpoints=grid, image_token_index=ID["<image>"], video_token_index=ID["<video>"],
        tie_word_embeddings=False,
    )  # fmt: skip
    images = t.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=grid, **PIXELS)
    video = t.LlavaOnevisionVideoProcessor(size=SQUARE)
    processor = t.LlavaOnevisionProcessor(
        images, tokenizer(), video, num_image_tokens=16, vision_feature_select_strategy="full"
    )
    return t.LlavaOnevisionForConditionalGeneration(config), processor


def paligemma() -> tuple[Any, Any]:
    config = t.PaliGemmaConfig(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False, projection_dim=WIDTH).to_dict(),
        text_config=t.GemmaConfig(**TEXT).to_dict(), image_token_index=ID["<image>"],
        projection_dim=WIDTH, hidden_size=WIDTH, vocab_size=len(VOCABULARY),
    )  # fmt: skip
    images = t.SiglipImageProcessor(size=SQUARE, **PIXELS)
    images.image_seq_length = 16
    return t.PaliGemmaForConditionalGeneration(config), t.PaliGemmaProcessor(images, tokenizer())


def gemma3() -> tuple[Any, Any]:
    text = t.Gemma3TextConfig(**TEXT, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    config = t.Gemma3Config(
        vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False), text_config=text, mm_tokens_per_image=4,
        image_token_index=ID["<image_soft_token>"], boi_token_index=ID["<start_of_image>"],
        eoi_token_index=ID["<end_of_image>"],
    )  # fmt: skip
    roles = {name: ROLES[name] for name in ("boi_token", "eoi_token")} | {"image_token": "<image_soft_token>"}
    images = t.Gemma3ImageProcessor(size=SQUARE, **PIXELS)
    return t.Gemma3ForConditionalGeneration(config), t.Gemma3Processor(images, tokenizer(**roles), image_seq_length=4)


def idefics3() -> tuple[Any, Any]:
    config = t.Idefics3Config(
        vision_config=t.models.idefics3.Idefics3VisionConfig(**VISION), text_config=t.LlamaConfig(**TEXT),
        image_token_id=ID["<image>"], scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    images = t.Idefics3ImageProcessor(size={"longest_edge": 2 * SIZE}, max_image_size={"longest_edge": SIZE}, **PIXELS)
    return t.Idefics3ForConditionalGeneration(config), t.Idefics3Processor(images, tokenizer(), image_seq_len=4)


def internvl() -> tuple[Any, Any]:
    vision = {**VISION, "image_size": [SIZE, SIZE], "patch_size": [PATCH, PATCH]}
    config = t.InternVLConfig(
        vision_config=t.InternVLVisionConfig(**vision), text_config=t.Qwen2Config(**TEXT),
        image_token_id=ID["<IMG_CONTEXT>"], image_seq_length=4, tie_word_embeddings=False,
    )  # fmt: skip
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")
    words = tokenizer(**{name: ROLES[name] for name in names})
    images = t.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=4, **PIXELS)
    processor = t.InternVLProcessor(images, words, t.InternVLVideoProcessor(size=SQUARE), image_seq_length=4)
    return t.InternVLForConditionalGeneration(config), processor


def mistral3() -> tuple[Any, Any]:
    vision = {**VISION, "head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = t.Mistral3Config(
        vision_config=t.PixtralVisionConfig(**vision), text_config=t.MistralConfig(**TEXT), spatial_merge_size=2,
        image_token_index=ID["[IMG]"], vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    images = t.PixtralImageProcessor(size={"longest_edge": 2 * SIZE}, patch_size=PATCH, **PIXELS)
    processor = t.PixtralProcessor(images, tokenizer(), patch_size=PATCH, spatial_merge_size=2)
    return t.Mistral3ForConditionalGeneration(config), processor


CHAT = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


def _qwen(prefix: str, family: str, **vision: Any) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    rope["mrope_interleaved"] = prefix == "Qwen3VL"
    module = getattr(t.models, family)
    config = getattr(module, f"{prefix}Config")(
        vision_config={"depth": 2, "num_heads": 2, "patch_size": PATCH, "temporal_patch_size": 2, "spatial_merge_size": 2, **vision},
        text_config={**TEXT, "rope_parameters": rope}, image_token_id=ID["<|image_pad|>"],
        video_token_id=ID["<|video_pad|>"], vision_start_token_id=ID["<|vision_start|>"],
        vision_end_token_id=ID["<|vision_end|>"], tie_word_embeddings=False,
    )  # fmt: skip
    size = {"shortest_edge": 8 * 8, "longest_edge": 32 * 32}
    images = t.Qwen2VLImageProcessor(patch_size=PATCH, merge_size=2, size=size, **PIXELS)
    video = t.Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=2)
    processor = t.Qwen2VLProcessor(images, tokenizer(), video, chat_template=CHAT)
    return getattr(module, f"{prefix}ForConditionalGeneration")(config), processor


def qwen2_vl() -> tuple[Any, Any]:
    return _qwen("Qwen2VL", "qwen2_vl", embed_dim=16, hidden_size=WIDTH, mlp_ratio=2)


def qwen2_5_vl() -> tuple[Any, Any]:
    return _qwen(
        "Qwen2_5_VL",
        "qwen2_5_vl",
        hidden_size=16,
        intermediate_size=24,
        out_hidden_size=WIDTH,
        window_size=8,
        fullatt_block_indexes=[1],
    )


def qwen3_vl() -> tuple[Any, Any]:
    """Puts features of several depths into several layers: cannot be cached as input embeddings."""
    depths = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    return _qwen("Qwen3VL", "qwen3_vl", hidden_size=16, intermediate_size=24, out_hidden_size=WIDTH, **depths)


def mllama() -> tuple[Any, Any]:
    """Looks at the image by cross-attention: cannot be cached as input embeddings."""
    text = {**TEXT, "cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    text.pop("head_dim")
    config = t.MllamaConfig(
        vision_config={
            "hidden_size": 16, "attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2, "patch_size": PATCH,
            "num_global_layers": 1, "image_size": SIZE, "vision_output_dim": 48, "max_num_tiles": 2,
            "intermediate_layers_indices": [0, 1], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        text_config=text, image_token_index=ID["<|image|>"],
    )  # fmt: skip
    images = t.MllamaImageProcessor(size=SQUARE, max_image_tiles=2, **PIXELS)
    model = t.MllamaForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "gate" in name and "gate_proj" not in name:
            parameter.data.fill_(1.0)  # closed at the start, which would hide the image
    return model, t.MllamaProcessor(images, tokenizer(image_token="<|image|>"))


Maker = Callable[[], tuple[Any, Any]]
_LLAVAS, _QWENS = (llava, vipllava, llava_next, llava_onevision), (qwen2_vl, qwen2_5_vl)
_OTHERS = (paligemma, gemma3, idefics3, internvl, mistral3)
FAMILIES: dict[str, Maker] = {f.__name__: f for f in (*_LLAVAS, *_OTHERS, *_QWENS)}
REFUSED: dict[str, Maker] = {f.__name__: f for f in (qwen3_vl, mllama)}


def logits_of(learner: Any, state: Any, records: Any) -> list[Any]:
    """Logits [T, V] of each record under an adapter."""
    by_index = {i: rows for part in learner.chunks(state, records) for i, rows in part}
    return [by_index[i] for i in range(len(records))]
