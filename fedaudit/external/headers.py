"""Reads and checks the header of a safetensors file without torch: names, dtypes, shapes and byte ranges."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaudit.external.files import LONGEST, OwnFiles
from fedaudit.external.schema import OBJECT, TEXT, Kind, counts, fields, one_line, parse
from fedaudit.machinery.errors import InputError

ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1}  # bytes per number, by dtype
_METADATA = "__metadata__"
_OF_METADATA = Kind(
    "an object of texts", lambda v: isinstance(v, dict) and all(isinstance(text, str) for text in v.values())
)
_OF_TENSOR = {
    "dtype": TEXT,
    "shape": Kind("a list of whole numbers, 0 or more", counts),
    "data_offsets": Kind(
        "two whole numbers, where the bytes begin and end", lambda v: counts(v) and len(v) == 2 and v[0] <= v[1]
    ),
}


def read_header(files: OwnFiles, path: Path) -> dict[str, dict[str, Any]]:
    """{tensor: {"dtype", "shape", "data_offsets"}} of a file. InputError: unreadable, truncated, or not safetensors."""
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        data = file.read(length) if length <= min(size - 8, LONGEST) else b""
    if not data.startswith(b"{"):
        raise InputError(f"{path} is no complete safetensors file (truncated or damaged?); write it again")
    header = parse(data, f"{path}, header")
    fields(header, f"{path}, header", {}, {name: _OF_METADATA if name == _METADATA else OBJECT for name in header})
    entries = {name: entry for name, entry in header.items() if name != _METADATA}
    for name, entry in entries.items():
        fields(entry, f"{path}: {one_line(name)}", _OF_TENSOR, {})
    _check_bytes(path, entries, size - 8 - length)
    return entries


def _check_bytes(path: Path, entries: Mapping[str, Mapping[str, Any]], size: int) -> None:
    """InputError unless the tensors fill `size` bytes without gaps, each with the bytes that its shape needs. Dtypes
    outside ITEM are refused elsewhere, by name."""
    expected = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if expected != size:
        raise InputError(f"{path} is truncated or damaged: {size} bytes of tensors where its header names {expected}")
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (start, stop), kind, shape = entry["data_offsets"], entry["dtype"], entry["shape"]
        if start != end:
            raise InputError(f"{path}: the bytes of {one_line(name)} do not follow those before them (damaged?)")
        if kind in ITEM and math.prod(shape) * ITEM[kind] != stop - start:
            raise InputError(
                f"{path}: {one_line(name)} takes {stop - start} bytes, where {kind} {one_line(str(shape))} does not"
            )
        end = stop
