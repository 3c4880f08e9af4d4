"""Data sets on the local disk: reading them, and drawing a federation from one pool (FedRand, section 4.1, appendix
A.1).

Nothing is downloaded. A data set is first a list of items; their pictures are not opened. Drawn items become records:
image files stay files (their headers are checked), pictures in parquet files are read then, and no others.
"""

import io
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks import duplicates
from fedaudit.tasks.base import Client, Federation, Record, Score, client_name, coin_flips
from fedaudit.tasks.metrics import caption_scores

SPLITS = ("train", "val", "test", "")  # "": files whose names tell no split
NAME_BYTES = 255  # of a file, on the file systems in use
_SPLIT = re.compile(r"(?<![a-z])(train|val|test)(?:ing|id|idation)?(?![a-z])")


@dataclass(frozen=True)
class Row:
    """The place of a picture in a parquet file."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"row {self.number} of {self.file}"


@dataclass(frozen=True, eq=False)
class Item:
    """A possible record: it becomes one when it is drawn."""

    id: str
    group: str
    source: Path | Row
    prompt: str
    texts: tuple[str, ...]  # right answers: one of them is trained on, all are references
    where: str = ""  # file, and row or number in it, for messages


def folder(value: str, *, flag: str, source: str) -> Path:
    """The folder that a flag names. InputError: none, or no folder; `source` tells what should be in it."""
    if not value.strip():
        raise InputError(f"{flag} is not given: name the folder that holds {source}")
    path = Path(value).expanduser().absolute()
    if not os.path.isdir(path):  # False for a name that is none
        raise InputError(f"{flag} {value}: no such folder; it should hold {source}")
    return path


def read_json(path: Path, keep: Collection[str] | None = None) -> Any:
    """The content of a JSON file; with `keep`, only these keys of every object (COCO's polygons would take gigabytes).
    InputError: it cannot be read, or is no JSON."""
    hook = None if keep is None else lambda thing: {key: thing[key] for key in keep if key in thing}
    try:
        with io.TextIOWrapper(user_files.opened(path), encoding="utf-8") as file:
            return json.load(file, object_hook=hook, parse_constant=_refuse)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no valid JSON ({error}); unpack or download it again") from error


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def need(thing: Any, key: str, where: str | Path, kind: type = object) -> Any:
    """The value thing[key] of a JSON object, of type `kind`; a bool is not an int here. InputError, which names the
    file, `where`: it is missing or of another type."""
    if not isinstance(thing, dict) or key not in thing:
        raise InputError(f"{where}: an object lacks the key {key!r}, which the official file has")
    if not isinstance(thing[key], kind) or (kind is int and isinstance(thing[key], bool)):
        raise InputError(f"{where}: {key!r} must hold a {kind.__name__}, not {short_repr(thing[key])}")
    return thing[key]


def identifier(value: Any, what: str, where: object) -> int | str:
    """`value` if it is a whole number of at most 64 bits or one line of text, else an InputError about `what`."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if not whole and not one_line(value):
        raise InputError(f"{where}: {what} must be a whole number or a name on one line, not {short_repr(value)}")
    return value


def path_below(folder: Path, name: Any, where: str | Path) -> Path:
    """A path in `folder`, or further down, that a list names. InputError: it leads elsewhere or cannot exist."""
    if not one_line(name):
        raise InputError(f"{where}: a picture must have a name on one line, not {short_repr(name)}")
    parts = PurePath(name).parts
    if ".." in parts or PurePath(name).is_absolute():
        raise InputError(f"{where}: the picture {name} lies outside {folder}; names must lead below that folder")
    if any(len(part.encode()) > NAME_BYTES for part in parts):
        raise InputError(f"{where}: the picture {short_repr(name)} has a name of more than {NAME_BYTES} bytes")
    return folder / name


def one_line(value: object) -> bool:
    """Whether `value` is a non-blank text without line breaks, control characters and lone surrogates."""
    if not isinstance(value, str) or not value.strip():
        return False
    return value.isprintable() or not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in value)


