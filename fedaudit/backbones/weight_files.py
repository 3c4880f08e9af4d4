"""Files of weights as people have them: safetensors, torch.save, and the TorchScript archives that OpenAI publishes.

Names, shapes and dtypes are told without reading the numbers, and nothing in a file is executed
(`fedaudit.machinery.torch_files`). A checkpoint of a training has the model's tensors under one of `WRAPPED`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.torch_files import FLOATS, Module, SavedTensor, load_tensor, read_objects

if TYPE_CHECKING:
    from torch import Tensor

WRAPPED = ("state_dict", "model_state_dict", "model")  # where checkpoints of a training hold the model
PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
OPENAI_SIZES = {"input_resolution", "context_length", "vocab_size"}  # in OpenAI's archives beside the weights
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
           "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip
_VALID = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")
_PAGE = re.compile(rb"\s*(<!doctype\s+html|<html|<\?xml)", re.IGNORECASE)
_STARTS = {
    b"version https://git-lfs": "a git-lfs pointer, not the weights; fetch them by `git lfs pull` or `hf download`",
    b"GGUF": "a quantised model for llama.cpp (GGUF), and attacks compute with the weights as floats",
    b"\x1f\x8b": "packed by gzip; unpack it first",
    b"\x89HDF": "a file of HDF5, as TensorFlow and Keras save models; only PyTorch's are read",
}
_PROMPT = re.compile(r"(prompt_learner\.)?(ctx|global_ctx|sigma|compound_prompts_text\.\d+)")
_LORA = re.compile(r"(^|\.)lora_[AB]\b")
_LANGUAGE = re.compile(r"(^|\.)(multi_modal_projector|mm_projector|lm_head|language_model)\.")
HUGGING_FACE = "text_model.final_layer_norm.weight"  # in every CLIP of Hugging Face


class UnfitFile(ValueError):
    """A file holds no weights of a model; the message is a clause such as "is empty"."""


@dataclass(frozen=True)
class WeightFile:
    """A file's tensors of a model, unread; names are without PREFIXES."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    in_file: Mapping[str, str]  # the name in the file, by name
    openai: bool = False  # an archive as OpenAI publishes its models, all of them trained with QuickGELU

    def load(self, *, numbers: bool = True) -> dict[str, Tensor]:
        """All tensors by name, in the file's dtypes; without `numbers` on the device "meta". InputError or an error of
        safetensors: one is damaged, or of a dtype that no model has."""
        import torch

        if not numbers:
            return {
                name: torch.empty(shape, dtype=getattr(torch, self.dtypes[name]), device="meta")
                for name, shape in self.shapes.items()
            }
        if _is_safetensors(self.path):
            from safetensors.torch import load_file

            tensors = load_file(self.path)
            return {name: tensors[saved] for name, saved in self.in_file.items()}
        with user_files.opened(self.path) as file:
            content, read = read_objects(self.path, file)
            saved_tensors = _model_tensors(content)
            return {
                name: load_tensor(f"{self.path}: {saved}", saved_tensors[saved], read, _VALID)
                for name, saved in self.in_file.items()
            }


def read_weights(path: Path) -> WeightFile:
    """The tensors of a file, unread. UnfitFile: it is none, damaged, or holds something else than a model."""
    check_start(path)
    if _is_safetensors(path):
        return _read_header(path)
    with user_files.opened(path) as file:
        try:
            content, _ = read_objects(path, file)
        except InputError as error:
            raise UnfitFile(_damage(path)) from error
    try:
        tensors = _model_tensors(content)
    except RecursionError as error:
        raise UnfitFile("is damaged: a module in it holds itself") from error
    if not tensors:
        raise UnfitFile(_other_content(content))
    openai = isinstance(content, Module) and tensors.keys() >= OPENAI_SIZES
    if isinstance(content, Module):
        tensors = {name: tensor for name, tensor in tensors.items() if name not in OPENAI_SIZES}
    for name, tensor in tensors.items():
        if tensor.dtype not in _VALID or not _is_shape(tensor.shape):
            raise UnfitFile(f"holds {name!a}, which is no plain tensor")
    saved = _without_prefixes(tensors)
    return WeightFile(
        path,
        {name: tuple(tensors[one].shape) for name, one in saved.items()},
        {name: tensors[one].dtype for name, one in saved.items()},
        saved,
        openai,
    )


