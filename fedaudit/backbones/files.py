"""The files of a model folder, before anything heavy is imported: regular, whole, and no code. Never runs what a folder brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedaudit import inputs
from fedaudit.errors import InputError

CONFIGS = ("config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json")  # may name code
SHOWN = 200  # characters of what a library says; nothing is cut off within a line


def damage(folder: Path, names: frozenset[str] = frozenset()) -> str:
    """What is wrong with the files of a folder (those of `names`, if some are given); empty if nothing is.

    Of weights only the header is read: whether it is one, knows its dtypes, and fits the size of the file.
    """
    for path in sorted(folder.iterdir()):
        if path.is_dir() or (names and path.name not in names):
            continue
        try:
            inputs.opened(path).close()
            if path.suffix == ".json" and not isinstance(read_json(path), dict | list):
                return f"has a damaged {path.name} (it holds no object)"
            if path.suffix == ".safetensors":
                _check_header(path)
        except OSError as error:
            return f"holds {path.name}, which cannot be read ({error.strerror or error})"
        except ValueError as error:
            return f"has a damaged {path.name} ({on_one_line(error)})"
    return ""


def read_json(path: Path) -> Any:
    """The value in a file. OSError or ValueError: it cannot be read, or is no JSON."""
    try:
        return json.loads(inputs.read_bytes(path))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _check_header(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def unloadable(path: Path, error: Exception, kind: str, code: str = "") -> InputError:
    """The sentence for whatever was raised while a library, or the user's file `code`, opened a model folder."""
    if "trust_remote_code" in str(error):  # which is never given
        own = [name for name in CONFIGS if (path / name).is_file() and b'"auto_map"' in (path / name).read_bytes()]
        return InputError(
            f"--backbone {path}: it needs code of its own ({', '.join(own) or 'auto_map'}), which is never run; write what reads "
            "this model in a file and give that as --backbone-code"
        )
    by = f" by {code}" if code else ""
    return InputError(f"--backbone {path}: cannot be loaded{by} as {kind} ({on_one_line(error)})")


def on_one_line(error: BaseException) -> str:
    """What an exception says without line breaks; of a long text its first line, and its kind where that is long, too."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    said = next((text for text in (" ".join(lines), *lines[:1]) if len(text) <= SHOWN), "")
    return "".join(char if char.isprintable() else "?" for char in said).rstrip(":") or type(error).__name__
