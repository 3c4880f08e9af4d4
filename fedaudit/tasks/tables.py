"""Rows with pictures in parquet files and in the Arrow files that `datasets` saves, read without their pictures.

Columns are those of the Hugging Face hub: `image` (or `img`) holds bytes, or a struct of bytes and path, and the
numbers of a ClassLabel are read as its names.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

SPLIT = re.compile(r"(?<![a-z])(train|val|test)(?:ing|id|idation)?(?![a-z])")  # in the name of a file or folder
ENDINGS = (".parquet", ".arrow")
PICTURES = ("image", "img")  # columns of pictures
_NO_DATA = ("cache-", "tmp")  # how the names of Arrow files begin that `datasets` leaves beside the data


@dataclass(frozen=True)
class Row:
    """The place of a picture in a table's file."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"row {self.number} of {self.file}"


def split_of(path: Path) -> str:
    """The split (train, val or test) that a relative path tells: its last part that names one; "" if none does."""
    named = (SPLIT.search(part.lower()) for part in reversed(path.parts))
    return next((match[1] for match in named if match), "")


def is_clutter(name: str) -> bool:
    """Whether a file or folder is left by a system and is no data: hidden ones (`._x.jpg`, `.DS_Store`), __MACOSX."""
    return name.startswith(".") or name == "__MACOSX"


def table_files(root: Path, *, skip: Path | None = None) -> dict[str, list[Path]]:
    """Parquet and Arrow files below `root`, but not below `skip`, {split: files}; "" if no split is named. The file's
    name tells the split, or else the nearest folder's. InputError: a split's files lie in several folders."""
    by_split: dict[str, list[Path]] = {}
    for path in sorted(_tables_below(root, skip)):
        by_split.setdefault(split_of(path.relative_to(root)), []).append(path)
    for split, paths in by_split.items():
        folders = sorted({str(path.parent) for path in paths})
        if split and len(folders) > 1:
            raise InputError(f"{root}: {split} files lie in several folders ({', '.join(folders)}); name one of these")
    return by_split


def tables_of_splits(root: Path) -> dict[str, list[Path]]:
    """`table_files` below `root`, where files that name no split are for training unless others say that they are."""
    files = table_files(root)
    if "train" not in files and "" in files:
        files["train"] = files.pop("")
    return files


def _tables_below(root: Path, skip: Path | None) -> Iterator[Path]:
    """Yield the visible files of tables in `root` and its folders, without `skip`. Folders looked into are recorded as
    read."""
    for name, folders, files in os.walk(root):
        folder = Path(name)
        user_files.note(folder)
        for one in (*folders, *files):
            if one.endswith(ENDINGS) and not is_clutter(one) and not one.startswith(_NO_DATA):
                yield folder / one
        folders[:] = [one for one in folders if not is_clutter(one) and folder / one != skip]


