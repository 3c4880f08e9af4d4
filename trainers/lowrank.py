"""Faster training of a linear layer with a low-rank update: W + s B A is computed in each pass, then multiplied once.

peft's layer computes the same function as W x + s B A x. Here the product B A takes the place of four operations on
outputs of the layer's width (in the built-in model a step takes 0.8 of the time: `python -m benchmarks.lora step`).

One pass gives the gradients of single records: each of R records gets its own copy of the factors, A [R, r, in] and
B [R, out, r], and the gradient in its copy is the record's own (Goodfellow 2015; Li et al. 2022 for LoRA).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _LowRank(torch.autograd.Function):
    """x (W + scale B A)^T + bias, for x [..., in], frozen W [out, in], bias [out] or None, A [r, in] and B [out, r].

    For x [R, T, in], A and B may be R equal copies, [R, r, in] and [R, out, r].
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
    """Make peft's LoRA layer compute W + s B A first; where its attribute `folded` is true, W holds the sum already."""
    layer.folded = False  # peft's own switch takes 17 ms: it looks at the whole model
    layer.forward = functools.partial(_forward, layer)


def train_beside(layer: Any) -> None:
    """Make peft's LoRA layer accept a copy of its factors per record; else it computes as before, W x + s B A x."""
    layer.forward = functools.partial(_beside, layer, layer.forward)


def _forward(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    if layer.folded or layer.disable_adapters:
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