def check_start(path: Path) -> None:
    """UnfitFile if a file is empty or begins as one that holds no weights: a pointer, a page, another format."""
    with user_files.opened(path) as file:
        start = file.read(512)
    if not start:
        raise UnfitFile("is empty; download it again")
    if _PAGE.match(start):
        raise UnfitFile("is a web page, not the weights, as a browser saves it after a login or an error")
    for mark, meaning in _STARTS.items():
        if start.startswith(mark):
            raise UnfitFile(f"is {meaning}")


def foreign(names: Collection[str]) -> str:
    """A clause that says what tensors of these names are, if they are no CLIP by open_clip's names; else ""."""
    if prompt := next((name for name in names if _PROMPT.fullmatch(name)), ""):
        return (
            f"is a prompt that was learned for a CLIP ({prompt}, as CoOp and MaPLe save it), not a CLIP; give the CLIP "
            "that it was learned for, and audit the prompt by --run"
        )
    if lora := next((name for name in names if _LORA.search(name)), ""):
        return f"is a LoRA adapter ({_short(lora)}), not a model; merge it into its base, or audit it by --run"
    if HUGGING_FACE in names:
        return "holds tensors by Hugging Face's names; give the folder with its config.json as --backbone"
    if language := next((name for name in names if _LANGUAGE.search(name)), ""):
        return (
            f"holds a model that writes text ({_short(language)}), such as a LLaVA, where a CLIP is needed; LoRA "
            "methods take its folder as --backbone"
        )
    return ""


def _short(name: str) -> str:
    return name if name.isprintable() and len(name) < 100 else ascii(name)[:100]


def _is_safetensors(path: Path) -> bool:
    """Whether a file is one of safetensors, by its name or, as in the hub's cache, by the header behind 8 bytes."""
    with user_files.opened(path) as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def _read_header(path: Path) -> WeightFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: _DTYPES.get(str(part.get_dtype()), "") for name, part in slices.items()}
    except SafetensorError as error:
        raise UnfitFile(f"is truncated or damaged ({' '.join(str(error).split())})") from error
    if not shapes:
        raise UnfitFile("holds no tensors")
    if odd := next((name for name, dtype in dtypes.items() if not dtype), ""):
        raise UnfitFile(f"holds {_short(odd)} in a dtype that no model here has; save it as float32")
    saved = _without_prefixes(shapes)
    return WeightFile(
        path, {name: shapes[one] for name, one in saved.items()}, {n: dtypes[o] for n, o in saved.items()}, saved
    )


def _model_tensors(content: object) -> dict[str, SavedTensor]:
    """The tensors of a model in the content of a file, by name; what else stands beside them is left out."""
    if isinstance(content, Module):
        return content.tensors
    if not isinstance(content, dict):
        return {}
    # a dict that was unpickled may have any attributes, such as `items`
    inner = next((value for name in WRAPPED if isinstance(value := dict.get(content, name), dict)), content)
    return {name: one for name, one in dict.items(inner) if isinstance(name, str) and isinstance(one, SavedTensor)}


def _without_prefixes(names: Collection[str]) -> dict[str, str]:
    """{name without PREFIXES: name}; a prefix is left out if all names begin with it."""
    prefix = ""
    while more := next((one for one in PREFIXES if all(name.startswith(prefix + one) for name in names)), ""):
        prefix += more
    return {name.removeprefix(prefix): name for name in names}


def _other_content(content: object) -> str:
    """A clause on the content of a file of torch.save that has no tensors by name."""
    if not isinstance(content, dict):
        return "holds no tensors by name but an object of some class, which is never unpickled; save its state_dict"
    keys = [str(key) for key in dict.keys(content)]
    if {"param_groups", "state"} <= {*keys}:
        return "is the state of an optimizer, without a model; give the file with the model's state_dict"
    few = ", ".join(_short(key) for key in keys[:4])
    return f"holds no tensors by name{f', but {few}' if few else ''}; save the model's state_dict"


def _damage(path: Path) -> str:
    """A clause on a file that torch.save did not write whole."""
    with user_files.opened(path) as file:
        start = file.read(4)
        if start == b"PK\x03\x04" and zipfile.is_zipfile(file):
            names = zipfile.ZipFile(file).namelist()
            if not any(name.endswith("data.pkl") for name in names):
                return f"is a zip archive, with {_short(names[0]) if names else 'nothing'} in it; unpack it first"
    if start == b"PK\x03\x04":
        return "is truncated, and its end is missing; download or save it again"
    if start[:1] == b"\x80":
        return "is truncated or damaged, or a pickle that torch.save did not write"
    return f"holds no weights: it begins with {start!r}; weights are files of safetensors, torch.save or torch.jit.save"


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(type(n) is int and n >= 0 for n in shape)
