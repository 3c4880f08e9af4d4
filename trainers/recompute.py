"""Decoder layers that are computed twice instead of kept: less memory for a third more arithmetic (Chen et al. 2016,
"Training deep nets with sublinear memory cost").

The second time, in the backward pass, a layer must have the adapter of the first time. `torch.func.functional_call` has
taken that out again by then, so that each layer remembers it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recompute(model: torch.nn.Module) -> int:
    """Let the layers that hold adapters keep only their inputs in passes that need gradients; returns how many layers
    do so. 0: the model's layers are not known."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    adapted = [layer for layer in layers if any("lora_" in name for name, _ in layer.named_parameters())]
    for layer in adapted:
        if not isinstance(layer.forward, functools.partial):  # not yet
            layer.forward = functools.partial(_twice, _Once(layer))
    return len(adapted)


class _Once(torch.nn.Module):
    """A layer with the forward pass that its class gave it, and with other tensors in place of its parameters."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self._pass = layer, layer.forward

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self._pass(*inputs, **more)

    def trained(self) -> dict[str, Tensor]:
        """The tensors of this pass that gradients are taken of."""
        return {f"layer.{name}": p for name, p in self.layer.named_parameters() if p.requires_grad}


def _twice(once: _Once, *inputs: Any, **more: Any) -> Any:
    """The forward pass of a layer, which is run again in the backward pass where gradients are needed."""
    if not torch.is_grad_enabled():
        return once(*inputs, **more)
    tensors = once.trained()

    def run(*inputs: Any, **more: Any) -> Any:
        return torch.func.functional_call(once, tensors, inputs, more, tie_weights=False)

    # nothing is drawn in these layers: the model is in its evaluation mode
    return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False, **more)
