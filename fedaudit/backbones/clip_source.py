"""Find the CLIP that is meant and its weights on this disk. Imports nothing heavy; never uses the network."""

import functools
import hashlib
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.backbones.clip_files import (
    CONFIG,
    GELU,
    HUB_FILES,
    QUICK_GELU,
    SUFFIXES,
    WEIGHTS,
    activation_hint,
    check_file,
    hidden_activation,
    tokenizer_files,
)
from fedaudit.backbones.model_folders import INDEX, damage, index_fault, other_folder, read_json, shards
from fedaudit.backbones.resolve import cache_folder, cached_snapshot, display_name, sha256_of
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError, nearest

EMBEDDED_CLIP = {
    name: Path(__file__).parent / folder
    for name, folder in {"": "symbols-clip", "vit": "symbols-clip", "resnet": "symbols-clip-resnet"}.items()
}
RANDOM = "random"
RANDOM_SEED = 20231  # of weights that nobody trained
_HF_CONFIG = "config.json"
_HF_WEIGHTS = (  # in the order in which they are looked for, as by transformers
    "model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}",
)  # fmt: skip
_HF_IMAGES = ("preprocessor_config.json", "processor_config.json")
_TWIN = "-quickgelu"  # ends open_clip's name of an architecture with the other activation
_CUSTOM = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")


@dataclass(frozen=True)
class ClipSource:
    """One CLIP: a folder in open_clip's or Hugging Face's format, or an open_clip architecture with weights."""

    name: str  # display, such as "symbols-clip" or "ViT-B-16 (openai)"
    architecture: str  # open_clip's name, empty for a folder
    folder: Path | None  # with the configuration, the weights and the tokenizer
    weights: Path | None  # a file of tensors, or the index of `shards`; None: random initialisation
    tag: str = ""  # open_clip's name of the weights; decides preprocessing and activation
    activation: str = GELU  # or QUICK_GELU, in both towers
    doubt: str = ""  # a sentence, if the activation that the weights were trained with is unknown
    images: Path | None = None  # preprocessing file of Hugging Face's format
    shards: tuple[Path, ...] = ()  # files of tensors beside the index

    @property
    def huggingface(self) -> bool:
        """Whether this is a folder in the format of Hugging Face's CLIPModel."""
        return self.images is not None

    @property
    def summary(self) -> str:
        """A sentence with the model's name and activation, and the doubt about the latter if there is one."""
        return f"Backbone: {self.name}, activation {self.activation}{'; ' if self.doubt else ''}{self.doubt}."

    @property
    def flags(self) -> dict[str, str]:
        """The values of --backbone and, if it has any, --weights that name this model."""
        if self.folder is not None:
            embedded = next((name for name, folder in EMBEDDED_CLIP.items() if folder == self.folder and name), "")
            return {"backbone": embedded or str(self.folder)}
        return {"backbone": self.architecture, "weights": self.tag or str(self.weights or RANDOM)}

    @property
    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of everything that decides the model's output; for "random" weights of architecture
        and seed."""
        digest = hashlib.sha256(f"{self.architecture}\n{self.tag}\n{self.activation}\n".encode())
        if self.weights is None:
            digest.update(f"{RANDOM} {RANDOM_SEED}".encode())
        for file in self._files:
            digest.update(sha256_of(file))
        return digest.hexdigest()

    @property
    def tokenizer(self) -> list[Path]:
        """The files of the folder's own tokenizer; empty without a folder."""
        return [self.folder / name for name in tokenizer_files(self.folder)] if self.folder else []

    @property
    def _files(self) -> list[Path]:
        if self.folder is None:
            files = [_architectures()[self.architecture], self.weights]
        else:
            config = self.folder / (_HF_CONFIG if self.huggingface else CONFIG)
            files = [config, self.weights, *self.shards, *self.tokenizer, self.images]
        return [file for file in files if file is not None]


