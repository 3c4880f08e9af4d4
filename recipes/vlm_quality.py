"""Quality of the embedded vision-language model on scenes and questions that it was not trained on."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlavaForConditionalGeneration

from fedaudit.tasks import questions
from recipes.vlm_model import PAD, VLMRecipe
from recipes.vlm_scenes import SceneStream


@torch.no_grad()
def evaluate(model: LlavaForConditionalGeneration, recipe: VLMRecipe, n: int = 512) -> dict[str, float]:
    """Quality on `n` held-out scenes, {name: number}: losses of description and story in nats per token, and of
    greedily decoded descriptions "exact", the share right word for word, and "tokens", the share of reference words at
    their position."""
    model.eval()
    stream = SceneStream(recipe, np.random.default_rng((recipe.seed, 1)))
    log_prob, story = [], []
    for _ in range(n // 64):
        batch = stream.batch(64, 1.0)
        logits = model(input_ids=batch.ids, attention_mask=batch.mask, pixel_values=batch.pixels).logits[:, :-1]
        target = batch.labels[:, 1:]
        nats = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100, reduction="none")
        in_story = (target == stream.vocabulary["."]).cumsum(1) > 0
        log_prob.append(nats[(target != -100) & ~in_story])
        story.append(nats[(target != -100) & in_story])
    drawn, _, pixels = stream.draw(n, 0.0)
    words = {i: word for word, i in stream.vocabulary.items()}
    prompt = torch.tensor([stream.prompt])
    exact = right = length = 0
    for start in range(0, n, 64):
        out = model.generate(
            input_ids=prompt.expand(len(pixels[start : start + 64]), -1),
            attention_mask=torch.ones_like(prompt).expand(len(pixels[start : start + 64]), -1),
            pixel_values=pixels[start : start + 64],
            max_new_tokens=16,
            do_sample=False,
        )
        for row, scene in zip(out[:, prompt.shape[1] :].tolist(), drawn[start : start + 64], strict=True):
            answer = [words[i] for i in row]
            answer = answer[
                : next((i for i, word in enumerate(answer) if word in ("<eos>", ".", "<pad>")), len(answer))
            ]
            wanted = scene.description.split()
            exact += answer == wanted
            right += sum(a == b for a, b in zip(answer, wanted, strict=False))
            length += len(wanted)
    return {
        "scenes": n,
        "description_nats_per_token": round(torch.cat(log_prob).mean().item(), 4),
        "story_nats_per_token": round(torch.cat(story).mean().item(), 4),
        "exact": round(exact / n, 4),
        "tokens": round(right / length, 4),
    }


@torch.no_grad()
def evaluate_questions(model: LlavaForConditionalGeneration, recipe: VLMRecipe, n: int = 128) -> dict[str, float]:
    """{topic: share of `n` new questions answered right by greedy decoding}; only visual topics were trained on."""
    model.eval()
    stream = SceneStream(recipe, np.random.default_rng((recipe.seed, 3)))
    words = {i: word for word, i in stream.vocabulary.items()}
    share_by_topic = {}
    for topic in questions.TOPICS:
        right = 0
        batch = stream.question_batch(n, (topic,))
        prompts = [row[label == -100] for row, label in zip(batch.ids, batch.labels, strict=True)]
        for i, prompt in enumerate(prompts):
            prompt = prompt[prompt != PAD][None]
            logits = model(input_ids=prompt, pixel_values=batch.pixels[i : i + 1]).logits
            wanted = [words[t] for t in batch.ids[i][batch.labels[i] != -100].tolist()]
            right += words[int(logits[0, -1].argmax())] == wanted[0]  # every answer is one word
        share_by_topic[topic] = round(right / n, 4)
    return share_by_topic
