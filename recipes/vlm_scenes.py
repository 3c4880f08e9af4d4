"""Training batches of scenes for the embedded vision-language model: captions, questions, patch targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import questions, scenes
from recipes.vlm_model import EOS, IMAGE, MEAN, PAD, STD, TEMPLATE, VLMRecipe, build_tokenizer


@dataclass(frozen=True)
class SceneBatch:
    """Scenes for the model: pixels [B, 3, S, S], ids and labels [B, T] (-100: no target), patch targets [B, P]."""

    pixels: Tensor
    ids: Tensor
    mask: Tensor
    labels: Tensor
    colour: Tensor
    form: Tensor


class SceneStream:
    """Endless batches of new scenes with captions (a share `story_rate` of them with a story) or questions."""

    def __init__(self, recipe: VLMRecipe, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng
        self.tokenizer = build_tokenizer()
        self.vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self.prompt = self.encode_prompt(TEMPLATE)

    def draw(self, n: int, story_rate: float) -> tuple[list[scenes.Scene], list[str], Tensor]:
        """`n` random scenes, their captions, of which a share `story_rate` has a story, and pixels [n, 3, S, S]."""
        drawn = [scenes.draw_scene(self.rng) for _ in range(n)]
        captions = [
            f"{scene.description} . {scenes.draw_story(self.rng)}"
            if self.rng.random() < story_rate
            else scene.description
            for scene in drawn
        ]
        return drawn, captions, normalise(scenes.render(drawn, self.rng))

    def batch(self, n: int, story_rate: float) -> SceneBatch:
        drawn, captions, pixels = self.draw(n, story_rate)
        return self._batch(drawn, [self.prompt] * n, captions, pixels)

    def question_batch(self, n: int, topics: Sequence[str] = questions.VISUAL) -> SceneBatch:
        """A batch of questions, each topic equally likely."""
        drawn, drawn_questions = self.draw_questions(n, topics)
        prompts = [self.encode_prompt(question.prompt) for question in drawn_questions]
        return self._batch(
            drawn, prompts, [q.answer for q in drawn_questions], normalise(scenes.render(drawn, self.rng))
        )

    def draw_questions(self, n: int, topics: Sequence[str]) -> tuple[list[scenes.Scene], list[questions.Question]]:
        pairs = [questions.draw_question(self.rng, topics[int(self.rng.integers(len(topics)))]) for _ in range(n)]
        return [scene for scene, _ in pairs], [question for _, question in pairs]

    def encode_prompt(self, prompt: str) -> list[int]:
        return expand_prompt(self.tokenizer, self.recipe.patches, prompt)

    def _batch(
        self, drawn: Sequence[scenes.Scene], prompts: Sequence[list[int]], texts: Sequence[str], pixels: Tensor
    ) -> SceneBatch:
        answers = [[self.vocabulary[word] for word in text.split()] + [EOS] for text in texts]
        ids = nn.utils.rnn.pad_sequence(
            [torch.tensor(p + a) for p, a in zip(prompts, answers, strict=True)], batch_first=True, padding_value=PAD
        )
        mask = (ids != PAD).long()
        starts = torch.tensor([len(p) for p in prompts])[:, None]
        labels = torch.where(mask.bool() & (torch.arange(ids.shape[1])[None] >= starts), ids, -100)
        colour, form = patch_targets(drawn, self.recipe.patch)
        return SceneBatch(pixels, ids, mask, labels, torch.from_numpy(colour), torch.from_numpy(form))


def expand_prompt(tokenizer: PreTrainedTokenizerFast, patches: int, prompt: str) -> list[int]:
    """Token ids of a prompt, the image placeholder repeated once per patch."""
    ids: list[int] = tokenizer(prompt)["input_ids"]
    at = ids.index(IMAGE)
    return ids[:at] + [IMAGE] * patches + ids[at + 1 :]


def normalise(images: np.ndarray[Any, Any]) -> Tensor:
    """Convert images, uint8 [n, S, S, 3], to the vision tower's input [n, 3, S, S]."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def patch_targets(drawn: Sequence[scenes.Scene], patch: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(Colours [n, P], forms [n, P]) of the object that covers each of P patches of n scenes, as numbers from 1; a form
    is shape and size; 0: none."""
    side = scenes.SIZE // patch
    centres = (np.arange(side) + 0.5) * patch
    colour = np.zeros((len(drawn), side, side), np.int64)
    form = np.zeros_like(colour)
    colours, shapes = list(scenes.COLOURS), list(scenes.SHAPES)
    for i, scene in enumerate(drawn):
        for thing in scene.things:
            reach = max(0.9 * scenes.RADIUS[thing.size], patch / 2)
            covered = (np.abs(centres[:, None] - thing.y) <= reach) & (np.abs(centres[None, :] - thing.x) <= reach)
            colour[i][covered] = colours.index(thing.colour) + 1
            form[i][covered] = 2 * shapes.index(thing.shape) + (thing.size == "large") + 1
    return colour.reshape(len(drawn), -1), form.reshape(len(drawn), -1)
