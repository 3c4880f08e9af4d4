"""Gradients of single records in a model: their directions are compared with clients' updates, their norms are an
attack of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainers.base import State
from trainers.prompts import Learner, PromptMethod
from trainers.protocols import Differentiable


def mean_gradient(method: PromptMethod, learner: Learner, prompt: Tensor, records: Sequence[str]) -> Tensor:
    """Gradient [b, d] of the records' mean cross-entropy in a prompt [b, d]."""
    images = learner.images(records, patches=method.patches)
    labels = learner.labels(records).to(images.device)
    with torch.enable_grad():
        at = prompt.detach().requires_grad_()
        loss = F.cross_entropy(learner.scale * method.scores(learner.text(at)[None], images[None])[0], labels)
    return torch.autograd.grad(loss, at)[0]


def gradient_norms(method: Any, learner: Differentiable, model: State, records: Sequence[str]) -> NDArray[np.float64]:
    """L2 norms [n] of each record's loss gradient in one client's model."""
    norms = [part.double().norm(dim=1) for part in learner.gradients(method, model, records)]
    found: NDArray[np.float64] = torch.cat(norms).numpy()
    return found


def descents(method: Any, learner: Differentiable, model: State, records: Sequence[str]) -> NDArray[np.float64]:
    """Unit vectors [n, m] in which each record's loss falls fastest in one client's model of m numbers; nan for a
    record without gradient."""
    parts = [directions(-part) for part in learner.gradients(method, model, records)]
    found: NDArray[np.float64] = torch.cat(parts).numpy()
    found[~found.any(axis=1)] = np.nan
    return found


def change(model: State, start: State) -> NDArray[np.float64]:
    """A model less another one, all tensors laid end to end."""
    found: NDArray[np.float64] = torch.cat([(t - start[name]).flatten() for name, t in model.items()]).double().numpy()
    return found


def directions(vectors: Tensor) -> Tensor:
    """Vectors [n, ..] as rows [n, m] of length 1, in double precision; a zero vector, which points nowhere, stays
    zero."""
    return F.normalize(vectors.flatten(1).double(), dim=1, eps=1e-300)
