"""Configuration files and presets as command-line words. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedaudit.command.argv import shown, words_of
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError, nearest

_PRESETS = Path(__file__).parent.parent / "presets"
_COMMAND_LINE = (
    "config",
    "list",
    "help",
    "paper",
    "nightly",
    "debug",
)  # these choose what the command is, not how an audit runs


def presets() -> list[str]:
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def preset_words(name: str) -> list[str]:
    """InputError: there is no such preset."""
    if name not in presets():
        raise InputError(f"--preset {name}: no such preset{nearest(name, presets())}; there are {', '.join(presets())}")
    return config_words(str(_PRESETS / f"{name}.yaml"))


def config_words(path: str) -> list[str]:
    """A YAML mapping as command-line words. InputError: it is none, or says what cannot be said in a file."""
    found = _read(path)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InputError(f"--config {path}: must be a mapping of option names to values, as in 'rounds: 10'")
    if own := next((key for key in found if key in _COMMAND_LINE), None):
        raise InputError(f"--config {path}: {own} does not go into a file; give --{own} on the command line")
    try:
        return words_of(found)
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from None


def _read(path: str) -> Any:
    """What the file says, in plain types. InputError: it cannot be read, is no YAML, or says something twice."""
    import yaml

    try:
        text = user_files.read_bytes(Path(path)).decode("utf-8-sig")
        top, found = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a day or number that is none; nested too deeply
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise InputError(f"--config {path}: not valid YAML{line}") from error
    keys = [key.value for key, _ in top.value] if isinstance(top, yaml.MappingNode) else []
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise InputError(f"--config {path}: {shown(key)} stands there twice; say it once")
    return found
