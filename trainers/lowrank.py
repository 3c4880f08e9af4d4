"""A linear layer with a low-rank update, trained as one matrix product with the updated weight: W + s B A is made anew
in each pass.

The same function as peft's layer, which adds s B A x to W x: that keeps and multiplies outputs of the layer's width,
four times per pass. This costs one product of the factors instead (in the embedded model a step takes 0.8 of the time:
`python -m benchmarks.lora step`).

Gradients of single records come from one pass: where each of R records is given factors of its own, all equal, A [R, r,
in] and B [R, out, r], what is summed over the batch's tokens is summed over each record's, and the gradients of the
copies are those of the records (Goodfellow 2015; Li et al. 2022 for LoRA's form).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _LowRank(torch.autograd.Function):
    """x [..., in], frozen W [out, in] and bias [out] or None, A [r, in], B [out, r] to x (W + scale B A)^T + bias.

    Of x [R, T, in] A and B may be R equal copies, [R, r, in] and [R, out, r].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        whole = torch.addmm(weight, *((b, a) if a.ndim == 2 else (b[0], a[0])), alpha=scale)
        ctx.save_for_backward(x, whole, a, b)
        ctx.scale = scale
        return F.linear(x, whole, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, whole, a, b = ctx.saved_tensors
        outer, inner = (gradient.flatten(0, -2), x.flatten(0, -2)) if a.ndim == 2 else (gradient, x)
        to_a = ctx.scale * ((outer @ b).mT @ inner)
        to_b = ctx.scale * (outer.mT @ (inner @ a.mT))
        return gradient @ whole if ctx.needs_input_grad[0] else None, None, None, to_a, to_b, None


def train_as_one(layer: Any) -> None:
    """Let peft's LoRA layer compute so wherever its adapter is on."""
    layer.forward = functools.partial(_forward, layer)


def train_beside(layer: Any) -> None:
    """Let peft's LoRA layer compute as it does, without a weight of its own, and take a copy of its factors per
    record."""
    layer.forward = functools.partial(_beside, layer, layer.forward)


def _forward(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    if layer.disable_adapters:
        return base(x)
    a, b = (factor["default"].weight for factor in (layer.lora_A, layer.lora_B))
    return _LowRank.apply(x, base.weight, base.bias, a, b, layer.scaling["default"])


def _beside(layer: Any, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    a, b = (factor["default"].weight for factor in (layer.lora_A, layer.lora_B))
    if a.ndim == 2:
        return forward(x)
    whole: Tensor = layer.base_layer(x)
    update = (x.to(a.dtype) @ a.mT) @ b.mT
    return (whole + layer.scaling["default"] * update).to(whole.dtype)
