"""The two stages in which the embedded CLIP models are trained (see `recipes.clip`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks.drawings import Rng
from recipes.clip_model import (
    BLANK_STD,
    CLIPRecipe,
    build_head,
    build_model,
    encode_pictures,
    encode_text,
    normalise,
    tokenize,
)
from recipes.symbol_captions import CONTEXT, Claim, build_tokenizer, describing_caption, naming_caption
from recipes.symbol_pictures import CHUNK, Drawing, draw_chunk, draw_pool
from recipes.symbols import FIRST, SECOND, SECOND_WORDS, SYMBOLS, Language


def draw_blanks(rng: Rng, recipe: CLIPRecipe, n: int, room: int) -> Tensor | None:
    """Meaningless vectors [n, k, d], k at most `room`, to put before the n captions of a batch; None for batches that
    get none.

    So words keep their sense at later positions, where prompt learning puts them. A CLIP trained on captions of all
    lengths has this already.
    """
    k = int(rng.integers(1, recipe.blanks + 1))
    if rng.random() >= recipe.blank_share or room < 1:
        return None
    return torch.from_numpy(BLANK_STD * rng.standard_normal((n, min(k, room), recipe.text_width))).float()


def naming_loss(logits: Tensor, drawn: Sequence[Drawing], claims: Sequence[Claim]) -> Tensor:
    """Cross-entropy in both directions; every true (picture, caption) pair of logits [n, n] is a positive of equal
    weight."""
    true = [[d.symbol.name == name and d.symbol.kind in kinds for name, kinds in claims] for d in drawn]
    return _two_way(logits, torch.tensor(true).float())


def describing_loss(logits: Tensor, captions: Sequence[str]) -> Tensor:
    """CLIP's loss; identical captions are not negatives of each other."""
    return _two_way(logits, torch.tensor([[float(a == b) for b in captions] for a in captions]))


def _two_way(logits: Tensor, true: Tensor) -> Tensor:
    rows, columns = true / true.sum(1, keepdim=True), true / true.sum(0, keepdim=True)
    return -((rows * logits.log_softmax(1)).sum(1).mean() + (columns * logits.log_softmax(0)).sum(0).mean()) / 2


Step = tuple[str, float, open_clip.CLIP]


def train(recipe: CLIPRecipe, *, stop_after: int | None = None) -> Iterator[Step]:
    """Train the first stage; yields (kind of batch, loss, model) after every step. stop_after: ends it early, for
    tests."""
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
        contents = [drawn[i] for i in rows]
        down, right = (int(s) for s in rng.integers(-2, 3, 2))
        features = model.visual(normalise(pictures[rows].roll((down, right), (2, 3))))
        named = F.cross_entropy(head(features), torch.tensor([SYMBOLS.index(d.symbol) for d in contents]))
        matched = _match(model, tokenizer, kind, F.normalize(features, dim=-1), contents, rng, FIRST)
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
    """The contrastive loss between unit image features [n, E] and fresh captions of `drawn`, which name the symbols
    (`kind` "naming") or describe the pictures; with a recipe meaningless vectors precede some captions."""
    claims: tuple[Claim, ...] = ()
    if kind == "naming":
        captions, claims = zip(*(naming_caption(d, rng, language) for d in drawn), strict=True)
    else:
        captions = tuple(describing_caption(d, rng, language) for d in drawn)
    ids = tokenize(tokenizer, captions)
    blanks = draw_blanks(rng, recipe, len(ids), CONTEXT - ids.shape[1]) if recipe else None
    logits = model.logit_scale.exp() * features @ encode_text(model, ids, blanks).T
    return naming_loss(logits, drawn, claims) if kind == "naming" else describing_loss(logits, captions)


def _optimizer(recipe: CLIPRecipe, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def _schedule(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int, warm_up: int) -> None:
    """Set the optimizer's learning rate for a step: linear warm-up to `peak`, then half a cosine down to 2 %."""
    cosine = 0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1, (step + 1) / warm_up) * cosine


def grow_vocabulary(recipe: CLIPRecipe, model: open_clip.CLIP) -> open_clip.CLIP:
    """The model with the second stage's words added; their embeddings start near the mean of the others."""
    grown = build_model(recipe)
    state = model.state_dict()
    old = state["token_embedding.weight"]
    new = old.mean(0) + grown.token_embedding.weight.detach()[: len(SECOND_WORDS)]
    state["token_embedding.weight"] = torch.cat([old[:-1], new, old[-1:]])
    grown.load_state_dict(state)
    return grown


def teach_senses(recipe: CLIPRecipe, model: open_clip.CLIP, *, stop_after: int | None = None) -> Iterator[Step]:
    """Train the second stage, in which the text tower learns several senses of names, and the image tower is frozen
    (LiT, arXiv 2111.07991); yields (kind of batch, loss, model) after every step."""
    torch.set_num_threads(1)
    model = grow_vocabulary(recipe, model)
    model.eval()
    model.visual.requires_grad_(False)
    tokenizer = build_tokenizer()
    rng = np.random.default_rng((recipe.seed, 2))
    features, drawn = [], []
    for _ in range(0, recipe.sense_pool, CHUNK):
        pictures, contents = draw_chunk(CHUNK, rng.random(), rng, recipe.seed, SECOND)
        features.append(encode_pictures(model, pictures))
        drawn += contents
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
