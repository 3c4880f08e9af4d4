"""The header of a safetensors file that somebody else wrote, read without torch: what its tensors are called, their
kind, shape and bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaudit.external.files import LONGEST, OwnFiles
from fedaudit.external.schema import OBJECT, TEXT, Kind, counts, fields, parse, shown
from fedaudit.machinery.errors import InputError

ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes a number, of the kinds that an adapter can be of
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
    """{name in the file: {"dtype", "shape", "data_offsets"}}. InputError: not readable, truncated, or not as the format
    says."""
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        data = file.read(length) if length <= min(size - 8, LONGEST) else b""
    if not data.startswith(b"{"):
        raise InputError(f"{path} is no complete safetensors file (truncated or damaged?); write it again")
    found = parse(data, f"{path}, header")
    fields(found, f"{path}, header", {}, {name: _OF_METADATA if name == _METADATA else OBJECT for name in found})
    entries = {name: entry for name, entry in found.items() if name != _METADATA}
    for name, entry in entries.items():
        fields(entry, f"{path}: {shown(name)}", _OF_TENSOR, {})
    _check_bytes(path, entries, size - 8 - length)
    return entries


def _check_bytes(path: Path, entries: Mapping[str, Mapping[str, Any]], size: int) -> None:
    """InputError unless the tensors, each of the bytes that its shape needs, follow each other up to `size`.

    Kinds of numbers that no adapter is of are refused by name elsewhere.
    """
    due = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if due != size:
        raise InputError(f"{path} is truncated or damaged: {size} bytes of tensors where its header names {due}")
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        (start, stop), kind, shape = entry["data_offsets"], entry["dtype"], entry["shape"]
        if start != end:
            raise InputError(f"{path}: the bytes of {shown(name)} do not follow those before them (damaged?)")
        if kind in ITEM and math.prod(shape) * ITEM[kind] != stop - start:
            raise InputError(
                f"{path}: {shown(name)} takes {stop - start} bytes, where {kind} {shown(str(shape))} does not"
            )
        end = stop
