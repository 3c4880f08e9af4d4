"""Reads the prompts in a checkpoint of CoOp, MaPLe or code that is built on these, and executes nothing in it.

Kinds of state dictionaries, with CSC for class-specific prompts. Names may begin with "prompt_learner.", with a frozen
CLIP beside them; the embeddings of the training's class names (token_suffix, embedding) are never used:

    ctx                                      CoOp, PromptFL: [b, d], or with CSC [C, b, d]
    sigma, U, V                              FedPGP with one prompt: sigma + U V
    global_ctx                               DP-FPL's code for PromptFL; also global_ctx + local_ctx for FedOTP,
                                             and global_ctx + local_u_ctx local_v_ctx for FedPGP
    ctx, proj.*, compound_prompts_text.*, compound_prompt_projections.*                              MaPLe
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.files import OwnFiles
from fedaudit.external.names import unwrapped
from fedaudit.external.schema import one_line
from fedaudit.external.tensors import check_values
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.torch_files import Read, load_tensor, read_objects

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, DUAL = "prompts", "dual prompts"  # kinds of checkpoints; dual prompts are those of `trainers.maple`
# where checkpoints lie in the folder of a training: CoOp's, MaPLe's, and those of MaPLe's code without couplings
FOLDERS = ("", "prompt_learner", "MultiModalPromptLearner", "VLPromptLearner")
BEST = "model-best.pth.tar"
VALID = (
    "a prompt's tensor ctx, as CoOp saves it, or MaPLe's ctx, proj, compound_prompts_text and "
    "compound_prompt_projections"
)
_NUMBERED = re.compile(r"model\.pth\.tar-(\d{1,18})", re.ASCII)
_FILE = re.compile(r"\.(pth|pt|pth\.tar(-\d+)?)\Z", re.ASCII)
_FORMS = (  # of soft prompts: a sum of products of tensors
    (("ctx",),),
    (("sigma",), ("U", "V")),
    (("global_ctx",),),
    (("global_ctx",), ("local_ctx",)),
    (("global_ctx",), ("local_u_ctx", "local_v_ctx")),
)
_LEARNER = "prompt_learner."
_PREFIX, _BUFFERS = "token_prefix", ("token_prefix", "token_suffix", "embedding")
_FROZEN = re.compile(r"(image_encoder|text_encoder|token_embedding|clip_model_?)\..+|logit_scale", re.ASCII)
_TRAINED = re.compile(r"VPT|lora|adapter", re.I)  # in names of the encoders' tensors: no part of the frozen CLIP

State = dict[str, "Tensor"]


@dataclass(frozen=True)
class Checkpoint:
    """The prompts in a checkpoint, in float32."""

    path: Path
    kind: str  # PROMPTS or DUAL
    state: State  # ctx [b, d] or [C, b, d]; or Pt [D, b, d] and Pd [D, e, d + 1] of D layers
    start_token: Tensor | None  # [d], the embedding of the token before each prompt, if the file has it


def find(place: Path) -> Path | None:
    """The checkpoint that a file is, by its name, or that a folder holds, itself or in one of FOLDERS: the one of the
    last epoch, or the best one if there is no other. None if there is none."""
    if not user_files.is_dir(place):
        return place if _FILE.search(place.name) and user_files.exists(place) else None
    for folder in (place / name for name in FOLDERS):
        paths = _listed(folder)
        numbered = {int(match[1]): path for path in paths if (match := _NUMBERED.fullmatch(path.name))}
        best = next((path for path in paths if path.name == BEST), None)
        if numbered or best:
            return numbered[max(numbered)] if numbered else best
    return None


def _listed(folder: Path) -> list[Path]:
    if not user_files.is_dir(folder):
        return []
    with contextlib.suppress(OSError):  # another user's
        return user_files.listed(folder)
    return []


def read_checkpoint(files: OwnFiles, path: Path) -> Checkpoint:
    """Read the prompts of a checkpoint. InputError: it is unreadable, damaged, of a form that is not known, or holds
    values that are not finite or are huge."""
    with files.opened(path) as file:
        content, read = read_objects(path, file)
        tensors = _prompt_tensors(path, content)
        names = tensors.keys() - {*_BUFFERS}
        dual = any(name.startswith(("proj.", "compound_prompt")) for name in names)
        form = next((form for form in _FORMS if names == {name for term in form for name in term}), None)
        if not dual and form is None:
            raise InputError(f"{path}: its state_dict holds {_listing(sorted(names))}, where {VALID} would be valid")
        needed = sorted(names | tensors.keys() & {_PREFIX})
        loaded = {name: _load(f"{path}: {one_line(name)}", tensors[name], read) for name in needed}
    prefix = loaded.pop(_PREFIX, None)
    state = {"ctx": _soft_prompt(path, form, loaded, prefix)} if form else _dual_prompts(path, loaded)
    kind = PROMPTS if form else DUAL
    width = state["ctx" if form else "Pt"].shape[-1]
    return Checkpoint(path, kind, state, None if prefix is None else _start_token(path, prefix, width))


def _load(where: str, tensor: object, read: Read) -> Tensor:
    """A tensor in float32. InputError, which begins with `where`, as in `load_tensor` and `check_values`."""
    import torch

    loaded = load_tensor(where, tensor, read).to(torch.float32)
    check_values(loaded, where)
    return loaded


def _prompt_tensors(path: Path, content: object) -> dict[str, object]:
    """The prompt learner's part of a checkpoint's state dictionary, by name. InputError: there is none, or more than
    prompts was trained."""
    entries = dict.get(content, "state_dict") if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        what = _listing([*dict.keys(content)]) if isinstance(content, dict) else "no dictionary"
        raise InputError(f'{path} holds {what}, where a checkpoint of Dassl has "state_dict"')
    pairs = dict.items(entries)  # an OrderedDict that was unpickled may have any attributes, such as `items`
    tensors = {unwrapped(name): tensor for name, tensor in pairs if isinstance(name, str)}
    learner = {name.removeprefix(_LEARNER): tensor for name, tensor in tensors.items() if name.startswith(_LEARNER)}
    if not learner:
        return tensors
    more = [n for n in tensors if not n.startswith(_LEARNER) and (not _FROZEN.fullmatch(n) or _TRAINED.search(n))]
    if more:
        raise InputError(
            f"{path} holds {_listing(more)} beside its prompt learner; valid are prompts in a CLIP that is frozen, "
            "without layers or prompts of its own"
        )
    return learner


def _soft_prompt(
    path: Path, form: Sequence[Sequence[str]], tensors: Mapping[str, Tensor], prefix: Tensor | None
) -> Tensor:
    """ctx [b, d], or with CSC [C, b, d]. InputError: shapes do not fit together, or are of several prompts a class."""
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in sorted(tensors.items()))
    ctx = tensors[form[0][0]]
    for term in form[1:]:
        factors = [tensors[name] for name in term]
        if _shape_of_product(factors) != ctx.shape:
            raise InputError(f"{path}: shapes do not fit together, of {shapes}")
        ctx = ctx + functools.reduce(lambda a, b: a @ b, factors)
    if "sigma" in tensors and ctx.dim() == 3 and len(ctx) == 1:  # one prompt
        ctx = ctx[0]
    by_class = form == _FORMS[0] and ctx.dim() == 3 and prefix is not None and prefix.shape[:1] == ctx.shape[:1]
    if ctx.dim() != 2 and not by_class:
        beside = f"{_PREFIX} {list(prefix.shape)}" if prefix is not None else f"no {_PREFIX}"
        raise InputError(
            f"{path} has {shapes} and {beside}; valid is one prompt [tokens, width], or as many as {_PREFIX} has rows, "
            "one of each class; several prompts for all classes are not read"
        )
    return ctx


def _shape_of_product(factors: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Shape of the product of one matrix, or of two; None if they do not fit."""
    shapes = [tuple(factor.shape) for factor in factors]
    first, last = shapes[0], shapes[-1]
    if len(shapes) > 1 and (len(last) < 2 or first[:-2] != last[:-2] or first[-1:] != last[-2:-1]):
        return None
    return first[:-1] + last[-1:]


