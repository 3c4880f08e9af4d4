"""Lists of pictures with one JSON object a line: `metadata.jsonl` of an imagefolder, and lists of pairs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.local_files import path_below
from fedaudit.tasks.tables import SPLIT, is_clutter

METADATA = "metadata.jsonl"
PICTURES = ("image", "file_name")  # keys of a line's picture


@dataclass(frozen=True)
class Listed:
    """A line of a list: its picture and its other values."""

    picture: Path
    values: dict[str, Any]
    where: str  # file and number of the line, for messages


def listed_pictures(path: Path, images: Path | None = None) -> Iterator[Listed]:
    """Yield the lines of a list, whose pictures lie below `images` (None: its own folder). InputError: the file cannot
    be read, a line is no JSON object, or names no picture."""
    try:
        lines = user_files.read_bytes(path).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            values = _object(line, where)
            name = next((values[key] for key in PICTURES if key in values), None)
            if name is None:
                raise InputError(f"{where}: it names no picture; {' or '.join(PICTURES)} must hold its file name")
            yield Listed(path_below(images or path.parent, name, where), values, where)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a JSON object, not {short_repr(values)}")
    return values


def split_folders(root: Path) -> dict[str, Path]:
    """{split: folder} of the folders in `root` that are named as a split and hold folders or lists; a class called
    train, which holds pictures, is none."""
    named = [(SPLIT.fullmatch(one.name.lower()), one) for one in visible_folders(root)]
    return {
        match[1]: one for match, one in named if match and (visible_folders(one) or user_files.exists(one / METADATA))
    }


def visible_folders(root: Path) -> list[Path]:
    """The folders in `root`, by name, without those that systems leave."""
    return [one for one in user_files.listed(root) if one.is_dir() and not is_clutter(one.name)]


def metadata_files(root: Path) -> dict[str, Path]:
    """{split: metadata.jsonl} of an imagefolder: in `root` itself, as split "train", or in a folder for each split."""
    if user_files.exists(root / METADATA):
        return {"train": root / METADATA}
    return {
        split: folder / METADATA
        for split, folder in split_folders(root).items()
        if user_files.exists(folder / METADATA)
    }
