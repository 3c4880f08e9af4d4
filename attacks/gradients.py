"""Loss gradients of single records: attacks compare their directions with clients' updates, or use their norms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.machinery.devices import double
from fedaudit.trainers.base import State
from fedaudit.trainers.prompts import Learner, PromptMethod
from fedaudit.trainers.protocols import Differentiable


def mean_gradient(method: PromptMethod, learner: Learner, prompt: Tensor, records: Sequence[str]) -> Tensor:
    """Gradient [b, d] of the records' mean cross-entropy with respect to a prompt [b, d], b vectors of width d."""
    images = learner.images(records, patches=method.patches)
    labels = learner.labels(records).to(images.device)
    with torch.enable_grad():
        at = prompt.detach().requires_grad_()
        loss = F.cross_entropy(learner.scale * method.scores(learner.text(at)[None], images[None])[0], labels)
    return torch.autograd.grad(loss, at)[0]


def text_products(
    learner: Learner, prompt: Tensor
) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], NDArray[np.float64]]]:
    """The text features [C, E] of a prompt [b, d] that C classes share, and a function from directions [D, E] to the
    products [C, D, b d] of each with the Jacobian of each class's features in the prompt: one backward pass for all
    classes."""
    with torch.enable_grad():
        at = prompt.detach().expand(len(learner.classes), *prompt.shape).clone().requires_grad_()
        text = learner.clip.text_by_class(at.to(learner.clip.device), learner.texts(len(prompt)))

    def back(directions: NDArray[np.float64]) -> NDArray[np.float64]:
        above = torch.as_tensor(directions, dtype=text.dtype, device=text.device)
        parts = [torch.autograd.grad(text, at, one.expand_as(text), retain_graph=True)[0] for one in above]
        products: NDArray[np.float64] = double(torch.stack(parts, dim=1).flatten(2)).cpu().numpy()
        return products

    return double(text.detach()).cpu().numpy(), back


def gradient_norms(method: Any, learner: Differentiable, model: State, records: Sequence[str]) -> NDArray[np.float64]:
    """L2 norm [n] of each record's loss gradient with respect to one client's model."""
    parts = [part.double().norm(dim=1) for part in learner.gradients(method, model, records)]
    norms: NDArray[np.float64] = torch.cat(parts).numpy()
    return norms


def descents(method: Any, learner: Differentiable, model: State, records: Sequence[str]) -> NDArray[np.float64]:
    """Unit vectors [n, m] in which each record's loss falls fastest in a model of m parameters; NaN if its gradient is
    0."""
    parts = [directions(-part) for part in learner.gradients(method, model, records)]
    unit: NDArray[np.float64] = torch.cat(parts).numpy()
    unit[~unit.any(axis=1)] = np.nan
    return unit


def change(model: State, start: State) -> NDArray[np.float64]:
    """`model` minus `start` as one vector [m], tensor after tensor in the order of `model`."""
    flat: NDArray[np.float64] = torch.cat([(t - start[name]).flatten() for name, t in model.items()]).double().numpy()
    return flat


def directions(vectors: Tensor) -> Tensor:
    """Vectors [n, ..] flattened and scaled to rows [n, m] of length 1, in double precision; zero vectors stay zero."""
    return F.normalize(vectors.flatten(1).double(), dim=1, eps=1e-300)
