"""Checks of CLIP weight files without loading them: what they hold, and the activation. Imports nothing heavy."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaudit.backbones.model_folders import read_json
from fedaudit.backbones.weight_files import UnfitFile, WeightFile, foreign, read_weights
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

GELU, QUICK_GELU = "GELU", "QuickGELU"
CONFIG, WEIGHTS, TOKENIZER = "open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"
OLDER_TOKENIZER = ("vocab.json", "merges.txt")  # two files, in folders older than tokenizer.json
HUB_FILES = (WEIGHTS, "open_clip_pytorch_model.bin")  # in the order in which open_clip looks for them
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")  # of a file of weights
_QUICK = re.compile(r"quick[-_]?gelu|openai", re.IGNORECASE)  # OpenAI trained all of its models with QuickGELU
_ACTIVATIONS = {"gelu": GELU, "quick_gelu": QUICK_GELU}


def tokenizer_files(folder: Path) -> tuple[str, ...]:
    """File names of a folder's tokenizer: tokenizer.json, or the two older ones (one may be missing)."""
    older = not (folder / TOKENIZER).is_file() and any((folder / name).is_file() for name in OLDER_TOKENIZER)
    return OLDER_TOKENIZER if older else (TOKENIZER,)


def check_file(weights: str, file: Path) -> WeightFile:
    """The header of the file that --weights names. InputError: it is missing, or says what it is instead of a CLIP."""
    where, place = f"--weights {weights}: ", file.absolute()
    if os.path.isdir(file):
        raise InputError(
            f"{where}{place} is a folder, and folders are given as --backbone; {user_files.largest(place)}"
        )
    if not os.path.lexists(file):
        folder = next(one for one in place.parents if os.path.isdir(one))
        raise InputError(
            f"{where}there is no file {place}; the folder {folder} is there, and {user_files.largest(folder)}; weights "
            f"end in {', '.join(SUFFIXES)}"
        )
    if not os.path.isfile(file):
        raise InputError(f"{where}{place} is no regular file, or a link that leads nowhere")
    try:
        weight_file = read_weights(file)
    except UnfitFile as error:
        raise InputError(f"{where}{file.name} {error}") from error
    except OSError as error:
        raise InputError(f"{where}{place} cannot be read ({error.strerror or error})") from error
    if other := foreign(weight_file.shapes):
        raise InputError(f"{where}{file.name} {other}")
    return weight_file


def activation_hint(weight_file: WeightFile) -> str | None:
    """The activation (QUICK_GELU or GELU) that a file tells by its form, its folder's configuration or its name; None
    if none tells it."""
    file = weight_file.path
    if weight_file.openai:
        return QUICK_GELU
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
