"""Which CLIP is meant, and where its weights lie on this disk. Imports nothing heavy; never asks the network."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import inputs
from fedaudit.backbones.files import damage, read_json
from fedaudit.backbones.resolve import hub_cache
from fedaudit.errors import InputError, nearest

CONFIG, WEIGHTS, TOKENIZER = "open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"
EMBEDDED_CLIP = {
    name: Path(__file__).parent / folder
    for name, folder in {"": "symbols-clip", "vit": "symbols-clip", "resnet": "symbols-clip-resnet"}.items()
}
RANDOM = "random"
RANDOM_SEED = 20231  # of weights that nobody trained
_FILES = (".safetensors", ".pt", ".pth", ".bin")
_HUB_FILES = (WEIGHTS, "open_clip_pytorch_model.bin")  # in the order in which open_clip looks for them
_CUSTOM = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")


@dataclass(frozen=True)
class ClipSource:
    """One CLIP: a folder in open_clip's format, or an architecture of open_clip with a file of weights."""

    name: str  # display, such as "symbols-clip" or "ViT-B-16 (openai)"
    architecture: str  # open_clip's name, empty for a folder
    folder: Path | None  # holds CONFIG, WEIGHTS and TOKENIZER
    weights: Path | None  # for an architecture; None if it is randomly initialised
    tag: str = ""  # open_clip's name of the weights, which says how images are prepared and which GELU is used

    @property
    def sha256(self) -> str:
        """SHA-256 over everything that decides what the model computes, wherever it lies; for "random" over architecture and seed."""
        digest = hashlib.sha256(f"{self.architecture}\n{self.tag}\n".encode())
        if self.folder is not None:
            files = [self.folder / name for name in (CONFIG, WEIGHTS, TOKENIZER)]
        else:
            files = [_architectures()[self.architecture], *([self.weights] if self.weights else [])]
        if self.folder is None and self.weights is None:
            digest.update(f"{RANDOM} {RANDOM_SEED}".encode())
        for file in files:
            digest.update(_sha256(file))
        return digest.hexdigest()


def resolve_clip(backbone: str, weights: str) -> ClipSource:
    """The CLIP that `--backbone` and `--weights` name: "" or "vit", "resnet", a folder, or an architecture of open_clip with weights.

    Weights are a file, a tag of open_clip whose file lies in the local Hugging Face cache, or "random". InputError names what is
    missing, or why prompts cannot be learned with this text encoder.
    """
    folder = EMBEDDED_CLIP.get(backbone) or Path(os.path.expanduser(backbone))
    if backbone in EMBEDDED_CLIP or os.path.isfile(folder / CONFIG):
        return _from_folder(backbone, folder, weights)
    known = _architectures()
    if backbone in known:
        return _from_architecture(backbone, known[backbone], weights)
    if os.path.isdir(folder):
        raise InputError(
            f"--backbone {backbone}: {folder.absolute()} is no CLIP in open_clip's format: it lacks {CONFIG}"
        )
    raise InputError(
        f"--backbone {backbone}: there is no folder {folder.absolute()}, and open_clip has no architecture of this name"
        f"{nearest(backbone, known)}; valid are vit, resnet, a folder with {CONFIG}, or an architecture such as ViT-B-16"
    )


def _from_folder(backbone: str, folder: Path, weights: str) -> ClipSource:
    flag = f"--backbone {backbone}" if backbone else "--backbone"
    if weights:
        raise InputError(
            f"--weights {weights}: {folder.name} holds its own weights; give --weights with an architecture only"
        )
    absent = [name for name in (CONFIG, WEIGHTS, TOKENIZER) if not (folder / name).is_file()]
    if absent:
        raise InputError(f"{flag}: {folder.absolute()} lacks {' and '.join(absent)}")
    if wrong := damage(folder, frozenset((CONFIG, WEIGHTS, TOKENIZER))):
        raise InputError(f"{flag}: {folder.absolute()} {wrong}")
    config = _json(flag, folder / CONFIG)
    if not isinstance(config.get("model_cfg"), dict):
        raise InputError(f"{flag}: {folder / CONFIG} holds no model_cfg")
    _check_text(flag, config["model_cfg"])
    return ClipSource(folder.resolve().name, "", folder.absolute(), None)


