"""A stand-in GPU: tensors that lie on a device of their own and compute real numbers on the processor.

`install()` registers it for the whole process, so that its tests run in processes of their own; it needs torch 2.10.
It holds code to what CUDA does: an operation on tensors of two devices raises, `.numpy()` of a device tensor raises, and
a generator of the processor cannot fill a device tensor. `install(apple=True)` also holds it to what Apple's GPU does:
tensors in double precision raise, and so do operations for which torch has no kernel there. `READS` counts where the
host waited for a number of the device (item, nonzero, an index by a mask), by the project's own lines; copies are none.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torchgen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

NAME = "standin"
ROOT = str(Path(__file__).parents[1])
READS: Counter[str] = Counter()
APPLE: set[str] = set()  # what Apple's GPU can compute; empty: the stand-in is a CUDA device

aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.is_nonzero.default, aten._unique2.default, aten.unique_dim.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# what torch asks of a device that has no fused kernels: plain matrix products
PLAIN_ATTENTION = 0


def available() -> bool:
    """Whether this torch lets a device be written in Python."""
    return hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")


def install(*, apple: bool = False) -> None:
    """From now on this process has the device; `apple`: it is as poor as Apple's GPU."""
    if apple:
        APPLE.update(kernels())
        torch.backends.mha.set_fastpath_enabled(False)  # which torch does not take there, but here
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(.., device=) makes a host tensor, then copies it
    _Factories().__enter__()
    made = ThreadPoolExecutor.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        made(self, *args, **{"initializer": lambda: _Factories().__enter__(), **more})  # a mode is a thread's own

    ThreadPoolExecutor.__init__ = init  # type: ignore[method-assign]


def kernels() -> set[str]:
    """The operations that Apple's GPU has, by torch's own table: those with a kernel for it, or made of others."""
    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    blocks = {block.split("(")[0]: block for block in re.split(r"^- func: ", table.read_text(), flags=re.M)[1:]}

    def has(block: str) -> bool:
        if out := re.search(r"^  structured_delegate: (\S+)", block, re.M):
            return has(blocks[out[1]])
        return "\n  dispatch:" not in block or bool(re.search(r"^    .*\b(MPS|Composite\w+)\b.*: ", block, re.M))

    return {name for name, block in blocks.items() if has(block)}


def on_host() -> AbstractContextManager[Any]:
    """A block in which nothing is asked of the device, so that nobody looks whether it is."""
    return _pop_mode_temporarily() if torch._C._len_torch_dispatch_stack() else nullcontext()


class DeviceTensor(torch.Tensor):
    """A tensor of the device, whose numbers are in `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.host = host
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        READS[_line()] += 1
        return self.host.tolist()

    @property
    def data(self) -> Any:  # as peft gives a parameter its value
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, DeviceTensor), "a device tensor cannot hold numbers of the host"
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.host = value.host


class _Factories(TorchDispatchMode):
    """Sees what is called without a device tensor: `torch.zeros(.., device=)`, `tensor.to(device)`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and to look whether it is takes longer than most operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device where its tensors are or where it is told to make some."""
    tensors = [*_tensors((*args, *kwargs.values()))]
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if not on_device and target != NAME:
        return func(*args, **kwargs)
    if func is aten._fused_sdp_choice.default:
        return PLAIN_ATTENTION
    if func not in (aten._to_copy.default, aten.copy_.default):
        _check(func, args, kwargs, tensors)
    given = {name: _mapped(kwargs[name], _on_host) for name in kwargs.keys() - {"pin_memory", "non_blocking"}}
    if target is not None:
        given["device"] = torch.device("cpu")
    result = func(*_mapped(args, _on_host), **given)
    if APPLE:
        _check_apple(func, result)
    in_place = {id(tensor.host if isinstance(tensor, DeviceTensor) else tensor): tensor for tensor in tensors}
    made = DeviceTensor if target in (None, NAME) else lambda one: one
    return _mapped(result, lambda one: in_place[id(one)] if id(one) in in_place else made(one))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among values and lists of values."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value, or lists of values, with other tensors in it; several times faster than torch's trees."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_mapped(one, change) for one in value) if isinstance(value, list | tuple) else value


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.host if isinstance(tensor, DeviceTensor) else tensor


def _check(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """RuntimeError as of CUDA for what mixes devices; counts what makes the host wait."""
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != NAME:
        raise RuntimeError(f"Expected a {NAME!r} device type for generator but found {generator.device.type!r}")
    indices = [one for one in args[1] if one is not None] if func in INDEXING else []
    on_host = [
        tensor for tensor in tensors
        if not isinstance(tensor, DeviceTensor) and tensor.dim() and not any(tensor is one for one in indices)
    ]  # fmt: skip
    if on_host:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {NAME}:0 and cpu ({func} at {_line()})")
    if func in WAITING or any(index.dtype == torch.bool for index in indices):
        READS[_line()] += 1


def _check_apple(func: Any, result: Any) -> None:
    """What torch raises on Apple's GPU for an operation without a kernel, and for a result in double precision, also on
    the way to the host: the device would convert it."""
    operation = ".".join(filter(None, (func._schema.name.removeprefix("aten::"), func._schema.overload_name)))
    if operation not in APPLE:
        raise NotImplementedError(f"The operator {operation!r} is not implemented for Apple's GPU ({_line()})")
    wide = {tensor.dtype for tensor in _tensors([result])} & {torch.float64, torch.complex128}
    if wide:
        raise TypeError(f"Cannot convert a tensor of Apple's GPU to {wide.pop()} ({func} at {_line()})")


def _line() -> str:
    """The innermost line of the product on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and "/.venv/" not in name and not name.startswith(f"{ROOT}/tests/"):
            return f"{name[len(ROOT) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"
