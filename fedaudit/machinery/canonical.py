"""Canonical content: the same values always give the same bytes."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def plain_json(value: Any, where: str, *, nan_as_null: bool) -> Any:
    """A copy of `value` in JSON's own types. TypeError names the place, from `where` on, of what is not JSON. NaN
    becomes null with `nan_as_null`, otherwise it is refused as infinities always are."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float) and math.isnan(value) and nan_as_null:
        return None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_json(item, f"{where}[{key!r}]", nan_as_null=nan_as_null) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item, f"{where}[{i}]", nan_as_null=nan_as_null) for i, item in enumerate(value)]
    raise TypeError(
        f"{where} is {reprlib.repr(value)} ({type(value).__name__}), which is not JSON; "
        "valid are None, bool, int, finite float, str, list, tuple and mappings with text as keys"
    )


_DTYPES = {  # of torch, in the order in which safetensors lays out tensors, and its own names
    "uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "float32": "F32", "uint32": "U32",
    "int32": "I32", "bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


class TensorBytes:
    """The bytes of a safetensors file in parts: its header, then tensor by tensor, of which at most one is copied.

    They are those of `safetensors.torch.save`, but for sorted metadata, which that writes in random order. It holds
    three copies of all tensors meanwhile, and refuses tensors that share memory.
    """

    def __init__(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        order = list(_DTYPES)
        pairs = [(order.index(str(t.dtype).removeprefix("torch.")), name) for name, t in tensors.items()]
        self._tensors = {name: tensors[name] for _, name in sorted(pairs)}
        self._metadata = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}

    def __iter__(self) -> Iterator[bytes | memoryview]:
        import torch

        header: dict[str, Any] = dict(self._metadata)
        end = 0
        for name, tensor in self._tensors.items():
            start, end = end, end + tensor.nbytes
            dtype = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
            header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for tensor in self._tensors.values():
            flat = tensor.detach().cpu().contiguous().flatten()
            yield memoryview(flat.view(torch.uint8).numpy().data)