def _from_architecture(name: str, config: Path, weights: str) -> ClipSource:
    _check_text(f"--backbone {name}", _json(f"--backbone {name}", config))
    if weights == RANDOM:
        return ClipSource(f"{name} ({RANDOM})", name, None, None)
    file = Path(os.path.expanduser(weights))
    if file.suffix in _FILES or len(file.parts) > 1:
        if not os.path.isfile(file) or file.suffix not in _FILES:
            raise InputError(
                f"--weights {weights}: there is no file {file.absolute()} that ends in {', '.join(_FILES)}"
            )
        return ClipSource(f"{name} ({file.name})", name, None, file.absolute())
    return _from_tag(name, weights)


def _from_tag(name: str, tag: str) -> ClipSource:
    from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model  # slow: imports torch

    tags = list_pretrained_tags_by_model(name)
    if not tag:
        raise InputError(f"--backbone {name} needs --weights: {_choice(tags)}")
    found = get_pretrained_cfg(name, tag)
    if not found:
        raise InputError(
            f"--weights {tag}: there is no such file, and open_clip has no such weights for {name}{nearest(tag, tags)}; "
            f"valid are {_choice(tags)}"
        )
    repository, _, file = str(found["hf_hub"]).rpartition("/")
    return ClipSource(f"{name} ({tag})", name, None, _cached(tag, repository, [file] if file else _HUB_FILES), tag)


def _choice(tags: Sequence[str]) -> str:
    shown = [*tags[:4], *([f"{len(tags) - 4} more tags of open_clip"] if len(tags) > 4 else [])]
    return ", ".join(["a file of weights", *shown]) + f", or {RANDOM} (untrained, for benchmarks)"


def _cached(tag: str, repository: str, files: Sequence[str]) -> Path:
    """The first of `files` in the local cache's snapshots of a repository, its main branch first."""
    place = hub_cache() / f"models--{repository.replace('/', '--')}"
    main = place / "refs" / "main"
    snapshots = sorted(place.glob("snapshots/*"))
    if main.is_file():
        snapshots.sort(key=lambda folder: folder.name != main.read_text(errors="replace").strip())
    found = next((folder / file for folder in snapshots for file in files if (folder / file).is_file()), None)
    if found is None:
        raise InputError(
            f"--weights {tag}: {files[0]} is not in the local cache ({place}); fetch it on a machine with internet by "
            f"`hf download {repository} {files[0]}`"
            + (f" (older repositories hold {files[1]} instead)" if len(files) > 1 else "")
        )
    return found


def _check_text(flag: str, config: Mapping[str, Any]) -> None:
    """InputError unless prompts can be put before class names here: a causal encoder whose feature is read at the end token."""
    text = config.get("text_cfg") or {}
    if not isinstance(text, dict):
        raise InputError(f"{flag}: its text_cfg must be an object, not {str(text)[:40]!r}")
    reasons = {
        "comes from Hugging Face, and only open_clip's own are read": bool(text.get("hf_model_name")),
        "reads the text in both directions, and prompts are learned for a causal one": bool(text.get("no_causal_mask")),
        "puts a class token at the end (CoCa), and the feature is read at the end of the text": bool(
            text.get("embed_cls") or config.get("multimodal_cfg")
        ),
        f"reads its feature by pool_type {text.get('pool_type')}, and only argmax (the end token) is valid": (
            text.get("pool_type", "argmax") != "argmax"
        ),
        "is built of blocks with further norms or scales, which are not supported": (
            text.get("block_type") == "custom" or any(text.get(key) for key in _CUSTOM)
        ),
    }  # fmt: skip
    found = next((reason for reason, holds in reasons.items() if holds), None)
    if found:
        raise InputError(f"{flag}: its text encoder {found}; take a model such as ViT-B-16 or RN50")


@functools.cache
def _architectures() -> dict[str, Path]:
    """open_clip's architectures by name, each with its configuration file; open_clip itself is not imported."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise InputError(
            "--backbone: the package open_clip_torch is not installed; get it by `pip install open_clip_torch`"
        )
    return {file.stem: file for file in sorted((Path(spec.origin).parent / "model_configs").glob("*.json"))}


def _json(flag: str, file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{flag}: {file} is damaged")
    return found


def _sha256(file: Path) -> bytes:
    try:
        return bytes.fromhex(inputs.sha256(file))
    except OSError as error:
        raise InputError(f"--backbone: {file} cannot be read ({error.strerror or error})") from error
