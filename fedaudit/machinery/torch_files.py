"""Reads files of torch.save and torch.jit.save, and executes nothing in them: zip, and the legacy format before it.

Such a file is a pickle, which may name any function to be called. Here it may name what tensors are made of; all else,
as the class of a scheduler or a scalar of numpy, becomes an `Inert`. A TorchScript archive is a program; of it only the
tensors of its modules are read. torch.load is not used: it would run that program, and it reads all tensors, of which a
few are wanted.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_ZIP, _LEGACY = b"PK\x03\x04", 0x1950A86A20F9469CFC6C  # how files begin; of the legacy format the first pickle
_STORAGES = {  # dtype and bytes per number
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
    "ComplexDouble": ("complex128", 16), "ComplexFloat": ("complex64", 8), "Long": ("int64", 8), "Int": ("int32", 4),
    "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1), "Bool": ("bool", 1),
}  # fmt: skip
FLOATS = ("float64", "float32", "float16", "bfloat16")


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


class Module(Inert):
    """A module of a TorchScript archive. `parts` are its attributes by name: tensors, modules, numbers."""

    parts: dict[Any, Any]

    def __setstate__(self, state: object) -> None:
        self.parts = state if isinstance(state, dict) else {}

    @property
    def tensors(self) -> dict[str, SavedTensor]:
        """All tensors of the module and those in it, by name, as in a state dictionary. RecursionError: the module
        holds itself."""
        tensors: dict[str, SavedTensor] = {}
        for name, part in dict.items(vars(self).get("parts", {})):
            if isinstance(part, SavedTensor):
                tensors[str(name)] = part
            elif isinstance(part, Module):
                tensors |= {f"{name}.{inner}": tensor for inner, tensor in part.tensors.items()}
        return tensors


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

    @property
    def dtype(self) -> str:
        """The name of its dtype in torch; "" if it has none."""
        kind = self.storage.kind if isinstance(self.storage, _Storage) else None
        return _STORAGES[kind][0] if kind in [*_STORAGES] else ""


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
        if module.partition(".")[0] == "__torch__":
            return type("Compiled", (Module,), {})
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
    with undamaged(str(path)):
        return _of_zip(file) if start == _ZIP else _of_legacy(file)


@contextlib.contextmanager
def undamaged(where: str) -> Iterator[None]:
    """InputError for whatever goes wrong inside: a damaged pickle may raise anything."""
    try:
        yield
    except OSError:  # the disk's, not the content's
        raise
    except Exception as error:
        raise InputError(f"{where} is no complete file of torch.save (truncated or damaged?); save it again") from error


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


def load_tensor(where: str, tensor: object, read: Read, valid: Collection[str] = FLOATS) -> Tensor:
    """A tensor of a file as a copy of its own, in its own dtype; messages begin with `where`. InputError: it is of a
    dtype that is not `valid`, empty, or damaged."""
    import torch

    dtype = tensor.dtype if isinstance(tensor, SavedTensor) else ""
    if not isinstance(tensor, SavedTensor) or dtype not in valid:
        what = f"of {dtype}" if dtype else "no plain tensor"
        raise InputError(f"{where} is {what}, where a dense tensor of {', '.join(valid)} would be valid")
    with undamaged(where):
        shape, strides, offset = tuple(tensor.shape), tuple(tensor.strides), tensor.offset
        item, size = _STORAGES[tensor.storage.kind][1], tensor.storage.size
        numbers = [size, offset, *shape, *strides]
        if len(shape) > 8 or not all(type(number) is int and number >= 0 for number in numbers):
            raise pickle.UnpicklingError("no shape")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if 0 not in shape and max(last + 1, math.prod(shape)) > size:
            raise pickle.UnpicklingError("a tensor beyond its storage")
        data = read(tensor.storage)
        if len(data) != size * item:
            raise pickle.UnpicklingError("a storage of another size")
    if not math.prod(shape):
        raise InputError(f"{where} has shape {list(shape)}, which holds nothing")
    flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    return flat.as_strided(shape, strides, offset).clone(memory_format=torch.contiguous_format)
