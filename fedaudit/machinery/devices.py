"""Kinds of devices by what they lack and hold: the processor (cpu), NVIDIA's and AMD's GPUs (cuda), Apple's (mps)."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}  # Metal has no double precision


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64, where `for_float64` says. It is copied there first: a device without float64 does not even
    convert to it."""
    return tensor.to(for_float64(tensor.device)).double()


def for_float64(device: torch.device) -> torch.device:
    """Where float64 numbers of a device are computed: there, or on the processor if the device has no float64."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def memory(device: torch.device) -> int | None:
    """Bytes of a GPU's memory in all, of Apple's what Metal advises to use of the machine's; None for others."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(torch.mps.recommended_max_memory()) if device.type == "mps" else None


def name(device: str) -> str:
    """The name of the GPU that torch computes on."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    named = getattr(torch.backends.mps, "get_name", None)  # newer than the oldest torch that we take
    return str(named()) if named else "Apple GPU"
