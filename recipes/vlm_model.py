"""The embedded vision-language model before training: the recipe with all its choices, tokenizer, processor,
network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from fedaudit.tasks import questions, scenes

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<image>")
PAD, BOS, EOS, UNK, IMAGE = range(len(SPECIAL))
TEMPLATE = "Briefly describe given image.\nUSER: <image>\nA short image description:\nASSISTANT:"  # FedRand A.2
TEMPLATE_WORDS = tuple("briefly describe given image user : short description assistant".split())
CAPTION_WORDS = tuple(dict.fromkeys(SPECIAL + TEMPLATE_WORDS + scenes.vocabulary()))
WORDS = tuple(dict.fromkeys(CAPTION_WORDS + questions.WORDS))  # the captioner's words keep their ids
MEAN, STD = 0.5, 0.3  # of the pixel values in [0, 1]


@dataclass(frozen=True)
class VLMRecipe:
    """Every choice of the pre-training; the defaults are the shipped model."""

    seed: int = 0
    patch: int = 8  # pixels
    vision_width: int = 128
    vision_layers: int = 4
    text_width: int = 192
    text_inner: int = 512
    text_layers: int = 6
    heads: int = 4
    warm_up_steps: int = 700  # dense stage, vision tower alone
    steps: int = 2800  # joint stage
    batch: int = 64
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    dense_weight: float = 0.3  # of the dense loss in the joint stage
    story_rate: float = 0.35  # captions that go on with a story
    question_steps: int = 1600  # last stage
    question_share: float = 0.6  # batches of the last stage that are questions
    question_learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if scenes.SIZE % self.patch:
            raise ValueError(f"patch must divide {scenes.SIZE} pixels, not {self.patch}")

    @property
    def patches(self) -> int:
        return (scenes.SIZE // self.patch) ** 2


def build_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """Word-level tokenizer over the scenes' vocabulary; a sequence starts with <bos>, and nothing is appended."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        padding_side="right",
        model_max_length=128,
    )


def build_processor(recipe: VLMRecipe) -> LlavaProcessor:
    image_processor = CLIPImageProcessor(
        size={"shortest_edge": scenes.SIZE}, crop_size={"height": scenes.SIZE, "width": scenes.SIZE},
        do_convert_rgb=True, image_mean=[MEAN] * 3, image_std=[STD] * 3,
    )  # fmt: skip
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=recipe.patch,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )


def build_model(recipe: VLMRecipe, words: Sequence[str] = WORDS) -> LlavaForConditionalGeneration:
    """The untrained model; `recipe.seed` decides its initial weights."""
    vision = CLIPVisionConfig(
        hidden_size=recipe.vision_width,
        intermediate_size=3 * recipe.vision_width,
        num_hidden_layers=recipe.vision_layers,
        num_attention_heads=recipe.heads,
        image_size=scenes.SIZE,
        patch_size=recipe.patch,
        projection_dim=recipe.vision_width,
    )
    text = LlamaConfig(
        vocab_size=len(words),
        hidden_size=recipe.text_width,
        intermediate_size=recipe.text_inner,
        num_hidden_layers=recipe.text_layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        image_seq_length=recipe.patches,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LlavaForConditionalGeneration(config)
