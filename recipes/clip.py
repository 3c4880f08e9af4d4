"""The recipe of the embedded CLIP models: a small ViT and a small ResNet, pre-trained on a procedural world of symbols.

    python -m recipes.clip --out FOLDER --tower vit|resnet
    python -m recipes.clip --evaluate FOLDER

The first runs for 10 to 30 minutes on one core and writes a folder that open_clip reads
(`open_clip.create_model("local-dir:FOLDER")`), with `training.json` beside it: the recipe, a fingerprint of the data,
losses and the quality of the weights as shipped. The second prints that quality.

Two stages on the world of `recipes.symbols`. First both towers are trained on batches of two kinds.
In *naming* batches a caption says which symbol it is and little else, and every picture that the caption is true of is
a positive. In *describing* batches captions name font, size, style, colours and ground, with CLIP's own loss. Without
the first, colours are learned at once and symbols never; without the second, captions know no style. Looks start mild
and widen; a linear head that names symbols helps the image tower and is thrown away.

Then the image tower is locked and the text tower learns that names have several senses, wherever in a text they stand.
This is what leaves prompt learning something to find: before it, no context changes what a name means.
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
import open_clip
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Rng
from recipes.symbols import (
    CHUNK,
    CONTEXT,
    FIRST,
    SECOND,
    SECOND_WORDS,
    SYMBOLS,
    Claim,
    Drawing,
    Language,
    build_tokenizer,
    describing_caption,
    draw_chunk,
    draw_pool,
    naming_caption,
    vocabulary,
)

MEAN, STD = 0.5, 0.3  # of the pixel values in [0, 1]
BLANK_STD = 0.02  # of the vectors that prompt learning starts from (CoOp, arXiv 2109.01134)
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
    head_weight: float = 1.0  # of the loss of a linear head that names the symbol; it is not shipped
    sense_steps: int = 1200  # second stage
    sense_batch: int = 160
    sense_rate: float = 1e-3
    sense_pool: int = 24_000  # pictures
    blank_share: float = 0.5  # batches of the second stage whose captions stand behind blank vectors
    blanks: int = 18  # of these vectors, at most
    text_width: int = 96
    text_layers: int = 3
    text_heads: int = 3
    embed: int = 128

    def __post_init__(self) -> None:
        if self.tower not in TOWERS:
            raise ValueError(f"tower must be one of {', '.join(TOWERS)}, not {self.tower}")


SHIPPED = {"vit": CLIPRecipe(), "resnet": CLIPRecipe(tower="resnet", steps=2500, widen=1000)}

# --- model and training ---


def model_config(recipe: CLIPRecipe, stage: int = 2) -> dict[str, Any]:
    """What open_clip calls model_cfg."""
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
    """The untrained model; its initial weights are fixed by `recipe.seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return open_clip.CLIP(**model_config(recipe, stage))


def build_head(recipe: CLIPRecipe) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed + 1)
        return nn.Linear(recipe.embed, len(SYMBOLS))


def normalise(pictures: Tensor) -> Tensor:
    """uint8 [n, 3, S, S] to the vision tower's input."""
    return (pictures.float() / 255 - MEAN) / STD


def encode_text(model: open_clip.CLIP, ids: Tensor, blanks: Tensor | None = None) -> Tensor:
    """Unit features [n, E] of padded token ids [n, T <= CONTEXT], with vectors `blanks` [n, k, d] between start and
    words if given.

    Cutting the padding is exact, the tower is causal.
    """
    x, ends = model.token_embedding(ids), ids.argmax(1)
    if blanks is not None:
        x, ends = torch.cat([x[:, :1], blanks, x[:, 1:]], 1), ends + blanks.shape[1]
    length = x.shape[1]
    x = x + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return F.normalize(x[torch.arange(len(ids)), ends] @ model.text_projection, dim=-1)


def draw_blanks(rng: Rng, recipe: CLIPRecipe, n: int, room: int) -> Tensor | None:
    """Meaningless vectors [n, k, d] for captions to stand behind, in some batches: words then keep their sense at later
    places.

    A CLIP that saw captions of all lengths knows that; prompt learning starts from such vectors.
    """
    k = int(rng.integers(1, recipe.blanks + 1))
    if rng.random() >= recipe.blank_share or room < 1:
        return None
    return torch.from_numpy(BLANK_STD * rng.standard_normal((n, min(k, room), recipe.text_width))).float()


def naming_loss(logits: Tensor, drawn: Sequence[Drawing], claims: Sequence[Claim]) -> Tensor:
    """Cross-entropy both ways with every true (picture, caption) pair of logits [n, n] as a positive of equal
    weight."""
    true = [[d.symbol.name == name and d.symbol.kind in kinds for name, kinds in claims] for d in drawn]
    return _two_way(logits, torch.tensor(true).float())


def describing_loss(logits: Tensor, captions: Sequence[str]) -> Tensor:
    """CLIP's loss; captions that are the same word for word are no negatives of each other."""
    return _two_way(logits, torch.tensor([[float(a == b) for b in captions] for a in captions]))


def _two_way(logits: Tensor, true: Tensor) -> Tensor:
    rows, columns = true / true.sum(1, keepdim=True), true / true.sum(0, keepdim=True)
    return -((rows * logits.log_softmax(1)).sum(1).mean() + (columns * logits.log_softmax(0)).sum(0).mean()) / 2


Step = tuple[str, float, open_clip.CLIP]


def train(recipe: CLIPRecipe, *, stop_after: int | None = None) -> Iterator[Step]:
    """The first stage, yielding (kind of batch, loss, model) after every step; `stop_after` ends it early for tests."""
    torch.set_num_threads(1)
    model = build_model(recipe, stage=1)
    tokenizer = build_tokenizer(stage=1)
    pictures, drawn = draw_pool(recipe.pool, np.random.default_rng((recipe.seed, 0)), recipe.seed)
    rng = np.random.default_rng((recipe.seed, 1))
    head = build_head(recipe)
    optimizer = _optimizer(recipe, [*model.parameters(), *head.parameters()])
    model.train()
    for step in range(min(recipe.steps, stop_after or recipe.steps)):
        reach = int(recipe.pool * min(1, 0.15 + 0.85 * step / recipe.widen))
        rows = rng.integers(max(reach, 1), size=recipe.batch)
        kind = "naming" if step < 120 or rng.random() < recipe.naming_share else "describing"
        _schedule(optimizer, recipe.learning_rate, step, recipe.steps, recipe.warm_up)
        shown = [drawn[i] for i in rows]
        down, right = (int(s) for s in rng.integers(-2, 3, 2))
        features = model.visual(normalise(pictures[rows].roll((down, right), (2, 3))))
        named = F.cross_entropy(head(features), torch.tensor([SYMBOLS.index(d.symbol) for d in shown]))
        matched = _match(model, tokenizer, kind, F.normalize(features, dim=-1), shown, rng, FIRST)
        loss = matched + recipe.head_weight * named
        _step(optimizer, model, list(model.parameters()), loss)
        yield kind, loss.item(), model


def _match(
    model: open_clip.CLIP,
    tokenizer: PreTrainedTokenizerFast,
    kind: str,
    features: Tensor,
    drawn: Sequence[Drawing],
    rng: Rng,
    language: Language,
    recipe: CLIPRecipe | None = None,
) -> Tensor:
    """The loss between unit image features [n, E] and fresh captions of what they show; with a recipe some stand behind
    blanks."""
    claims: tuple[Claim, ...] = ()
    if kind == "naming":
        captions, claims = zip(*(naming_caption(d, rng, language) for d in drawn), strict=True)
    else:
        captions = tuple(describing_caption(d, rng, language) for d in drawn)
    ids = tokenize(tokenizer, captions)
    blanks = draw_blanks(rng, recipe, len(ids), CONTEXT - ids.shape[1]) if recipe else None
    logits = model.logit_scale.exp() * features @ encode_text(model, ids, blanks).T
    return naming_loss(logits, drawn, claims) if kind == "naming" else describing_loss(logits, captions)


def tokenize(tokenizer: PreTrainedTokenizerFast, captions: Sequence[str]) -> Tensor:
    """Padded ids [n, T], T <= CONTEXT."""
    return tokenizer(list(captions), padding=True, truncation=True, return_tensors="pt")["input_ids"]


def _optimizer(recipe: CLIPRecipe, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def _schedule(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int, warm_up: int) -> None:
    """Linear warm-up, then half a cosine down to 2 %."""
    cosine = 0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1, (step + 1) / warm_up) * cosine


def grow_vocabulary(recipe: CLIPRecipe, model: open_clip.CLIP) -> open_clip.CLIP:
    """The model with the second stage's words; they start near the mean of the others."""
    grown = build_model(recipe)
    state = model.state_dict()
    old = state["token_embedding.weight"]
    new = old.mean(0) + grown.token_embedding.weight.detach()[: len(SECOND_WORDS)]
    state["token_embedding.weight"] = torch.cat([old[:-1], new, old[-1:]])
    grown.load_state_dict(state)
    return grown


def teach_senses(recipe: CLIPRecipe, model: open_clip.CLIP, *, stop_after: int | None = None) -> Iterator[Step]:
    """The second stage: the text tower alone learns that names have several senses, the image tower locked (LiT, arXiv
    2111.07991)."""
    torch.set_num_threads(1)
    model = grow_vocabulary(recipe, model)
    model.eval()
    model.visual.requires_grad_(False)
    tokenizer = build_tokenizer()
    rng = np.random.default_rng((recipe.seed, 2))
    features, drawn = [], []
    for _ in range(0, recipe.sense_pool, CHUNK):
        pictures, shown = draw_chunk(CHUNK, rng.random(), rng, recipe.seed, SECOND)
        features.append(encode_pictures(model, pictures))
        drawn += shown
    pool = torch.cat(features)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(recipe, trained)
    for step in range(min(recipe.sense_steps, stop_after or recipe.sense_steps)):
        _schedule(optimizer, recipe.sense_rate, step, recipe.sense_steps, recipe.warm_up)
        rows = rng.integers(len(pool), size=recipe.sense_batch)
        kind = "naming" if rng.random() < 0.5 else "describing"
        loss = _match(model, tokenizer, kind, pool[rows], [drawn[i] for i in rows], rng, SECOND, recipe)
        _step(optimizer, model, trained, loss)
        yield kind, loss.item(), model


def _step(
    optimizer: torch.optim.Optimizer, model: open_clip.CLIP, trained: Sequence[nn.Parameter], loss: Tensor
) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))


# --- quality ---

PROMPT = "a photo of a {}."
CONTEXT_VECTORS = 16
TRAIN_PER_CLASS, TEST_PER_CLASS = 32, 25


@dataclass(frozen=True)
class Examples:
    """Unit image features [n, E] and labels [n] of one task, split; `names` as a prompt would say them."""

    names: tuple[str, ...]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def evaluate(model: open_clip.CLIP) -> dict[str, dict[str, float]]:
    """Accuracy in percent on real digits and on every style: zero-shot, with a tuned context, and of a linear probe."""
    torch.set_num_threads(1)
    model.eval().requires_grad_(False)
    tokenizer = build_tokenizer()
    found = {}
    for task in ("digits", *drawings.DOMAINS):
        examples = digits(model) if task == "digits" else styled(model, task)
        found[task] = {
            "zero_shot": accuracy(
                encode_text(model, tokenize(tokenizer, [PROMPT.format(n) for n in examples.names])), examples
            ),
            "tuned": accuracy(tuned_text(model, tokenizer, examples), examples),
            "linear_probe": linear_probe(examples),
        }
    return found


def digits(model: open_clip.CLIP) -> Examples:
    """Scikit-learn's handwritten digits (8 x 8 pixels), light on dark, enlarged to 24 x 24 inside a margin of 4."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pictures = F.interpolate(torch.from_numpy(loaded.images).float()[:, None] / 16, (24, 24), mode="bilinear")
    pixels = (F.pad(pictures, (4, 4, 4, 4)) * 255).round().byte().expand(-1, 3, -1, -1)
    labels = torch.from_numpy(loaded.target).long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train = torch.cat([order[labels[order] == c][:TRAIN_PER_CLASS] for c in range(10)])
    test = order[~torch.isin(order, train)]
    features = encode_pictures(model, pixels)
    return Examples(drawings.DIGITS, (features[train], labels[train]), (features[test], labels[test]))


def styled(model: open_clip.CLIP, domain: str) -> Examples:
    rng = np.random.default_rng((0, list(drawings.DOMAINS).index(domain)))
    split = []
    for per_class in (TRAIN_PER_CLASS, TEST_PER_CLASS):
        labels = np.repeat(np.arange(len(drawings.CLASSES)), per_class)
        pixels = torch.from_numpy(drawings.draw(domain, labels.tolist(), rng)).permute(0, 3, 1, 2)
        split.append((encode_pictures(model, pixels), torch.from_numpy(labels)))
    return Examples(drawings.CLASSES, split[0], split[1])


@torch.no_grad()
def encode_pictures(model: open_clip.CLIP, pixels: Tensor) -> Tensor:
    """Unit features [n, E] of uint8 pictures [n, 3, S, S]."""
    return torch.cat([F.normalize(model.visual(normalise(part)), dim=-1) for part in pixels.split(250)])


def accuracy(text: Tensor, examples: Examples) -> float:
    features, labels = examples.test
    return round(100 * ((features @ text.T).argmax(1) == labels).float().mean().item(), 1)


def tuned_text(
    model: open_clip.CLIP,
    tokenizer: PreTrainedTokenizerFast,
    examples: Examples,
    *,
    steps: int = 300,
    batch: int = 64,
    rate: float = 0.01,
) -> Tensor:
    """Class features [C, E] behind `CONTEXT_VECTORS` learned vectors that all classes share (CoOp, arXiv 2109.01134),
    by Adam."""
    generator = torch.Generator().manual_seed(0)
    ids = tokenize(tokenizer, [f"{name}." for name in examples.names])
    context = (
        BLANK_STD * torch.randn(CONTEXT_VECTORS, model.token_embedding.embedding_dim, generator=generator)
    ).requires_grad_()

    def text() -> Tensor:
        return encode_text(model, ids, context.expand(len(ids), -1, -1))

    features, labels = examples.train
    optimizer = torch.optim.Adam([context], rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
        rows = torch.randint(len(labels), (batch,), generator=generator)
        loss = F.cross_entropy(model.logit_scale.exp() * features[rows] @ text().T, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return text().detach()


def linear_probe(examples: Examples) -> float:
    from sklearn.linear_model import LogisticRegression

    probe = LogisticRegression(C=100, max_iter=2000).fit(*(t.numpy() for t in examples.train))
    return round(100 * float(probe.score(*(t.numpy() for t in examples.test))), 1)


# --- the folder ---

WEIGHTS = "open_clip_model.safetensors"


@dataclass
class Log:
    """Losses of a run by stage and kind of batch."""

    first: list[float] = dataclasses.field(default_factory=list)
    losses: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def follow(self, stage: str, steps: Iterator[Step], total: int) -> open_clip.CLIP:
        """Run a stage to its end, with a line every 100 steps."""
        model = None
        for step, (kind, loss, trained) in enumerate(steps, 1):
            model = trained
            self.losses.setdefault(f"{stage} {kind}", []).append(loss)
            if len(self.first) < 3:
                self.first.append(round(loss, 4))
            if step % 100 == 0:
                print(f"{stage} stage, step {step}/{total}  {self.last()}", flush=True)
        assert model is not None
        return model

    def last(self) -> dict[str, float]:
        """Mean of the last 60 losses of each kind."""
        return {name: round(float(np.mean(values[-60:])), 4) for name, values in self.losses.items()}


def save(
    model: open_clip.CLIP, recipe: CLIPRecipe, first: Sequence[float], last: dict[str, float], out: Path, seconds: int
) -> None:
    """Write weights in half precision, configuration, tokenizer and training record; the quality is that of the rounded
    weights."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: t.half().contiguous() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)
    config = {"model_cfg": model_config(recipe), "preprocess_cfg": preprocessing()}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    build_tokenizer().save_pretrained(out)
    record = {
        "recipe": dataclasses.asdict(recipe),
        "data": data_fingerprint(recipe),
        "first_losses": list(first),
        "last_losses": last,
        "weights_sha256": hashlib.sha256((out / WEIGHTS).read_bytes()).hexdigest(),
        "accuracy": evaluate(read(out)),
        "cpu_seconds": seconds,
        "versions": {"torch": torch.__version__.split("+")[0], "open_clip": open_clip.__version__},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def read(folder: Path) -> open_clip.CLIP:
    """The model of a folder, in single precision."""
    return open_clip.create_model(f"local-dir:{folder}").float()


def preprocessing() -> dict[str, Any]:
    """What open_clip calls preprocess_cfg."""
    return {
        "size": [drawings.SIZE, drawings.SIZE],
        "mode": "RGB",
        "mean": [MEAN] * 3,
        "std": [STD] * 3,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }


def data_fingerprint(recipe: CLIPRecipe) -> dict[str, Any]:
    """SHA-256 of 256 drawings' words and captions of each stage, and the mean brightness of 16 pictures of each
    (0-255).

    Pictures are compared by brightness because font rasterisers and interpolation differ in the last bits between
    versions.
    """
    lines, brightness = [], []
    for stage, language in enumerate((FIRST, SECOND)):
        pictures, drawn = draw_chunk(256, 0.5, np.random.default_rng((recipe.seed, stage)), recipe.seed, language)
        rng = np.random.default_rng((recipe.seed, stage, 1))
        for shown in drawn:
            caption, (name, kinds) = naming_caption(shown, rng, language)
            lines += [str(shown), caption, name, *sorted(kinds), describing_caption(shown, rng, language)]
        brightness += pictures[:16].float().mean((1, 2, 3)).round().int().tolist()
    lines.append(str(tokenize(build_tokenizer(), [PROMPT.format(symbol.name) for symbol in SYMBOLS]).tolist()))
    return {"sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(), "brightness": brightness}


def table(found: dict[str, dict[str, float]]) -> str:
    rows = [f"{'task':10}{'zero-shot':>10}{'tuned':>8}{'probe':>8}"]
    return "\n".join(
        rows + [f"{task:10}{a['zero_shot']:10}{a['tuned']:8}{a['linear_probe']:8}" for task, a in found.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train an embedded CLIP model, or measure one.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="folder for the model")
    task.add_argument(
        "--evaluate", type=Path, metavar="FOLDER", help="print the accuracies of the model in this folder"
    )
    parser.add_argument("--tower", choices=list(TOWERS), default="vit")
    arguments = parser.parse_args()
    if arguments.evaluate is None:
        run(SHIPPED[arguments.tower], arguments.out)
    print(table(evaluate(read(arguments.evaluate or arguments.out))))


def run(recipe: CLIPRecipe, out: Path) -> None:
    """Train both stages and write the folder."""
    log = Log()
    model = log.follow("first", train(recipe), recipe.steps)
    model = log.follow("second", teach_senses(recipe, model), recipe.sense_steps)
    save(model, recipe, log.first, log.last(), out, round(time.process_time()))


if __name__ == "__main__":
    main()
