"""Canonical content: the same values always give the same bytes."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any


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


def sorted_header(data: bytes) -> bytes:
    """The bytes of a safetensors file with its metadata sorted; safetensors writes it in random order."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    if "__metadata__" not in header:
        return data
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]