def _dual_prompts(path: Path, tensors: Mapping[str, Tensor]) -> State:
    """Pt [D, b, d] and Pd [D, e, d + 1]. InputError: a tensor is missing, unexpected, or has a shape that does not
    fit."""
    import torch

    deeper = range(sum(name.startswith("compound_prompts_text.") for name in tensors))
    prompts = ["ctx", *(f"compound_prompts_text.{i}" for i in deeper)]
    couplings = ["proj", *(f"compound_prompt_projections.{i}" for i in deeper)]
    expected = {*prompts, *(f"{name}.{part}" for name in couplings for part in ("weight", "bias"))}
    if wrong := sorted(expected ^ tensors.keys()):
        raise InputError(
            f"{path} {'lacks' if wrong[0] in expected else 'also holds'} {one_line(wrong[0])}; MaPLe's prompts with "
            f"{len(deeper)} compound_prompts_text have ctx, and weight and bias of proj and of {len(deeper)} "
            "compound_prompt_projections"
        )
    ctx, width = tensors["ctx"], tensors["proj.bias"].shape[-1:]
    for name, tensor in sorted(tensors.items()):
        fitting = ctx.shape if name in prompts else (*width, *ctx.shape[-1:]) if name.endswith("weight") else (*width,)
        if tensor.shape != fitting or tensor.dim() != (1 if name.endswith(".bias") else 2):
            raise InputError(
                f"{path}: {one_line(name)} has shape {list(tensor.shape)}, where {list(fitting)} would fit ctx "
                f"{list(ctx.shape)}, which is [tokens, width], and proj.bias {list(tensors['proj.bias'].shape)}"
            )
    functions = [torch.cat([tensors[f"{n}.weight"], tensors[f"{n}.bias"][:, None]], dim=1) for n in couplings]
    return {"Pt": torch.stack([tensors[name] for name in prompts]), "Pd": torch.stack(functions)}


def _start_token(path: Path, prefix: Tensor, width: int) -> Tensor:
    """The row [d] of token_prefix [C, 1, d]. InputError: it has another shape, or its rows differ."""
    if prefix.dim() != 3 or prefix.shape[1:] != (1, width):
        raise InputError(
            f"{path}: {_PREFIX} has shape {list(prefix.shape)}, where [classes, 1, {width}] would fit its prompt"
        )
    if not (prefix == prefix[0]).all():
        raise InputError(f"{path}: {_PREFIX} has rows that differ, where it is the same start token for each class")
    return prefix[0, 0].clone()


def _listing(names: Collection[Any]) -> str:
    """A few of the names, for a message; "nothing" if there is none."""
    few = [one_line(name) for name in names if isinstance(name, str)][:8]
    return ", ".join([*few, *["..."] * (len(names) > len(few))]) or "nothing"
