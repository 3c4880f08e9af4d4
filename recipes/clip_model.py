"""The embedded CLIP models before training: the recipe with all its choices, and both towers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from recipes.symbol_captions import CONTEXT, vocabulary
from recipes.symbols import SYMBOLS

MEAN, STD = 0.5, 0.3  # of the pixel values in [0, 1]
BLANK_STD = 0.02  # of the initial vectors of prompt learning (CoOp, arXiv 2109.01134)
TOWERS: dict[str, dict[str, Any]] = {
    "vit": {"image_size": drawings.SIZE, "layers": 5, "width": 128, "head_width": 32, "patch_size": 8},
    "resnet": {"image_size": drawings.SIZE, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32},
}


@dataclass(frozen=True)
class CLIPRecipe:
    """Every choice of the pre-training; `SHIPPED` holds those of the two shipped models."""

    tower: str = "vit"
    seed: int = 0
    steps: int = 3600
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warm_up: int = 150  # steps until the learning rate is reached
    pool: int = 60_000  # pictures, mild ones first
    widen: int = 1500  # steps until all of the pool is in use
    naming_share: float = 0.65  # batches; all of the first 120
    head_weight: float = 1.0  # of the loss of a linear head that classifies the symbol; it is not shipped
    sense_steps: int = 1200  # second stage
    sense_batch: int = 160
    sense_rate: float = 1e-3
    sense_pool: int = 24_000  # pictures
    blank_share: float = 0.5  # batches of the second stage with blank vectors before the captions
    blanks: int = 18  # of these vectors, at most
    text_width: int = 96
    text_layers: int = 3
    text_heads: int = 3
    embed: int = 128

    def __post_init__(self) -> None:
        if self.tower not in TOWERS:
            raise ValueError(f"tower must be one of {', '.join(TOWERS)}, not {self.tower}")


SHIPPED = {"vit": CLIPRecipe(), "resnet": CLIPRecipe(tower="resnet", steps=2500, widen=1000)}


def model_config(recipe: CLIPRecipe, stage: int = 2) -> dict[str, Any]:
    """The architecture of a recipe's model as open_clip's model_cfg; the first stage knows fewer words."""
    return {
        "embed_dim": recipe.embed,
        "vision_cfg": TOWERS[recipe.tower],
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": len(vocabulary(stage)),
            "width": recipe.text_width,
            "heads": recipe.text_heads,
            "layers": recipe.text_layers,
        },
    }


def build_model(recipe: CLIPRecipe, stage: int = 2) -> open_clip.CLIP:
    """The untrained model; `recipe.seed` decides its initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return open_clip.CLIP(**model_config(recipe, stage))


def build_head(recipe: CLIPRecipe) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed + 1)
        return nn.Linear(recipe.embed, len(SYMBOLS))


def normalise(pictures: Tensor) -> Tensor:
    """Convert pictures, uint8 [n, 3, S, S], to the image tower's input."""
    return (pictures.float() / 255 - MEAN) / STD


def encode_text(model: open_clip.CLIP, ids: Tensor, blanks: Tensor | None = None) -> Tensor:
    """Unit features [n, E] of padded token ids [n, T <= CONTEXT]; `blanks` [n, k, d] go between start and words.
    Padding can be cut because the tower is causal."""
    x, ends = model.token_embedding(ids), ids.argmax(1)
    if blanks is not None:
        x, ends = torch.cat([x[:, :1], blanks, x[:, 1:]], 1), ends + blanks.shape[1]
    length = x.shape[1]
    x = x + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return F.normalize(x[torch.arange(len(ids)), ends] @ model.text_projection, dim=-1)


def tokenize(tokenizer: PreTrainedTokenizerFast, captions: Sequence[str]) -> Tensor:
    """Padded ids [n, T], T <= CONTEXT."""
    return tokenizer(list(captions), padding=True, truncation=True, return_tensors="pt")["input_ids"]


@torch.no_grad()
def encode_pictures(model: open_clip.CLIP, pixels: Tensor) -> Tensor:
    """Unit features [n, E] of uint8 pictures [n, 3, S, S]."""
    return torch.cat([F.normalize(model.visual(normalise(part)), dim=-1) for part in pixels.split(250)])
