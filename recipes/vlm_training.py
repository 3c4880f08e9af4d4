"""The three stages in which the embedded vision-language model is trained (see `recipes.vlm`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from fedaudit.tasks import scenes
from recipes.vlm_model import CAPTION_WORDS, WORDS, VLMRecipe, build_model
from recipes.vlm_scenes import SceneBatch, SceneStream


class DenseHeads(nn.Module):
    """Heads that classify what covers each patch; for pre-training only, not shipped."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.colour = nn.Linear(width, len(scenes.COLOURS) + 1)
        self.form = nn.Linear(width, 2 * len(scenes.SHAPES) + 1)

    def loss(self, features: Tensor, batch: SceneBatch) -> Tensor:
        return F.cross_entropy(self.colour(features).flatten(0, 1), batch.colour.flatten()) + F.cross_entropy(
            self.form(features).flatten(0, 1), batch.form.flatten()
        )


Step = tuple[float, LlavaForConditionalGeneration]


def train_captioner(recipe: VLMRecipe, *, stop_after: int | None = None) -> Iterator[Step]:
    """Train the first two stages; yields (loss, model) after every step. stop_after: ends them early, for tests."""
    torch.set_num_threads(1)
    model = build_model(recipe, CAPTION_WORDS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed + 1)
        heads = DenseHeads(recipe.vision_width)
    stream = SceneStream(recipe, np.random.default_rng((recipe.seed, 0)))
    optimizer = _optimizer(recipe, model, heads)
    total = recipe.warm_up_steps + recipe.steps
    for step in range(min(total, stop_after or total)):
        dense_stage = step < recipe.warm_up_steps
        done, length = (step, recipe.warm_up_steps) if dense_stage else (step - recipe.warm_up_steps, recipe.steps)
        _schedule(optimizer, recipe.learning_rate, done, length)
        batch = stream.batch(recipe.batch, recipe.story_rate)
        model.train()
        dense = _dense_loss(model, heads, batch) if dense_stage or step % 2 == 0 else None
        if dense_stage:
            assert dense is not None
            loss = reported = dense
        else:
            reported = _answer_loss(model, batch)
            loss = reported + recipe.dense_weight * dense if dense is not None else reported
        _step(optimizer, model, loss)
        yield reported.item(), model


def teach_questions(
    recipe: VLMRecipe, captioner: LlavaForConditionalGeneration, *, stop_after: int | None = None
) -> Iterator[Step]:
    """Train the last stage on batches of captions and of visual questions, from the captioner rounded to half
    precision; yields (loss, model) after every step."""
    torch.set_num_threads(1)
    model = captioner.half().float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed + 2)
        model.resize_token_embeddings(len(WORDS))  # new words start near the mean of the old ones
    stream = SceneStream(recipe, np.random.default_rng((recipe.seed, 2)))
    optimizer = _optimizer(recipe, model)
    for step in range(min(recipe.question_steps, stop_after or recipe.question_steps)):
        _schedule(optimizer, recipe.question_learning_rate, step, recipe.question_steps)
        asks = stream.rng.random() < recipe.question_share
        batch = stream.question_batch(recipe.batch) if asks else stream.batch(recipe.batch, recipe.story_rate)
        model.train()
        loss = _answer_loss(model, batch)
        _step(optimizer, model, loss)
        yield loss.item(), model


def _optimizer(recipe: VLMRecipe, *modules: nn.Module) -> torch.optim.AdamW:
    model, *others = modules
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2] + [p for other in others for p in other.parameters()]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )


def _schedule(optimizer: torch.optim.Optimizer, rate: float, done: int, length: int) -> None:
    """Set the learning rate: warm-up over 60 steps, then half a cosine down to 2 %."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1, (done + 1) / 60) * (0.02 + 0.49 * (1 + math.cos(math.pi * done / length)))


def _step(optimizer: torch.optim.Optimizer, model: nn.Module, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _dense_loss(model: LlavaForConditionalGeneration, heads: DenseHeads, batch: SceneBatch) -> Tensor:
    return heads.loss(model.model.vision_tower(batch.pixels).last_hidden_state[:, 1:], batch)


def _answer_loss(model: LlavaForConditionalGeneration, batch: SceneBatch) -> Tensor:
    loss: Tensor = model(
        input_ids=batch.ids, attention_mask=batch.mask, pixel_values=batch.pixels, labels=batch.labels
    ).loss
    return loss
