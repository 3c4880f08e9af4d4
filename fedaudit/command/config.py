"""Turns configuration files and presets into command-line words. Imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedaudit.command.argv import short_repr, words_of
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError, nearest

_PRESETS = Path(__file__).parent.parent / "presets"
_COMMAND_LINE = ("config", "list", "version", "help", "new", "paper", "nightly", "debug")  # for the command line only


def presets() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def preset_words(name: str) -> list[str]:
    """The options of a preset as command-line words. InputError: there is no such preset."""
    if name not in presets():
        raise InputError(f"--preset {name}: no such preset{nearest(name, presets())}; there are {', '.join(presets())}")
    return config_words(str(_PRESETS / f"{name}.yaml"))


def preset_summaries() -> dict[str, str]:
    """Descriptions of all presets, {name: the first sentence of its file}, sorted."""
    texts = {name: (_PRESETS / f"{name}.yaml").read_text(encoding="utf-8") for name in presets()}
    return {name: re.split(r"(?<=\.)\s", text.replace("\n#", "").removeprefix("# "))[0] for name, text in texts.items()}


def config_words(path: str) -> list[str]:
    """The options in a YAML file as command-line words. InputError: no mapping, or an option that no file may set."""
    options = _read(path)
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise InputError(f"--config {path}: must be a mapping of option names to values, as in 'rounds: 10'")
    if key := next((key for key in options if key in _COMMAND_LINE), None):
        raise InputError(f"--config {path}: {key} does not go into a file; give --{key} on the command line")
    try:
        return words_of(options)
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from None


def _read(path: str) -> Any:
    """The value of a YAML file in plain types. InputError: unreadable, not YAML, or a key of its top level comes
    twice."""
    import yaml

    try:
        text = user_files.read_bytes(Path(path)).decode("utf-8-sig")
        top, value = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date or number
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise InputError(f"--config {path}: not valid YAML{line}") from error
    keys = [key.value for key, _ in top.value] if isinstance(top, yaml.MappingNode) else []
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise InputError(f"--config {path}: {short_repr(key)} stands there twice; say it once")
    return value