def finite(value: object) -> bool:
    """Whether `value` is a finite number (a bool is none)."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and math.isfinite(value))


def parquet_files(root: Path, *, skip: Path | None = None) -> dict[str, list[Path]]:
    """Parquet files below `root`, but not below `skip`, {split: files} (see `SPLITS`; "" if none is named). The file's
    name tells the split, or else the nearest folder's. InputError: a split's files lie in several folders."""
    by_split: dict[str, list[Path]] = {}
    for path in sorted(_parquet_below(root, skip)):
        named = (_SPLIT.search(part.lower()) for part in reversed(path.relative_to(root).parts))
        by_split.setdefault(next((match[1] for match in named if match), ""), []).append(path)
    for split, paths in by_split.items():
        folders = sorted({str(path.parent) for path in paths})
        if split and len(folders) > 1:
            raise InputError(f"{root}: {split} files lie in several folders ({', '.join(folders)}); name one of these")
    return by_split


def _parquet_below(root: Path, skip: Path | None) -> Iterator[Path]:
    """Yield the visible parquet files in `root` and its folders, without `skip`. Folders looked into are recorded as
    read."""
    for name, folders, files in os.walk(root):
        folder = Path(name)
        user_files.note(folder)
        yield from (folder / one for one in (*folders, *files) if one.endswith(".parquet") and not one.startswith("."))
        folders[:] = [one for one in folders if not one.startswith(".") and folder / one != skip]


def choose_splits(there: Collection[str], test: Sequence[str]) -> tuple[str, str | None]:
    """The split that clients draw from, the first of `SPLITS` that is there; and the first other one in `test`, or
    None: test records come from the pool."""
    pool = next((split for split in SPLITS if split in there), min(there))
    return pool, next((split for split in test if split in there and split != pool), None)


def parquet_items(
    root: Path, read: Callable[[str, list[Path]], list[Item]], *, test: Sequence[str], official: str, source: str,
    skip: Path | None = None,
) -> tuple[list[Item], list[Item]]:  # fmt: skip
    """(Items that clients draw from, items for testing, maybe none) of the parquet files below `root`.

    read: the items of a split's files. test, skip: as `choose_splits` and `parquet_files` take them. official, source:
    the data set's own layout and where to get it, for the InputError where there are no such files.
    """
    files = parquet_files(root, skip=skip)
    if not files:
        raise InputError(
            f"--data-root {root}: no data set recognised; looked for {official} and for *.parquet anywhere below; "
            f"it should hold {source}"
        )
    pool, tested = choose_splits(files, test)
    items = {split: read(split, files[split]) for split in (pool, tested) if split is not None}
    return items[pool], items[tested] if tested is not None else []


def parquet_rows(
    files: Sequence[Path], columns: Mapping[str, Sequence[str]], *, needed: Collection[str]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield the rows that have a picture, each with a dict: for every name in `columns` the value of the first column
    in its list that exists (None: none does), and the picture's "path".

    needed: names that must have a column, or else InputError. No picture is read.
    """
    for file in files:
        with _opened(file) as source:
            there = source.schema_arrow.names
            for options in (("image",), *(columns[name] for name in needed)):
                if not set(options) & set(there):
                    raise InputError(f"{file} has no column {' or '.join(options)}; it has {', '.join(there)}")
            column_of = {name: next((c for c in options if c in there), None) for name, options in columns.items()}
            for column in ("image", *filter(None, column_of.values())):
                if there.count(column) > 1:
                    raise InputError(f"{file} has {there.count(column)} columns {column}; leave one of them")
            table = source.read(columns=[column for column in column_of.values() if column is not None]).to_pylist()
            paths = list(_picture_paths(source, file))
        for number, (row, path) in enumerate(zip(table, paths, strict=True)):
            if path is not None:
                values = {name: None if column is None else row[column] for name, column in column_of.items()}
                yield Row(file, number), values | {"path": path}


def _picture_paths(source: Any, file: Path) -> Iterator[str | None]:
    """Yield the path of each row's picture, "" if it has none; None for a row without picture."""
    kind = source.schema_arrow.field("image").type
    parts = {part.name: part.type for part in kind} if pa.types.is_struct(kind) else {"bytes": kind}
    if not (_binary(parts.get("bytes")) and ("path" not in parts or _text(parts["path"]))):
        raise InputError(f"{file}: the column image must hold bytes, or a struct of bytes and path, not {kind}")
    for group in range(source.num_row_groups):
        column = source.read_row_group(group, columns=["image.path" if "path" in parts else "image"]).column("image")
        if "path" in parts:
            yield from (None if value is None else value["path"] or "" for value in column.to_pylist())
        else:
            yield from ("" if valid else None for valid in column.is_valid().to_pylist())


def _binary(kind: object) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_null)
    return kind is not None and any(test(kind) for test in tests)


def _text(kind: object) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with user_files.opened(file) as content:
            yield pq.ParquetFile(content)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "incomplete download?"
        raise InputError(f"{file} is no readable parquet file ({reason})") from error


