"""Accuracy of the embedded CLIP models: zero-shot, with a tuned context, and of a linear probe."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from recipes.clip_model import BLANK_STD, encode_pictures, encode_text, tokenize
from recipes.symbol_captions import build_tokenizer

PROMPT = "a photo of a {}."
CONTEXT_VECTORS = 16
TRAIN_PER_CLASS, TEST_PER_CLASS = 32, 25


@dataclass(frozen=True)
class Examples:
    """Unit image features [n, E] and labels [n] of a task's training and test set; class names as in prompts."""

    names: tuple[str, ...]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def evaluate(model: open_clip.CLIP) -> dict[str, dict[str, float]]:
    """Accuracy in percent, {task: {"zero_shot", "tuned" (context), "linear_probe"}}, on real digits and every style."""
    torch.set_num_threads(1)
    model.eval().requires_grad_(False)
    tokenizer = build_tokenizer()
    accuracies = {}
    for task in ("digits", *drawings.DOMAINS):
        examples = digits(model) if task == "digits" else styled(model, task)
        accuracies[task] = {
            "zero_shot": accuracy(
                encode_text(model, tokenize(tokenizer, [PROMPT.format(n) for n in examples.names])), examples
            ),
            "tuned": accuracy(tuned_text(model, tokenizer, examples), examples),
            "linear_probe": linear_probe(examples),
        }
    return accuracies


def digits(model: open_clip.CLIP) -> Examples:
    """Image features and labels of scikit-learn's handwritten digits (8 x 8 pixels), light on dark, enlarged to 24 x 24
    inside a margin of 4; TRAIN_PER_CLASS of each are for training, the others for testing."""
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
    """Class features [C, E] whose prompts have `CONTEXT_VECTORS` vectors, shared by all classes and learned here (CoOp,
    arXiv 2109.01134)."""
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


def table(accuracies: dict[str, dict[str, float]]) -> str:
    rows = [f"{'task':10}{'zero-shot':>10}{'tuned':>8}{'probe':>8}"]
    return "\n".join(
        rows + [f"{task:10}{a['zero_shot']:10}{a['tuned']:8}{a['linear_probe']:8}" for task, a in accuracies.items()]
    )
