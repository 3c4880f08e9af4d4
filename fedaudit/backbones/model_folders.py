"""Checks of a model folder's files before anything heavy is imported. Nothing in a folder is ever run."""

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedaudit.backbones.weight_files import UnfitFile, check_start
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

CONFIGS = (
    "config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
)  # may refer to code
ADAPTER, OPEN_CLIP = "adapter_config.json", "open_clip_config.json"
_COOP = ("prompt_learner", "MultiModalPromptLearner", "VLPromptLearner")  # folders in a training's output
_TWO_TOWERS = {"siglip", "siglip2", "align", "altclip", "chinese_clip", "clipseg", "groupvit", "metaclip_2", "owlvit"}
INDEX = ".index.json"  # ends the name of a file that lists weight files
_PIP = re.compile(r"pip install (?:-U |--upgrade )?([A-Za-z0-9][\w.,\[\]-]*[\w\]])")
_LIBRARY = re.compile(r"requires (?:the )?([A-Za-z0-9_-]+) library")
SHOWN = 200  # characters of a library's message at most; no line is cut


def damage(folder: Path, names: frozenset[str] = frozenset()) -> str:
    """The first fault in a folder's files (only those in `names`, if given), as part of a sentence; empty if there
    is none. Of weights only the header is checked, against the file's size too."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() or (names and path.name not in names):
            continue
        try:
            user_files.opened(path).close()
            if path.suffix == ".json" and not isinstance(read_json(path), dict | list):
                return f"has a damaged {path.name} (it holds no object)"
            if path.suffix in (".safetensors", ".bin"):
                check_start(path)
            if path.suffix == ".safetensors":
                _check_header(path)
        except UnfitFile as error:
            return f"holds {path.name}, which {error}"
        except OSError as error:
            return f"holds {path.name}, which cannot be read ({error.strerror or error})"
        except ValueError as error:
            return f"has a damaged {path.name} ({on_one_line(error)})"
    return ""


def other_folder(folder: Path, *, clip: bool = False) -> str:
    """The kind of a folder that is no model that writes text, or with `clip` no CLIP, as part of a sentence; "" if its
    files tell nothing."""
    config, adapter = (_object(folder / name) for name in ("config.json", ADAPTER))
    if adapter is not None:
        base = adapter.get("base_model_name_or_path")
        named = f" of {base}" if isinstance(base, str) and base.isprintable() and len(base) < SHOWN else ""
        return (
            f"holds a LoRA adapter ({ADAPTER}){named}, not a whole model; give its base as --backbone and audit the "
            "adapter by --run, or merge it by peft's merge_and_unload and save model, tokenizer and image processor"
        )
    kind = str((config or {}).get("model_type"))[:40]
    if (kind == "clip" or (config is None and (folder / OPEN_CLIP).is_file())) and not clip:
        return "is a CLIP, which prompt methods take (--method promptfl); LoRA methods need a model that writes text"
    if config is not None:
        writes = "vision_config" in config and "text_config" in config and kind not in _TWO_TOWERS and kind != "clip"
        about = f"is a model that writes text (model_type {kind!r}), which LoRA methods take (--method fedavg)"
        return f"{about}; prompt methods need a CLIP" if writes and clip else ""
    if os.path.isfile(folder / "run.json"):
        return "is a recorded run; audit it by --run"
    if any(folder.glob("*.pth.tar*")) or any(os.path.isdir(folder / name) for name in _COOP):
        return "is what CoOp or MaPLe write while they train: prompts, not a model; audit them by --run"
    if any(folder.glob("optimizer*")) or any(folder.glob("global_step*")):
        return "is a checkpoint of a training with the state of its optimizer, without a config.json"
    return ""


def _object(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file, or another value in it."""
    try:
        content = read_json(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_json(path: Path) -> Any:
    """The value in a JSON file. OSError or ValueError: it cannot be read, or is no JSON."""
    try:
        return json.loads(user_files.read_bytes(path))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def shards(index: Path) -> list[str]:
    """The weight files that an index lists, sorted. OSError or ValueError: the index cannot be read, or lists none."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise ValueError("it has no weight_map that names files")
    return sorted(set(listed.values()))


def index_fault(index: Path) -> str:
    """The fault of an index or the files that it lists (beside it), as part of a sentence; empty if there is none."""
    try:
        listed = shards(index)
    except (OSError, ValueError):
        return f"has a damaged {index.name}"
    kind = index.name.removesuffix(INDEX).rpartition(".")[2]  # of model.safetensors.index.json safetensors
    absent = [
        name
        for name in listed
        if Path(name).name != name or not name.endswith(f".{kind}") or not os.path.isfile(index.parent / name)
    ]
    if not absent:
        return ""
    first = absent[0] if absent[0].isprintable() else ascii(absent[0])
    return f"lacks {len(absent)} of the {len(listed)} weight files that {index.name} lists, {first} first"


def _check_header(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def unloadable(path: Path, error: Exception, kind: str, code: str = "") -> InputError:
    """The InputError for an exception on opening a model folder as `kind`, by a library or a user's file `code`."""
    if "trust_remote_code" in str(error):  # which is never given
        files = [name for name in CONFIGS if (path / name).is_file() and b'"auto_map"' in (path / name).read_bytes()]
        return InputError(
            f"--backbone {path}: it needs code of its own ({', '.join(files) or 'auto_map'}), which is never run; "
            "write what reads this model in a file and give that as --backbone-code"
        )
    if lacking_packages := needs_packages(error, path):
        return InputError(f"--backbone {path}: {lacking_packages}")
    by = f" by {code}" if code else ""
    return InputError(f"--backbone {path}: cannot be loaded{by} as {kind} ({on_one_line(error)})")


def needs_packages(error: BaseException, folder: Path | None = None) -> str:
    """A clause on missing packages that an error or its causes tell of, and how to get them; "" if they tell of
    none."""
    chain = list(_causes(error))
    if not any(isinstance(cause, ImportError) for cause in chain):
        return ""
    messages = "\n".join(map(str, chain))
    names = [*_PIP.findall(messages)] or [name.lower() for name in _LIBRARY.findall(messages)]
    names = names or [cause.name for cause in chain if isinstance(cause, ModuleNotFoundError) and _absent(cause.name)]
    # transformers takes a tokenizer for one of tiktoken's where it could not read it as one of SentencePiece's
    if "tiktoken" in names and folder and not (folder / "tiktoken.model").exists() and _absent("sentencepiece"):
        names = ["sentencepiece", "protobuf"]
    packages = " ".join(dict.fromkeys(names))
    return packages and f"it needs packages that are missing here or too old; get them by `pip install {packages}`"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then its cause or the error that was being handled, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _absent(module: str | None) -> bool:
    return module is not None and importlib.util.find_spec(module.partition(".")[0]) is None


def on_one_line(error: BaseException) -> str:
    """The message of an exception without line breaks; of a long one the first line or sentence, or else its type."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    parts = (" ".join(lines), *lines[:1], *(line.partition(". ")[0] for line in lines[:1]))
    message = next((text for text in parts if len(text) <= SHOWN), "")
    return "".join(char if char.isprintable() else "?" for char in message).rstrip(":") or type(error).__name__