def _pictures(items: Sequence[Item]) -> dict[str, Path | bytes]:
    """The pictures of drawn items, {item id: path, or bytes from a parquet row}. InputError for the first bad one."""
    rows: dict[Path, set[int]] = {}
    for item in items:
        if isinstance(item.source, Row):
            rows.setdefault(item.source.file, set()).add(item.source.number)
    loaded = {
        Row(file, number): content for file, numbers in rows.items() for number, content in _contents(file, numbers)
    }
    pictures = {item.id: loaded[item.source] if isinstance(item.source, Row) else item.source for item in items}
    for item in items:
        _check_picture(item, pictures[item.id])
    return pictures


def _contents(file: Path, numbers: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (row number, bytes of its picture) for those rows; only row groups that contain such a row are read."""
    start = 0
    with _opened(file) as source:
        for group in range(source.num_row_groups):
            stop = start + source.metadata.row_group(group).num_rows
            inside = sorted(number for number in numbers if start <= number < stop)
            column = source.read_row_group(group, columns=["image"]).column("image") if inside else ()
            for number in inside:
                value = column[number - start].as_py()
                yield number, (value["bytes"] if isinstance(value, dict) else value) or b""
            start = stop


def _check_picture(item: Item, picture: Path | bytes) -> None:
    """Raise InputError unless the picture exists and begins like an image. Its pixels are not decoded."""
    if isinstance(picture, Path) and not os.path.exists(picture):
        raise InputError(f"{picture}: no such file, but the annotations name it; unpack the images again")
    if not (picture.stat().st_size if isinstance(picture, Path) and picture.is_file() else picture):
        raise InputError(f"{item.source}: the image is empty (0 bytes)")
    try:
        with user_files.picture(picture) as opened:
            opened.verify()
    except OSError as error:
        raise InputError(f"{item.source}: no readable image ({error.strerror or error})") from error


class Pool:
    """Items not drawn yet, by group, in random order."""

    def __init__(self, items: Sequence[Item], rng: np.random.Generator, without: Collection[str] = ()) -> None:
        """The items, but for those whose ids are in `without`; these change the order of no others."""
        items = sorted(items, key=lambda item: item.id)
        groups: dict[str, list[Item]] = {group: [] for group in sorted({item.group for item in items})}
        for i in rng.permutation(len(items)):
            if items[i].id not in without:
                groups[items[i].group].append(items[i])
        self.left = list(groups.values())

    def take(self, n: int, rng: np.random.Generator, proportions: NDArray[np.float64] | None = None) -> list[Item]:
        """Draw n items, which leave the pool: each from a random group by `proportions` [groups] among those not used
        up (by their sizes if none of these is left). None: every item is equally likely."""
        taken = []
        for _ in range(n):
            size = np.array([len(items) for items in self.left], float)
            weights = size if proportions is None else proportions * (size > 0)
            share = np.cumsum(weights if weights.sum() > 0 else size)
            taken.append(self.left[int(np.searchsorted(share, rng.random() * share[-1], side="right"))].pop())
        return taken


@dataclass(frozen=True)
class _Drawn:
    """The items of a federation, by their parts, and the generators that go on to draw their texts."""

    shares: list[list[Item]]  # of the clients
    test: list[Item]
    novel: list[Item]
    novel_test: list[Item]
    rngs: dict[int, np.random.Generator]

    @property
    def items(self) -> list[Item]:
        """All items: of copies the first one keeps its part."""
        return [*(item for share in self.shares for item in share), *self.test, *self.novel, *self.novel_test]


def federate(
    pool: Sequence[Item],
    test: Sequence[Item],
    novel: Sequence[Item] = (),
    *,
    params: Any,
    clients: int,
    seed: int,
    score: Score = caption_scores,
) -> Federation:
    """The federation drawn from the items `pool`, each part with a generator of its own. Of drawn items with equal
    pixels, prompt and text one is kept, and others of their groups are drawn instead of the rest.

    test: test items; if there are none, test records are drawn from the pool. novel: items out of distribution. params:
    has `records`, `reference`, `background`, `test`, `dirichlet`, and `novel` if there are such items.
    """
    copies: dict[str, str] = {}  # {id: "FIRST = COPY" in words}
    pictures: dict[str, Path | bytes] = {}
    while True:
        left = [sum(item.id not in copies for item in items) for items in (pool, test, novel)]
        _check_enough(left[0], left[1], left[2], params, clients)
        drawn = _draw(pool, test, novel, copies, params, clients, seed)
        pictures |= _pictures([item for item in drawn.items if item.id not in pictures])
        if not (more := _copies(drawn.items, pictures)):
            break
        copies |= more
    return Federation(
        clients=tuple(_client(k, share, pictures, params, seed) for k, share in enumerate(drawn.shares)),
        novel=_records(drawn.novel, pictures, drawn.rngs[2]),
        test=_records(drawn.test, pictures, drawn.rngs[3]),
        novel_test=_records(drawn.novel_test, pictures, drawn.rngs[4]),
        score=score,
        remarks=tuple(_said(copies)),
    )


def _draw(
    pool: Sequence[Item], test: Sequence[Item], novel: Sequence[Item], without: Collection[str],
    params: Any, clients: int, seed: int,
) -> _Drawn:  # fmt: skip
    """Draw the items of all parts, none of those whose ids are in `without`."""
    each = 2 * params.records + params.reference + params.background
    remaining, remaining_novel = (
        Pool(items, np.random.default_rng((seed, n)), without) for items, n in ((pool, 5), (novel, 6))
    )
    concentrations = np.full(len(remaining.left), params.dirichlet)
    proportions = np.random.default_rng((seed, 0)).dirichlet(concentrations, size=clients)  # FedRand, section 4.1
    shares = [remaining.take(each, np.random.default_rng((seed, 1, k, 4)), p) for k, p in enumerate(proportions)]
    rngs = {part: np.random.default_rng((seed, part)) for part in (2, 3, 4)}
    novel_items = remaining_novel.take(params.novel if novel else 0, rngs[2])
    test_items = (Pool(test, rngs[3], without) if test else remaining).take(params.test, rngs[3])
    novel_test_items = remaining_novel.take(params.test if novel else 0, rngs[4])
    return _Drawn(shares, test_items, novel_items, novel_test_items, rngs)


def _copies(items: Sequence[Item], pictures: Mapping[str, Path | bytes]) -> dict[str, str]:
    """{id of an item that is a copy of an earlier one: both, in words}."""
    texts = [[(item.prompt, text) for text in item.texts] for item in items]
    first_of = duplicates.later(texts, [pictures[item.id] for item in items])
    return {items[i].id: duplicates.pairs({i: first}, lambda n: items[n].id) for i, first in first_of.items()}


def _said(copies: Mapping[str, str]) -> Iterator[str]:
    """A sentence on the items that were not taken; none without any."""
    if copies:
        named = ", ".join([*copies.values()][: duplicates.NAMED]) + ", ..." * (len(copies) > duplicates.NAMED)
        yield (
            f"{len(copies)} records were drawn and left out, as they have pixels, prompt and text of another one that "
            f"was drawn ({named})."
        )


def _client(k: int, share: list[Item], pictures: dict[str, Path | bytes], params: Any, seed: int) -> Client:
    """Client k with its candidates, reference and background records from its share of the items. These are shuffled
    first, since items drawn last may come after a class ran out."""
    deal, coins, texts = (np.random.default_rng((seed, 1, k, part)) for part in (1, 2, 3))
    records = _records([share[i] for i in deal.permutation(len(share))], pictures, texts)
    candidates, kept = 2 * params.records, 2 * params.records + params.reference
    member = coin_flips(candidates, coins)
    return Client(client_name(k), records[:candidates], records[candidates:kept], member, records[kept:])


def _records(items: Sequence[Item], pictures: dict[str, Path | bytes], rng: np.random.Generator) -> tuple[Record, ...]:
    """The items as records; `text` is one of an item's texts at random, and comes first in `references`."""
    records = []
    for item in items:
        chosen = int(rng.integers(len(item.texts)))
        texts = (item.texts[chosen], *item.texts[:chosen], *item.texts[chosen + 1 :])
        records.append(Record(item.id, item.group, pictures[item.id], item.prompt, texts[0], texts, where=item.where))
    return tuple(records)


def _check_enough(pool: int, test: int, novel: int, params: Any, clients: int) -> None:
    """Raise InputError if the numbers of pool, test and novel items are too small for the settings."""
    each = f"2 x {params.records} candidates + {params.reference} reference + {params.background} background records"
    due = clients * (2 * params.records + params.reference + params.background) + (0 if test else params.test)
    if pool < due:
        also = "" if test else f" and {params.test} test records"
        raise InputError(
            f"these settings need {due} records ({clients} clients with {each} each{also}) and the data set has {pool} "
            f"with a picture and a text; lower --records, --reference, --background{'' if test else ', --test'} or "
            "--clients"
        )
    if test and test < params.test:
        raise InputError(f"--test {params.test}: the data set has {test} test records")
    if novel and novel < params.novel + params.test:
        raise InputError(
            f"--novel {params.novel}: with {params.test} for utility (--test) that is more than the {novel} records "
            "that nocaps has of this domain; lower one of them or use --nocaps-domain all"
        )