def resolve_clip(backbone: str, weights: str) -> ClipSource:
    """The CLIP that `--backbone` and `--weights` name.

    backbone: "" or "vit", "resnet", a folder, the id of a Hugging Face model in the local cache, or an architecture of
    open_clip. weights, for the latter only: a file, a tag of open_clip whose file is in the local Hugging Face cache,
    or "random". InputError: something is missing, or prompts cannot be learned with this text encoder.
    """
    folder = EMBEDDED_CLIP.get(backbone) or Path(os.path.expanduser(backbone))
    if not os.path.exists(folder):
        folder = cached_snapshot(backbone) or folder
    if backbone in EMBEDDED_CLIP or os.path.isfile(folder / CONFIG):
        return _from_folder(backbone, folder, weights)
    if os.path.isfile(folder / _HF_CONFIG):
        return _from_huggingface(backbone, folder, weights)
    configs = _architectures()
    if backbone in configs:
        return _from_architecture(backbone, configs[backbone], weights)
    if os.path.isdir(folder):
        raise InputError(
            f"--backbone {backbone}: {folder.absolute()} "
            + (
                other_folder(folder, clip=True)
                or f"is no CLIP: it lacks {CONFIG} (open_clip's format) and {_HF_CONFIG} (Hugging Face's); "
                f"{user_files.largest(folder)}"
            )
        )
    raise InputError(
        f"--backbone {backbone}: there is no folder {folder.absolute()}, and open_clip has no architecture of this name"
        f"{nearest(backbone, configs)}; valid are vit, resnet, a folder with {CONFIG} or Hugging Face's "
        f"{_HF_CONFIG}, the id of such a model that `hf download` put into the local cache, and an architecture such "
        "as ViT-B-16"
    )


def _from_folder(backbone: str, folder: Path, weights: str) -> ClipSource:
    flag = f"--backbone {backbone}" if backbone else "--backbone"
    _check_whole(flag, folder, [CONFIG, WEIGHTS, *tokenizer_files(folder)], weights)
    model = _json(flag, folder / CONFIG).get("model_cfg")
    if not isinstance(model, dict):
        raise InputError(f"{flag}: {folder / CONFIG} holds no model_cfg")
    _check_text(flag, model)
    place = folder.absolute()
    return ClipSource(display_name(folder.resolve()), "", place, place / WEIGHTS, activation=_configured(model))


def _from_huggingface(backbone: str, folder: Path, weights: str) -> ClipSource:
    """The source for a folder written by `CLIPModel.save_pretrained`, with tokenizer and image preprocessing beside the
    weights. InputError: something is missing or not CLIP's."""
    flag = f"--backbone {backbone}"
    names = [
        next((name for name in options if (folder / name).is_file()), options[0])
        for options in (_HF_WEIGHTS, _HF_IMAGES)
    ]
    config = _json(flag, folder / _HF_CONFIG)
    if (kind := config.get("model_type")) != "clip":
        if other := other_folder(folder, clip=True):
            raise InputError(f"{flag}: {folder.absolute()} {other}")
        raise InputError(
            f"{flag}: its {_HF_CONFIG} is of model_type {str(kind)[:40]!r}, and of Hugging Face's models only clip is "
            f"read"
        )
    _check_whole(flag, folder, [_HF_CONFIG, *names, *tokenizer_files(folder)], weights)
    place = folder.absolute()
    return ClipSource(
        display_name(folder), "", place, place / names[0],
        activation=hidden_activation(flag, config), images=place / names[1], shards=_shards(flag, place / names[0]),
    )  # fmt: skip


def _shards(flag: str, weights: Path) -> tuple[Path, ...]:
    """The weight files that `weights` lists if it is an index, else none. InputError: one is missing or damaged."""
    if not weights.name.endswith(INDEX):
        return ()
    folder = weights.parent
    if wrong := index_fault(weights) or damage(folder, frozenset(shards(weights))):
        raise InputError(f"{flag}: {folder} {wrong}")
    return tuple(folder / name for name in shards(weights))


