"""Find a model folder on this disk and check that it is complete. Imports nothing heavy; never uses the network."""

import hashlib
import json
import os
import re
from pathlib import Path

from fedaudit.backbones.model_folders import damage, index_fault, other_folder
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_BLOB = re.compile(r"[0-9a-f]{64}")  # the hub's cache names large files by their SHA-256
_PROCESSOR = ("processor_config.json", "preprocessor_config.json")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "tokenizer_config.json")


def resolve(text: str, *, processor: bool = True) -> Path:
    """The complete model folder that `text` names: a folder, or the id of a model in the local Hugging Face cache.
    processor: whether image processor and tokenizer must lie beside the weights. InputError names what is missing."""
    folder = Path(os.path.expanduser(text))
    if not text.strip():
        raise InputError("--backbone is empty; it takes a model folder or an id such as llava-hf/llava-1.5-7b-hf")
    if not os.path.exists(folder):  # False for a name that is none
        folder = _cached(text, folder)
    _check(text, folder, processor)
    return folder


def hub_cache() -> Path:
    """The folder of the local Hugging Face cache: HF_HUB_CACHE, else `hub` in HF_HOME, else the default."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(general) / "huggingface").expanduser() / "hub"


def display_name(path: Path) -> str:
    """A model's name: its id if the folder is a snapshot in the hub's cache, otherwise the folder's name."""
    place = path.absolute()
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
        return place.parent.parent.name.removeprefix("models--").replace("--", "/")
    return place.name


HASHED = ("*.safetensors", "*.json", "*.model", "merges.txt", "vocab.txt")  # the last three are of tokenizers


def weights_hash(path: Path) -> str:
    """SHA-256 over names and contents of a model folder's weights, configuration and tokenizer; the folder's place does
    not matter. InputError: a file cannot be read."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in HASHED for file in path.glob(pattern)):
        if file.name != "training.json":  # a record of the training, which the model does not read
            digest.update(file.name.encode() + sha256_of(file))
    return digest.hexdigest()


def sha256_of(file: Path) -> bytes:
    """SHA-256, as 32 bytes, of a file of a model. InputError: it cannot be read."""
    blob = file.resolve().name
    if file.is_symlink() and _BLOB.fullmatch(blob):
        return bytes.fromhex(blob)
    try:
        return bytes.fromhex(user_files.sha256(file))
    except OSError as error:
        raise InputError(f"--backbone: {file} cannot be read ({error.strerror or error})") from error


def _cached(text: str, folder: Path) -> Path:
    """The cached snapshot of the model with id `text`. InputError if there is none."""
    if not _ID.fullmatch(text):
        raise InputError(f"--backbone {text}: there is no folder {folder.absolute()}")
    if (snapshot := cached_snapshot(text)) is None:
        place = cache_folder(text)
        raise InputError(
            f"--backbone {text}: there is no folder {folder.absolute()} and no such model in the local cache ({place});"
            f" fetch it on a machine with internet by `hf download {text}`, then give --backbone the id or the folder"
        )
    return snapshot


def cached_snapshot(text: str) -> Path | None:
    """The snapshot of a model in the local cache: of its main branch, or the only one; None if there is none."""
    if not _ID.fullmatch(text):
        return None
    place = cache_folder(text)
    main = place / "refs" / "main"
    snapshots = sorted(place.glob("snapshots/*"))
    snapshot = place / "snapshots" / main.read_text(errors="replace").strip() if main.is_file() else None
    if snapshot is None and len(snapshots) == 1:
        snapshot = snapshots[0]
    return snapshot if snapshot is not None and snapshot.is_dir() else None


def cache_folder(repository: str) -> Path:
    """The folder of a repository in the local Hugging Face cache, whether it is there or not."""
    return hub_cache() / f"models--{repository.replace('/', '--')}"


def _quantisation(config: Path) -> str:
    """The method by which a model folder's weights are quantised; "" if they are not. A malformed file has none."""
    try:
        about = json.loads(user_files.read_bytes(config))
        quantised = about.get("quantization_config") or about.get("text_config", {}).get("quantization_config")
        return str(quantised.get("quant_method", "unknown method")) if quantised else ""
    except (OSError, ValueError, AttributeError, RecursionError):  # another check names what is wrong with the file
        return ""


def _check(text: str, folder: Path, processor: bool) -> None:
    lacks = _lacks(folder, processor)
    if not lacks:
        return
    again = f"; fetch the rest by `hf download {text}` on a machine with internet" if _ID.fullmatch(text) else ""
    cached = folder.absolute().is_relative_to(hub_cache().absolute())
    raise InputError(f"--backbone {text}: {folder.absolute()} {lacks}{again if cached else ''}")


def _lacks(folder: Path, processor: bool) -> str:
    """The reason why `folder` is no complete model, as part of a sentence; empty if it is one."""
    if not folder.is_dir():
        return "is a file where a model folder is needed"
    if other := other_folder(folder):
        return other
    if not (folder / "config.json").is_file():
        return f"is no model folder: it lacks config.json; {user_files.largest(folder)}"
    for index in sorted(folder.glob("*.safetensors.index.json")):
        if wrong := index_fault(index):
            return wrong
    if not any(file.is_file() for file in folder.glob("*.safetensors")):
        pickled = " (weights in *.bin are not read)" if any(folder.glob("*.bin")) else ""
        return f"lacks the weights (*.safetensors){pickled}; {user_files.largest(folder)}"
    if processor and not any((folder / name).is_file() for name in _PROCESSOR):
        return f"lacks the image processor ({' or '.join(_PROCESSOR)}); a merged adapter's is that of its base"
    if processor and not any((folder / name).is_file() for name in _TOKENIZER):
        return "lacks the tokenizer (tokenizer.json or tokenizer.model)"
    if method := _quantisation(folder / "config.json"):
        return f"is quantised ({method}), and attacks compute with the weights as floats; name the model it was made of"
    return damage(folder)
