"""Checks of CLIP weight files without loading them: hidden code, and the activation. Imports nothing heavy."""

import os
import re
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaudit.backbones.model_folders import read_json
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

GELU, QUICK_GELU = "GELU", "QuickGELU"
CONFIG, WEIGHTS, TOKENIZER = "open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"
OLDER_TOKENIZER = ("vocab.json", "merges.txt")  # two files, in folders older than tokenizer.json
HUB_FILES = (WEIGHTS, "open_clip_pytorch_model.bin")  # in the order in which open_clip looks for them
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")  # of a file of weights
_CHECKPOINT = re.compile(r".*\.pth\.tar(-\d+)?")  # model.pth.tar-50, as CoOp's trainer names its checkpoints
_QUICK = re.compile(r"quick[-_]?gelu|openai", re.IGNORECASE)  # OpenAI trained all of its models with QuickGELU
_ACTIVATIONS = {"gelu": GELU, "quick_gelu": QUICK_GELU}


def tokenizer_files(folder: Path) -> tuple[str, ...]:
    """File names of a folder's tokenizer: tokenizer.json, or the two older ones (one may be missing)."""
    older = not (folder / TOKENIZER).is_file() and any((folder / name).is_file() for name in OLDER_TOKENIZER)
    return OLDER_TOKENIZER if older else (TOKENIZER,)


def check_name(weights: str, file: Path) -> None:
    """Raise InputError unless `file` exists and ends as weights do. The message says what is there instead."""
    where, place = f"--weights {weights}: ", file.absolute()
    ends = f"weights end in {', '.join(SUFFIXES)}"
    if os.path.isfile(file):
        if file.suffix not in SUFFIXES:
            raise InputError(f"{where}{_other(file)}; {ends}")
    elif os.path.isdir(file):
        raise InputError(
            f"{where}{place} is a folder, and folders are given as --backbone; {user_files.largest(place)}"
        )
    elif os.path.lexists(file):
        raise InputError(f"{where}{place} is no regular file, or a link that leads nowhere; {ends}")
    else:
        folder = next(one for one in place.parents if os.path.isdir(one))
        raise InputError(
            f"{where}there is no file {place}; the folder {folder} is there, and {user_files.largest(folder)}; {ends}"
        )


def _other(file: Path) -> str:
    """A clause for a message: the contents of a file whose name does not end as those of weights do, and what to do
    about it."""
    names = _tensor_names(file)
    some = ", ".join(name if name.isprintable() else ascii(name) for name in names[:3])
    checkpoint = _CHECKPOINT.fullmatch(file.name)
    kind = f"{file.name} is {'a checkpoint, as CoOp names what it has learned' if checkpoint else 'there'}, and holds"
    if len(names) > 50 and any(name.endswith("token_embedding.weight") for name in names):
        return f"{kind} a whole model ({some}, ...); where that is a CLIP, let its name end in .pt"
    if names:
        return (
            f"{kind} {len(names)} tensors ({some}), which are no whole CLIP; give the weights that it was trained on, "
            "such as --weights openai"
        )
    return f"{kind} no tensors that can be read here; give the weights of a CLIP"


def _tensor_names(file: Path) -> list[str]:
    """Names of the tensors in a file of torch's, read without unpickling; empty if that fails."""
    import torch

    try:
        with user_files.opened(file) as opened:
            saved = torch.load(opened, map_location="cpu", weights_only=True)
        return [str(name) for name, value in saved.get("state_dict", saved).items() if isinstance(value, torch.Tensor)]
    except Exception:  # the user's files can raise anything
        return []


def check_file(weights: str, file: Path) -> None:
    """Raise InputError if `file` cannot be read or is a TorchScript archive: these are programs, and never run."""
    try:
        with user_files.opened(file) as opened:
            archive = zipfile.is_zipfile(opened) and _holds_code(zipfile.ZipFile(opened))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"--weights {weights}: {file} cannot be read ({error})") from error
    if archive:
        new = file.with_name(f"{file.stem}-openai.pt")
        code = (
            f"import open_clip, torch; torch.save(open_clip.load_openai_model({str(file)!r}, 'fp32', "
            f"'cpu').state_dict(), {str(new)!r})"
        )
        raise InputError(
            f"--weights {weights}: this is a TorchScript archive, as OpenAI publishes its models, and the code in it "
            f"is never run here; where you trust it, write its tensors into {new.name} by `python -c "
            f"{shlex.quote(code)}` and give that, or take the same weights as safetensors by --weights openai"
        )


def _holds_code(archive: zipfile.ZipFile) -> bool:
    """Whether an archive is one of `torch.jit.save` (those of `torch.save` have neither code nor constants)."""
    return any(name.partition("/")[2].startswith(("code/", "constants.pkl")) for name in archive.namelist())


def activation_hint(file: Path) -> str | None:
    """The activation (QUICK_GELU or GELU) that a file's name or its folder's configuration tells; None if neither tells
    it."""
    if file.name in HUB_FILES and (file.parent / CONFIG).is_file():
        try:
            quick = read_json(file.parent / CONFIG)["model_cfg"].get("quick_gelu")
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return QUICK_GELU if quick else GELU
    return QUICK_GELU if _QUICK.search(file.name) else None


def hidden_activation(flag: str, config: Mapping[str, Any]) -> str:
    """The activation (QUICK_GELU or GELU) that a configuration of Hugging Face's CLIPModel tells. InputError if
    open_clip has no such model."""
    towers = [_tower(config, name).get("hidden_act", "quick_gelu") for name in ("text_config", "vision_config")]
    if towers[0] != towers[1] or str(towers[0]) not in _ACTIVATIONS:
        names = " and ".join(str(name)[:40] for name in dict.fromkeys(map(str, towers)))
        raise InputError(f"{flag}: its hidden_act is {names}, and gelu or quick_gelu, in both towers, is valid")
    return _ACTIVATIONS[towers[0]]


def _tower(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration of one tower; if an older folder has it twice, the second one counts."""
    parts = [config.get(name), config.get(f"{name}_dict")]
    return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
