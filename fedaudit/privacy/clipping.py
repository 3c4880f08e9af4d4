"""Clipping and noise of the Gaussian mechanism on gradients. The caller decides whether privacy is local or central."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def clipped_mean(gradients: Tensor, weights: Tensor | None = None, *, how: str, norm: float, batch: int) -> Tensor:
    """Clipped mean gradient [N, ...] of N clients, from gradients [R, N, ...].

    how "record": each record's gradient is scaled to an L2 norm of at most `norm`, multiplied by its weight 0 or 1 in
    `weights` [R, N] (0: left out by a coin, or padding), summed, and divided by the fixed public `batch`. So the
    sensitivity is norm / batch (DP-FPL, theorem 3.3), and a flipped weight moves the mean by that record's clipped
    gradient over `batch` only.

    how "batch": `gradients` is the batch mean already, R = 1, and is scaled as a whole (weight 0: the client has an
    empty batch).

    An infinite `norm` clips nothing. FloatingPointError names the clients whose gradients are not finite.
    """
    _check(gradients, weights, how)
    scale = _scale(gradients, norm)
    if weights is not None:
        scale = scale * weights.to(scale.dtype)
    total = gradients.new_zeros(gradients.shape[1:])
    for record, factor in zip(gradients, scale, strict=True):  # in order: the sum does not depend on how many clients
        total += record * factor.reshape(-1, *[1] * (record.ndim - 1))
    return total / batch if how == "record" else total


def clipped(gradients: Tensor, norm: float) -> Tensor:
    """Gradients [n, ...] of single records, each scaled to an L2 norm of at most `norm`."""
    scale = _scale(gradients[:, None], norm)[:, 0]
    return gradients * scale.reshape(-1, *[1] * (gradients.ndim - 1))


def count_longer(gradients: Tensor, weights: Tensor, *, norm: float) -> tuple[int, int]:
    """How many gradients [R, N, ...] of weight 1 (`weights` [R, N]) exceed `norm`, and how many have weight 1."""
    counted = weights > 0
    return int((_norms(gradients)[counted] > norm).sum()), int(counted.sum())


def add_noise(mean: Tensor, std: float, generators: Sequence[torch.Generator]) -> Tensor:
    """`mean` [N, ...] plus Gaussian noise of `std` per coordinate; row i's noise is from generators[i] alone."""
    if not 0 <= std < math.inf:
        raise ValueError(f"std must be finite and not negative, not {std}")
    if len(generators) != len(mean):
        raise ValueError(f"there must be one generator for each of the {len(mean)} rows, not {len(generators)}")
    if std == 0:
        return mean
    rows = [
        torch.randn(mean.shape[1:], generator=generator, dtype=mean.dtype, device=generator.device)
        for generator in generators
    ]
    return mean + std * torch.stack(rows).to(mean.device)


def _check(gradients: Tensor, weights: Tensor | None, how: str) -> None:
    if how not in ("record", "batch"):
        raise ValueError(f"how must be record or batch, not {how}")
    if how == "batch" and len(gradients) != 1:
        raise ValueError(f"clipping of the batch mean takes gradients [1, N, ...], not {list(gradients.shape)}")
    if weights is not None and weights.shape != gradients.shape[:2]:
        raise ValueError(f"weights must be {list(gradients.shape[:2])}, not {list(weights.shape)}")


def _norms(gradients: Tensor) -> Tensor:
    """L2 norms [R, N] of gradients [R, N, ...]."""
    flat = gradients.flatten(2) if gradients.ndim > 2 else gradients.unsqueeze(2)
    return torch.linalg.vector_norm(flat, dim=2)


def _scale(gradients: Tensor, norm: float) -> Tensor:
    """Factors [R, N] that clip gradients [R, N, ...] to a length of `norm`; 1 for shorter ones. FloatingPointError: a
    gradient is not finite."""
    norms = _norms(gradients)
    wrong = ~torch.isfinite(norms).all(0)
    if wrong.any():
        raise FloatingPointError(f"gradients of the clients {wrong.nonzero().flatten().tolist()} are not finite")
    return torch.where(norms > norm, norm / norms, 1.0)