def _check_whole(flag: str, folder: Path, names: Sequence[str], weights: str) -> None:
    if weights:
        raise InputError(
            f"--weights {weights}: {display_name(folder)} holds its own weights; give --weights with an architecture "
            "only"
        )
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError(f"{flag}: {folder.absolute()} lacks {' and '.join(absent)}; {user_files.largest(folder)}")
    if wrong := damage(folder, frozenset(names)):
        raise InputError(f"{flag}: {folder.absolute()} {wrong}")


def _from_architecture(name: str, config: Path, weights: str) -> ClipSource:
    model = _json(f"--backbone {name}", config)
    _check_text(f"--backbone {name}", model)
    if weights == RANDOM:
        return ClipSource(f"{name} ({RANDOM})", name, None, None, activation=_configured(model))
    file = Path(os.path.expanduser(weights))
    if file.suffix not in SUFFIXES and len(file.parts) <= 1:
        return _from_tag(name, weights, _configured(model))
    return _from_file(name, weights, _configured(model))


def _from_file(name: str, weights: str, configured: str) -> ClipSource:
    """An open_clip architecture with a weight file, as a source. The file's contents, name or folder may tell the
    activation; else `configured` is used, and `doubt` says so."""
    file = Path(os.path.expanduser(weights)).absolute()
    activation, doubt = activation_hint(check_file(weights, file)), ""
    twin = name.removesuffix(_TWIN) if name.endswith(_TWIN) else f"{name}{_TWIN}"
    if activation is None and twin in _architectures():
        other = GELU if configured == QUICK_GELU else QUICK_GELU
        openai = ", as all of OpenAI's were" if other == QUICK_GELU else ""
        doubt = (
            f"nothing in {file.name} tells the activation that it was trained with: {configured} is used, as {name} "
            f"has it; for weights trained with {other}{openai}, take --backbone {twin}"
        )
    if activation == GELU and configured == QUICK_GELU:
        raise InputError(
            f"--backbone {name}: {CONFIG} beside {file} says that it was trained with GELU; take --backbone {twin}"
        )
    return ClipSource(f"{name} ({file.name})", name, None, file, activation=activation or configured, doubt=doubt)


def _from_tag(name: str, tag: str, configured: str) -> ClipSource:
    from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model  # slow: imports torch

    tags = list_pretrained_tags_by_model(name)
    if not tag:
        raise InputError(f"--backbone {name} needs --weights: {_choice(tags)}")
    pretrained = get_pretrained_cfg(name, tag)
    if not pretrained:
        if os.path.lexists(tag):
            return _from_file(name, tag, configured)
        raise InputError(
            f"--weights {tag}: there is no such file, and open_clip has no such weights for "
            f"{name}{nearest(tag, tags)}; valid are {_choice(tags)}"
        )
    repository, _, file = str(pretrained["hf_hub"]).rpartition("/")
    weights = _cached(tag, repository, [file] if file else HUB_FILES)
    activation = QUICK_GELU if pretrained.get("quick_gelu") else configured
    return ClipSource(f"{name} ({tag})", name, None, weights, tag, activation)


def _configured(model: Mapping[str, Any]) -> str:
    return QUICK_GELU if model.get("quick_gelu") else GELU


def _choice(tags: Sequence[str]) -> str:
    options = [*tags[:4], *([f"{len(tags) - 4} more tags of open_clip"] if len(tags) > 4 else [])]
    return ", ".join(["a file of weights", *options]) + f", or {RANDOM} (untrained, for benchmarks)"


