"""Reads files of torch.save, and executes nothing in them: both formats, zip and the legacy one before it.

Such a file is a pickle, which may name any function to be called. Here it may name what tensors are made of; all else,
as the class of a scheduler or a scalar of numpy, becomes an `Inert`. torch.load is not used: it would hand what looks
like TorchScript or tar to other readers, and it reads all tensors, of which a few are wanted.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedaudit.external.schema import one_line
from fedaudit.external.tensors import check_values
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_ZIP, _LEGACY = b"PK\x03\x04", 0x1950A86A20F9469CFC6C  # how files begin; of the legacy format the first pickle
_FLOATS = {"Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2)}
_STORAGES = _FLOATS | {
    "ComplexDouble": ("complex128", 16), "ComplexFloat": ("complex64", 8), "Long": ("int64", 8), "Int": ("int32", 4),
    "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1), "Bool": ("bool", 1),
}  # fmt: skip


class Inert:
    """An object of a class that is not known. It takes any arguments, items and state, and does nothing."""

    def __new__(cls, *arguments: object, **more: object) -> Inert:
        return super().__new__(cls)

    def __init__(self, *arguments: object, **more: object) -> None:
        pass

    def __call__(self, *arguments: object, **more: object) -> Inert:
        return Inert()

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        pass

    add = extend = append


@dataclass(frozen=True)
class _Storage:
    """Where a tensor's numbers lie. A file may say anything here and in `SavedTensor`, so `load_tensor` checks it."""

    kind: Any  # a key of _STORAGES
    key: Any
    size: Any  # numbers


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that has not been read yet."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Unpickler(pickle._Unpickler):
    """Unpickles the objects in a checkpoint. The class in Python, as that in C sets aside as much memory as a file
    says. Whatever a name stands for is made anew: a file can put attributes on it."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[Any, _Storage] = {}

        def tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> SavedTensor:
            return SavedTensor(storage, offset, shape, strides)

        def parameter(data: Any, *more: Any) -> Any:
            return data

        self._known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor"): tensor,
            ("torch._utils", "_rebuild_tensor_v2"): tensor,
            ("torch._utils", "_rebuild_parameter"): parameter,
            ("torch._utils", "_rebuild_parameter_with_state"): parameter,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        kind = name.removesuffix("Storage")
        return kind if module in ("torch", "torch.cuda") and kind in _STORAGES else type("Absent", (Inert,), {})

    def persistent_load(self, pid: Any) -> _Storage:
        if pid[0] != "storage" or any(view is not None for view in pid[5:]):
            raise pickle.UnpicklingError("neither a storage nor a whole one")
        storage = self.storages[pid[2]] = _Storage(pid[1], pid[2], pid[4])
        return storage


Read = Callable[[_Storage], bytes]  # the bytes of a storage


def read_objects(path: Path, file: IO[bytes]) -> tuple[object, Read]:
    """The content of a file of torch.save, and a function that reads the bytes of its tensors while it is open."""
    start = file.read(4)
    file.seek(0)
    if start != _ZIP and start[:1] != pickle.PROTO:
        raise InputError(f"{path} begins with {start!r}, where a file of torch.save begins with a zip or a pickle")
    with _undamaged(path):
        return _of_zip(file) if start == _ZIP else _of_legacy(file)


@contextlib.contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """InputError for whatever goes wrong inside: a damaged pickle may raise anything."""
    try:
        yield
    except OSError:  # the disk's, not the content's
        raise
    except Exception as error:
        raise InputError(f"{path} is no complete file of torch.save (truncated or damaged?); save it again") from error


def _of_zip(file: IO[bytes]) -> tuple[object, Read]:
    archive = zipfile.ZipFile(file)
    (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1)
    folder = pickled.removesuffix("data.pkl")

    def entry(name: str) -> bytes:
        if archive.getinfo(folder + name).compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError("torch.save compresses nothing")
        return archive.read(folder + name)

    if folder + "byteorder" in archive.namelist() and entry("byteorder") != b"little":
        raise pickle.UnpicklingError("of another kind of machine")
    return _Unpickler(io.BytesIO(entry("data.pkl"))).load(), lambda storage: entry(f"data/{storage.key}")


def _of_legacy(file: IO[bytes]) -> tuple[object, Read]:
    """Pickles one after the other: a magic number, a version, the machine, the objects, the keys of storages; then
    these, each with its number of elements before."""
    magic, _, machine = (_Unpickler(file).load() for _ in range(3))
    if magic != _LEGACY or not machine["little_endian"]:
        raise pickle.UnpicklingError("no file of torch.save, or of another kind of machine")
    content = (unpickler := _Unpickler(file)).load()
    places: dict[Any, tuple[int, int]] = {}
    keys, at = _Unpickler(file).load(), file.tell()
    for key in keys:
        file.seek(at)
        length = int.from_bytes(file.read(8), "little", signed=True) * _STORAGES[unpickler.storages[key].kind][1]
        places[key], at = (at + 8, length), at + 8 + length
        if length < 0 or at > os.fstat(file.fileno()).st_size:
            raise pickle.UnpicklingError("truncated")

    def read(storage: _Storage) -> bytes:
        start, length = places[storage.key]
        file.seek(start)
        return file.read(length)

    return content, read


def load_tensor(path: Path, name: str, tensor: object, read: Read) -> Tensor:
    """A tensor of the state dictionary in float32, as a copy of its own. InputError: it is of a type that is not known,
    empty, damaged, or holds values that are not finite or are huge."""
    import torch

    where = f"{path}: {one_line(name)}"
    storage = tensor.storage if isinstance(tensor, SavedTensor) else None
    if not isinstance(tensor, SavedTensor) or not isinstance(storage, _Storage) or storage.kind not in [*_FLOATS]:
        kind = storage.kind if isinstance(storage, _Storage) and storage.kind in [*_STORAGES] else None
        valid = ", ".join(dtype for dtype, _ in _FLOATS.values())
        what = f"of {_STORAGES[kind][0]}" if kind else "no plain tensor"
        raise InputError(f"{where} is {what}, where a dense tensor of {valid} would be valid")
    with _undamaged(path):
        (dtype, item), size = _FLOATS[storage.kind], storage.size
        shape, strides, offset = tuple(tensor.shape), tuple(tensor.strides), tensor.offset
        numbers = [size, offset, *shape, *strides]
        if len(shape) > 8 or not all(type(number) is int and number >= 0 for number in numbers):
            raise pickle.UnpicklingError("no shape")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if 0 not in shape and max(last + 1, math.prod(shape)) > size:
            raise pickle.UnpicklingError("a tensor beyond its storage")
        data = read(storage)
        if len(data) != size * item:
            raise pickle.UnpicklingError("a storage of another size")
    if not math.prod(shape):
        raise InputError(f"{where} has shape {list(shape)}, which holds nothing")
    flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    dense = flat.as_strided(shape, strides, offset).contiguous().to(torch.float32, copy=True)
    check_values(dense, where)
    return dense