def table_rows(
    files: Sequence[Path], columns: Mapping[str, Sequence[str]], *, needed: Collection[str]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield the rows that have a picture, each with a dict: for every name in `columns` the value of the first column
    in its list that exists (None: none does), and the picture's "path".

    needed: names that must have a column, or else InputError. No picture is read.
    """
    for file in files:
        with _opened(file) as source:
            there = source.schema_arrow.names
            for options in (PICTURES, *(columns[name] for name in needed)):
                if not set(options) & set(there):
                    raise InputError(f"{file} has no column {' or '.join(options)}; it has {', '.join(there)}")
            column_of = {name: next((c for c in options if c in there), None) for name, options in columns.items()}
            for column in (_picture_column(source), *filter(None, column_of.values())):
                if there.count(column) > 1:
                    raise InputError(f"{file} has {there.count(column)} columns {column}; leave one of them")
            table = source.read(columns=[column for column in column_of.values() if column is not None]).to_pylist()
            names = _class_labels(source)
            paths = list(_picture_paths(source, file))
        for number, (values, path) in enumerate(zip(table, paths, strict=True)):
            if path is not None:
                row = Row(file, number)
                named = {c: _named(values[c], names[c], row) if c in names else values[c] for c in values}
                yield (
                    row,
                    {name: None if c is None else named[c] for name, c in column_of.items()} | {"path": path},
                )


def _picture_column(source: Any) -> str:
    """The column of pictures. LookupError: there is none."""
    return next(name for name in PICTURES if name in source.schema_arrow.names)


def _class_labels(source: Any) -> dict[str, list[str]]:
    """{column that is a ClassLabel of `datasets`: its names}."""
    try:
        metadata = json.loads((source.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        labels = {c: one.get("names") for c, one in features.items() if isinstance(one, dict)}
    except (ValueError, AttributeError, RecursionError):  # another writer's
        return {}
    return {
        c: names for c, names in labels.items() if isinstance(names, list) and all(isinstance(n, str) for n in names)
    }


def _named(label: Any, names: list[str], row: Row) -> Any:
    """The name of a label, a whole number; anything else stays. InputError: there is no name of this number."""
    if not isinstance(label, int) or isinstance(label, bool):
        return label
    if not 0 <= label < len(names):
        raise InputError(f"{row}: the label {label} is none of its {len(names)} classes")
    return names[label]


def _picture_paths(source: Any, file: Path) -> Iterator[str | None]:
    """Yield the path of each row's picture, "" if it has none; None for a row without picture."""
    name = _picture_column(source)
    kind = source.schema_arrow.field(name).type
    parts = {part.name: part.type for part in kind} if pa.types.is_struct(kind) else {"bytes": kind}
    if not (_binary(parts.get("bytes")) and ("path" not in parts or _text(parts["path"]))):
        raise InputError(f"{file}: the column {name} must hold bytes, or a struct of bytes and path, not {kind}")
    for group in range(source.num_row_groups):
        column = source.read_row_group(group, columns=[f"{name}.path" if "path" in parts else name]).column(name)
        if "path" in parts:
            yield from (None if value is None else value["path"] or "" for value in column.to_pylist())
        else:
            yield from ("" if valid else None for valid in column.is_valid().to_pylist())


def _binary(kind: object) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_null)
    return kind is not None and any(test(kind) for test in tests)


def _text(kind: object) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null))


class _Stream:
    """An Arrow stream, which `datasets` saves, with those parts of pyarrow's ParquetFile that are used here."""

    def __init__(self, content: Any) -> None:
        self._table = pa.ipc.open_stream(content).read_all()
        self.batches = self._table.to_batches()
        self.schema_arrow, self.num_row_groups = self._table.schema, len(self.batches)

    def read(self, columns: Sequence[str]) -> Any:
        return self._table.select(columns)

    def read_row_group(self, number: int, columns: Sequence[str]) -> Any:
        whole = [column.partition(".")[0] for column in columns]
        return pa.Table.from_batches([self.batches[number]]).select(whole)


def _rows_in(source: Any, group: int) -> int:
    part = source.batches[group] if isinstance(source, _Stream) else source.metadata.row_group(group)
    return int(part.num_rows)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    kind = "Arrow" if file.suffix == ".arrow" else "parquet"
    try:
        with user_files.opened(file) as content:
            if kind == "parquet":
                yield pq.ParquetFile(content)
            else:
                with pa.memory_map(str(file)) as mapped:  # nothing is copied
                    yield _Stream(mapped)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "incomplete download?"
        raise InputError(f"{file} is no readable {kind} file ({reason})") from error


def contents(rows: Collection[Row]) -> dict[Row, bytes]:
    """The bytes of those rows' pictures; only row groups that contain such a row are read."""
    numbers: dict[Path, set[int]] = {}
    for row in rows:
        numbers.setdefault(row.file, set()).add(row.number)
    return {Row(file, n): content for file, some in numbers.items() for n, content in _contents(file, some)}


def _contents(file: Path, numbers: set[int]) -> Iterator[tuple[int, bytes]]:
    start = 0
    with _opened(file) as source:
        name = _picture_column(source)
        for group in range(source.num_row_groups):
            stop = start + _rows_in(source, group)
            inside = sorted(number for number in numbers if start <= number < stop)
            column = source.read_row_group(group, columns=[name]).column(name) if inside else ()
            for number in inside:
                value = column[number - start].as_py()
                content = (value["bytes"] if isinstance(value, dict) else value) or b""
                if not content and isinstance(value, dict) and value.get("path"):
                    raise InputError(
                        f"row {number} of {file}: it holds the name of its picture ({short_repr(value['path'])}) and "
                        "not the picture; save the pictures with the data (embed_table_storage of datasets)"
                    )
                yield number, content
            start = stop