def _cached(tag: str, repository: str, files: Sequence[str]) -> Path:
    """The path of the first of `files` that is in a repository's cached snapshots, the main branch first. InputError:
    none is there."""
    place = cache_folder(repository)
    main = place / "refs" / "main"
    snapshots = sorted(place.glob("snapshots/*"))
    if main.is_file():
        snapshots.sort(key=lambda folder: folder.name != main.read_text(errors="replace").strip())
    path = next((folder / file for folder in snapshots for file in files if (folder / file).is_file()), None)
    if path is None:
        raise InputError(
            f"--weights {tag}: {files[0]} is not in the local cache ({place}); fetch it on a machine with internet by "
            f"`hf download {repository} {files[0]}`"
            + (f" (older repositories hold {files[1]} instead)" if len(files) > 1 else "")
        )
    return path


def _check_text(flag: str, config: Mapping[str, Any]) -> None:
    """Raise InputError unless prompts can be learned with this text encoder: causal, its feature read at the end
    token."""
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
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason:
        raise InputError(f"{flag}: its text encoder {reason}; take a model such as ViT-B-16 or RN50")


def architectures_of(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The architectures of open_clip that have tensors of these shapes, by name, the shortest name first."""
    try:
        sizes = _sizes_of_tensors({name.removeprefix("text."): shape for name, shape in shapes.items()})
    except (LookupError, ValueError):  # no CLIP by open_clip's names
        return []
    configs = {name: _json(f"--backbone {name}", file) for name, file in _architectures().items()}
    return sorted((name for name, config in configs.items() if _plain(config) and _sizes(config) == sizes), key=len)


def _plain(config: Mapping[str, Any]) -> bool:
    """Whether both towers are open_clip's own, and there is no third one."""
    others = {"hf_model_name", "timm_model_name"} & {*(config.get("text_cfg") or {}), *(config.get("vision_cfg") or {})}
    return not others and "multimodal_cfg" not in config


def _sizes(config: Mapping[str, Any]) -> list[Any]:
    """Feature, vocabulary, text width and layers, patch, image size, image width and layers of a configuration."""
    text, vision = (config.get(part) or {} for part in ("text_cfg", "vision_cfg"))
    size, patch = vision.get("image_size", 224), vision.get("patch_size", 16)
    return [
        config.get("embed_dim"), text.get("vocab_size", 49408), text.get("width", 512), text.get("layers", 12),
        patch, size, vision.get("width", 768), vision.get("layers", 12),
    ]  # fmt: skip


def _sizes_of_tensors(shapes: Mapping[str, tuple[int, ...]]) -> list[Any]:
    """`_sizes` of the architecture that has tensors of these shapes. LookupError or ValueError: one is missing or of
    another kind."""

    def count(start: str) -> int:
        return len({name.removeprefix(start).partition(".")[0] for name in shapes if name.startswith(start)})

    (width, embed), (vocabulary, _) = shapes["text_projection"], shapes["token_embedding.weight"]
    text = [embed, vocabulary, width, count("transformer.resblocks.")]
    if "visual.layer1.0.conv1.weight" in shapes:
        layers = [count(f"visual.layer{i}.") for i in (1, 2, 3, 4)]
        edge = 32 * math.isqrt(shapes["visual.attnpool.positional_embedding"][0] - 1)
        return [*text, None, edge, shapes["visual.layer1.0.conv1.weight"][0], layers]
    width, _, patch, _ = shapes["visual.conv1.weight"]
    edge = patch * math.isqrt(shapes["visual.positional_embedding"][0] - 1)
    return [*text, patch, edge, width, count("visual.transformer.resblocks.")]


@functools.cache
def _architectures() -> dict[str, Path]:
    """{name of an open_clip architecture: its configuration file}; open_clip itself is not imported. InputError: it is
    not installed."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise InputError(
            "--backbone: the package open_clip_torch is not installed; get it by `pip install open_clip_torch`"
        )
    return {file.stem: file for file in sorted((Path(spec.origin).parent / "model_configs").glob("*.json"))}


def _json(flag: str, file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{flag}: {file} is damaged")
    return content
