"""Gradients of single records in a prompt: their directions are compared with clients' updates, their norms are an
attack of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainers.prompts import Learner, PromptMethod, taken_back

Text = Callable[[Tensor], Tensor]  # a prompt [.., b, d] to class features [.., C, E]


def record_gradients(method: PromptMethod, learner: Learner, text: Text, at: Tensor, records: Sequence[str]) -> Tensor:
    """Gradients [n, ..] of each record's cross-entropy in what `text` makes class features of, at one value `at` [..].

    The text encoder runs forward once; only each record's gradient in the features is taken back through it.
    """
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        features = text(at)  # [.., C, E]
    images, labels = learner.images(records, patches=method.patches), learner.labels(records)

    def loss(copies: Tensor) -> Tensor:
        """Summed over the records, each with its own copy of the features [n, .., C, E]."""
        logits = learner.scale * method.scores(copies, images[:, None])[:, 0]
        return F.cross_entropy(logits, labels, reduction="sum")

    above = torch.func.grad(loss)(features.detach().expand(len(records), *features.shape))
    return taken_back(features, at, above)


def mean_gradient(method: PromptMethod, learner: Learner, prompt: Tensor, records: Sequence[str]) -> Tensor:
    """Gradient [b, d] of the records' mean cross-entropy in a prompt [b, d]."""
    images, labels = learner.images(records, patches=method.patches), learner.labels(records)
    with torch.enable_grad():
        at = prompt.detach().requires_grad_()
        loss = F.cross_entropy(learner.scale * method.scores(learner.text(at)[None], images[None])[0], labels)
    return torch.autograd.grad(loss, at)[0]


def gradient_norms(
    method: PromptMethod, learner: Learner, prompt: Tensor, records: Sequence[str]
) -> NDArray[np.float64]:
    """L2 norms [n] of each record's loss gradient in one client's prompt [.., b, d] (of all its parts together)."""
    gradients = record_gradients(method, learner, learner.text, prompt, records)
    norms: NDArray[np.float64] = gradients.flatten(1).double().norm(dim=1).numpy()
    return norms


def descents(method: PromptMethod, learner: Learner, prompt: Tensor, records: Sequence[str]) -> NDArray[np.float64]:
    """Unit vectors [n, m] in which each record's loss falls fastest in one client's prompt [.., b, d], of m numbers in
    all; nan for a record without gradient."""
    gradients = record_gradients(method, learner, learner.text, prompt, records)
    found: NDArray[np.float64] = directions(-gradients).numpy()
    found[~found.any(axis=1)] = np.nan
    return found


def directions(vectors: Tensor) -> Tensor:
    """Vectors [n, ..] as rows [n, m] of length 1, in double precision; a zero vector, which points nowhere, stays
    zero."""
    return F.normalize(vectors.flatten(1).double(), dim=1, eps=1e-300)
