"""The recipe of the embedded vision-language model: a small LLaVA, pre-trained on procedural scenes.

    python -m recipes.vlm --out FOLDER

It runs for about 100 minutes on one core and writes a folder that `transformers` loads like any other model, with
`training.json` beside it: the recipe, fingerprints of the data and of the first steps, and the held-out quality of the
weights as shipped.

Three stages. A *dense warm-up* teaches the vision tower alone to name what covers each patch; without it the language
model learns the grammar of captions and never looks at the picture. Then vision tower, connector and language model are
trained together on image captioning, the dense loss kept on the side. What comes out, the *captioner*, is rounded to
half precision; its vocabulary grows by the words of questions, and a last stage mixes captions with visual questions
(`--captioner FOLDER` starts there).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
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
    """Word-level tokenizer over the scenes' vocabulary; a sequence starts with <bos>, nothing is appended."""
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
        do_resize=False, do_center_crop=False, do_convert_rgb=True, image_mean=[MEAN] * 3, image_std=[STD] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=recipe.patch,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )


def build_model(recipe: VLMRecipe, words: Sequence[str] = WORDS) -> LlavaForConditionalGeneration:
    """The untrained model; its initial weights are fixed by `recipe.seed`."""
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


@dataclass(frozen=True)
class SceneBatch:
    """Scenes ready for the model: pixels [B, 3, S, S], ids and labels [B, T] (-100 outside the caption), patch targets
    [B, P]."""

    pixels: Tensor
    ids: Tensor
    mask: Tensor
    labels: Tensor
    colour: Tensor
    form: Tensor


class SceneStream:
    """Endless batches of fresh scenes with captions (`story_rate` of them go on with a story) or questions."""

    def __init__(self, recipe: VLMRecipe, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng
        self.tokenizer = build_tokenizer()
        self.vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self.prompt = self.encode_prompt(TEMPLATE)

    def draw(self, n: int, story_rate: float) -> tuple[list[scenes.Scene], list[str], Tensor]:
        """Scenes, captions and pixels [n, 3, S, S]."""
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
        """Questions of `topics`, alike often."""
        drawn, asked = self.draw_questions(n, topics)
        prompts = [self.encode_prompt(question.prompt) for question in asked]
        return self._batch(drawn, prompts, [q.answer for q in asked], normalise(scenes.render(drawn, self.rng)))

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
    """Token ids of a prompt with the image placeholder repeated once per patch."""
    ids: list[int] = tokenizer(prompt)["input_ids"]
    at = ids.index(IMAGE)
    return ids[:at] + [IMAGE] * patches + ids[at + 1 :]


def normalise(images: np.ndarray[Any, Any]) -> Tensor:
    """uint8 [n, S, S, 3] to the vision tower's float input [n, 3, S, S]."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def patch_targets(drawn: Sequence[scenes.Scene], patch: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Per patch [n, P] the colour and the (shape, size) of the object that covers it; 0 = none."""
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


class DenseHeads(nn.Module):
    """Names what covers each patch; used in pre-training only and not shipped."""

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
    """The first two stages, yielding (loss, model) after every step; `stop_after` ends them early for tests."""
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
    """The last stage, from the captioner rounded to half precision: captions and visual questions in turn."""
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
    """Warm-up over 60 steps, then half a cosine down to 2 %."""
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


@torch.no_grad()
def evaluate(model: LlavaForConditionalGeneration, recipe: VLMRecipe, n: int = 512) -> dict[str, float]:
    """Quality on held-out scenes: loss in nats per token, and descriptions by greedy decoding.

    `exact` is the share of descriptions that are right word for word, `tokens` the share of reference words that
    stand at their place.
    """
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
            said = [words[i] for i in row]
            said = said[: next((i for i, word in enumerate(said) if word in ("<eos>", ".", "<pad>")), len(said))]
            wanted = scene.description.split()
            exact += said == wanted
            right += sum(a == b for a, b in zip(said, wanted, strict=False))
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
    """Share of `n` fresh questions per topic that greedy decoding answers word for word; only the visual ones were
    trained on."""
    model.eval()
    stream = SceneStream(recipe, np.random.default_rng((recipe.seed, 3)))
    words = {i: word for word, i in stream.vocabulary.items()}
    found = {}
    for topic in questions.TOPICS:
        right = 0
        batch = stream.question_batch(n, (topic,))
        prompts = [row[label == -100] for row, label in zip(batch.ids, batch.labels, strict=True)]
        for i, prompt in enumerate(prompts):
            prompt = prompt[prompt != PAD][None]
            logits = model(input_ids=prompt, pixel_values=batch.pixels[i : i + 1]).logits
            wanted = [words[t] for t in batch.ids[i][batch.labels[i] != -100].tolist()]
            right += words[int(logits[0, -1].argmax())] == wanted[0]  # every answer is one word
        found[topic] = round(right / n, 4)
    return found


def data_fingerprint(recipe: VLMRecipe) -> str:
    """SHA-256 of the first 256 captions and 256 questions as the model sees them: pixels, words and patch targets."""
    digest = hashlib.sha256()
    for batch in (
        SceneStream(recipe, np.random.default_rng((recipe.seed, 0))).batch(256, recipe.story_rate),
        SceneStream(recipe, np.random.default_rng((recipe.seed, 2))).question_batch(256),
    ):
        for tensor in (batch.pixels, batch.ids, batch.colour, batch.form):
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train the embedded vision-language model (about 100 minutes).")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--captioner", type=Path, help="start with the last stage, from the model in this folder")
    for field in dataclasses.fields(VLMRecipe):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    folder: Path | None = arguments.pop("captioner")
    recipe = VLMRecipe(**arguments)
    before: dict[str, Any] = {"cpu_seconds": 0}
    if folder is None:
        captioner, losses = _follow(train_captioner(recipe), recipe.warm_up_steps + recipe.steps)
        before["first_losses"] = [round(loss, 4) for loss in losses[:3]]
    else:
        captioner = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        before = json.loads((folder / "training.json").read_text())
    model, losses = _follow(teach_questions(recipe, captioner), recipe.question_steps)
    save(model, recipe, before["first_losses"], losses, out, before["cpu_seconds"] + round(time.process_time()))


def _follow(steps: Iterator[Step], total: int) -> tuple[LlavaForConditionalGeneration, list[float]]:
    """Run a stage to its end, with a line every 50 steps."""
    losses: list[float] = []
    model: LlavaForConditionalGeneration | None = None
    for loss, trained in steps:
        model = trained
        losses.append(loss)
        if len(losses) % 50 == 0:
            print(f"step {len(losses)}/{total}  loss {np.mean(losses[-50:]):.3f}", flush=True)
    assert model is not None
    return model, losses


def save(
    model: LlavaForConditionalGeneration,
    recipe: VLMRecipe,
    first_losses: Sequence[float],
    losses: Sequence[float],
    out: Path,
    cpu_seconds: int,
) -> None:
    """Write weights in half precision, processor and training record; the quality is that of the rounded weights."""
    model.half().save_pretrained(out)
    build_processor(recipe).save_pretrained(out)
    shipped = LlavaForConditionalGeneration.from_pretrained(out, dtype=torch.float32)
    record = {
        "recipe": dataclasses.asdict(recipe),
        "data_sha256": data_fingerprint(recipe),
        "first_losses": list(first_losses),
        "last_loss": round(float(np.mean(losses[-50:])), 4),
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "held_out": evaluate(shipped, recipe),
        "questions": evaluate_questions(shipped, recipe),
        "cpu_seconds": cpu_seconds,
        "versions": {"torch": torch.__version__.split("+")[0]},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
