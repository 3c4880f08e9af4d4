"""Lists of pictures in JSON lines or CSV (`metadata.jsonl` of an imagefolder, `labels.csv`, lists of pairs), and the
folders of a data set's splits."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.class_folders import SUFFIXES
from fedaudit.tasks.local_files import path_below
from fedaudit.tasks.tables import ENDINGS as TABLES
from fedaudit.tasks.tables import SPLIT, is_clutter, split_of

ENDINGS = (".jsonl", ".csv")
NAMES = ("metadata", "labels")  # of lists beside pictures; the name of a split is one too
PICTURES = ("image", "file_name", "filename", "path")  # keys or columns of a line's picture
_DATA = (*ENDINGS, *SUFFIXES, *TABLES)
IMAGES = "images"  # folder beside a list, where its pictures may lie


@dataclass(frozen=True)
class Listed:
    """A line of a list: its picture and its other values."""

    picture: Path
    values: dict[str, Any]
    where: str  # file and number of the line, for messages


def listed_pictures(path: Path, images: Path | None = None) -> Iterator[Listed]:
    """Yield the lines of a list, whose pictures lie below `images`; None: below its own folder, or `images/` in there
    if the first is not. InputError: the file cannot be read, a line is no object, or names no picture."""
    try:
        text = user_files.read_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    for values, where in (_of_csv if path.suffix == ".csv" else _of_json)(text, path):
        name = next((values[key] for key in PICTURES if key in values), None)
        if name is None:
            raise InputError(f"{where}: it names no picture; {' or '.join(PICTURES)} must hold its file name")
        if images is None:
            beside, there = path.parent / IMAGES, path_below(path.parent, name, where)
            images = beside if user_files.is_dir(beside) and not user_files.exists(there) else path.parent
        yield Listed(path_below(images, name, where), values, where)


def _of_json(text: str, path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _object(line, where), where


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a JSON object, not {short_repr(values)}")
    return values


def _of_csv(text: str, path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows of a CSV file with a header, without empty cells."""
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if None in row:
                raise InputError(f"{where} has more cells than the header, {', '.join(rows.fieldnames or ())}")
            yield {key.strip(): value for key, value in row.items() if value}, where
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num} is no valid CSV ({error})") from error


def lists(root: Path, *, any_name: bool = False) -> dict[str, Path]:
    """{split: list} of the lists in `root`, or in a folder for each split; one that names no split is for training.
    With `any_name` all files of a list's kind in `root` are lists. InputError: two lists are of one split."""
    in_root = _lists_in(root, any_name)
    files: dict[str, Path] = {}
    for path in in_root:
        other = files.setdefault(split_of(Path(path.name)) or "train", path)
        if other != path:
            raise InputError(f"--data-root {root}: {other.name} and {path.name} are lists of one split; name one")
    in_folders = {split: _lists_in(folder, any_name) for split, folder in split_folders(root).items()}
    return files or {split: paths[0] for split, paths in in_folders.items() if paths}


def _lists_in(folder: Path, any_name: bool) -> list[Path]:
    files = [one for one in user_files.listed(folder) if one.suffix in ENDINGS and not is_clutter(one.name)]
    return [one for one in files if any_name or one.stem.lower() in NAMES or split_of(Path(one.name))]


def split_folders(root: Path) -> dict[str, Path]:
    """{split: folder} of the folders in `root` whose names tell a split and that hold folders or lists; a class called
    train, which holds pictures, is none. InputError: two folders are of one split."""
    folders: dict[str, Path] = {}
    for one in visible_folders(root):
        if (match := SPLIT.search(one.name.lower())) and (visible_folders(one) or _lists_in(one, False)):
            if match[1] in folders:
                raise InputError(f"{folders[match[1]]} and {one} are both of split {match[1]}; move one out of {root}")
            folders[match[1]] = inside(one)
    return folders


def inside(folder: Path) -> Path:
    """The folder itself, or the one that it holds without data beside it, if that holds folders: archives are often
    unpacked into a folder of their own name."""
    folders = visible_folders(folder)
    data = [one for one in user_files.listed(folder) if one.suffix.lower() in _DATA and not is_clutter(one.name)]
    if len(folders) == 1 and not data and (visible_folders(folders[0]) or _lists_in(folders[0], False)):
        return inside(folders[0])
    return folder


def visible_folders(root: Path) -> list[Path]:
    """The folders in `root`, by name, without those that systems leave."""
    return [one for one in user_files.listed(root) if one.is_dir() and not is_clutter(one.name)]
