"""Data sets on the local disk: reading them, and drawing a federation from one pool (FedRand, section 4.1, appendix
A.1).

Nothing is downloaded. A data set is first a list of items; their pictures are not opened. Drawn items become records:
image files stay files (their headers are checked), pictures in parquet files are read then, and no others.
"""

import io
import json
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from reprlib import repr as short_repr
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each
from fedaudit.tasks import duplicates
from fedaudit.tasks.base import Client, Federation, Record, Score, client_name, coin_flips
from fedaudit.tasks.metrics import caption_scores
from fedaudit.tasks.tables import Row, contents, table_files

SPLITS = ("train", "val", "test", "")  # "": files whose names tell no split
NAME_BYTES = 255  # of a file, on the file systems in use


@dataclass(frozen=True, eq=False)
class Item:
    """A possible record: it becomes one when it is drawn."""

    id: str
    group: str
    source: Path | Row
    prompt: str
    texts: tuple[str, ...]  # right answers: one of them is trained on, all are references
    where: str = ""  # file, and row or number in it, for messages
    references: tuple[str, ...] = ()  # further right answers, which nobody trains on
    client: str = ""  # the client that the files say it is of; "": clients draw from all


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


def choose_splits(there: Collection[str], test: Sequence[str]) -> tuple[str, str | None]:
    """The split that clients draw from, the first of `SPLITS` that is there; and the first other one in `test`, or
    None: test records come from the pool."""
    pool = next((split for split in SPLITS if split in there), min(there))
    return pool, next((split for split in test if split in there and split != pool), None)


def table_items(
    root: Path, read: Callable[[str, list[Path]], list[Item]], *, test: Sequence[str], official: str, source: str,
    skip: Path | None = None,
) -> tuple[list[Item], list[Item]]:  # fmt: skip
    """(Items that clients draw from, items for testing, maybe none) of the parquet and Arrow files below `root`.

    read: the items of a split's files. test, skip: as `choose_splits` and `table_files` take them. official, source:
    the data set's own layout and where to get it, for the InputError where there are no such files.
    """
    files = table_files(root, skip=skip)
    if not files:
        raise InputError(
            f"--data-root {root}: no data set recognised; looked for {official} and for *.parquet and *.arrow anywhere "
            f"below; it should hold {source}"
        )
    pool, tested = choose_splits(files, test)
    items = {split: read(split, files[split]) for split in (pool, tested) if split is not None}
    return items[pool], items[tested] if tested is not None else []


def _pictures(items: Sequence[Item]) -> dict[str, Path | bytes]:
    """The pictures of drawn items, {item id: path, or bytes from a parquet row}. InputError names all bad ones."""
    loaded = contents({item.source for item in items if isinstance(item.source, Row)})
    pictures = {item.id: loaded[item.source] if isinstance(item.source, Row) else item.source for item in items}
    each(lambda item: _check_picture(item, pictures[item.id]), items)
    return pictures


def _check_picture(item: Item, picture: Path | bytes) -> None:
    """Raise InputError unless the picture exists and begins like an image. Its pixels are not decoded."""
    if isinstance(picture, Path) and not os.path.exists(picture):
        raise InputError(f"{picture}: no such file, but the annotations name it; unpack the images again")
    if not (picture.stat().st_size if isinstance(picture, Path) and picture.is_file() else picture):
        raise InputError(f"{item.source}: the image is empty (0 bytes)")
    try:
        with user_files.picture(picture) as opened:
            if duplicates.decoding():  # what a picture's format can tell takes reading all of it
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
    classes: str = "",
) -> Federation:
    """The federation drawn from the items `pool`, each part with a generator of its own. Where the items name clients,
    each of these draws from its own. Of drawn items with equal pixels, prompt and text one is kept, and others are
    drawn instead of the rest.

    test: test items; if there are none, test records are drawn from the pool. novel: items out of distribution. params:
    has `records`, `reference`, `background`, `test`, `dirichlet`, and `novel` if there are such items. classes: what
    tells an item's group, for the InputError where `dirichlet` is given and there is one group only.
    """
    copies: dict[str, str] = {}  # {id: "FIRST = COPY" in words}
    pictures: dict[str, Path | bytes] = {}
    while True:
        kept = [item for item in pool if item.id not in copies]
        sizes = Counter(item.client for item in kept)
        if any(sizes):
            _check_clients(sizes, params, clients)
        left = [sum(item.id not in copies for item in items) for items in (test, novel)]
        _check_enough(len(kept), left[0], left[1], params, clients)
        drawn = _draw(pool, test, novel, copies, classes, params, clients, seed)
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
    pool: Sequence[Item], test: Sequence[Item], novel: Sequence[Item], without: Collection[str], classes: str,
    params: Any, clients: int, seed: int,
) -> _Drawn:  # fmt: skip
    """Draw the items of all parts, none of those whose ids are in `without`."""
    shares, remaining = _shares(pool, without, classes, params, clients, seed)
    remaining_novel = Pool(novel, np.random.default_rng((seed, 6)), without)
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
            f"records drawn and left out, as they have pixels, prompt and text of another one that was drawn: "
            f"{len(copies)}, {named}."
        )


def _shares(
    pool: Sequence[Item], without: Collection[str], classes: str, params: Any, clients: int, seed: int
) -> tuple[list[list[Item]], Pool]:
    """(Each client's items, the items that are left). InputError: `dirichlet` is given where it has no effect."""
    each, named = _each(params), sorted({item.client for item in pool})
    rngs = [np.random.default_rng((seed, 1, k, 4)) for k in range(clients)]
    asked_for = params.dirichlet != type(params).dirichlet
    if named != [""]:
        if asked_for:
            raise InputError(f"--dirichlet {params.dirichlet:g}: the data name the client of each record; leave it out")
        items_of = ([item for item in pool if item.client == name] for name in named)
        pools = [Pool(items, np.random.default_rng((seed, 5, k)), without) for k, items in enumerate(items_of)]
        shares = [one.take(each, rng) for one, rng in zip(pools, rngs, strict=True)]
        rest = [item for one in pools for items in one.left for item in items]
        return shares, Pool(rest, np.random.default_rng((seed, 5)))
    remaining = Pool(pool, np.random.default_rng((seed, 5)), without)
    if asked_for and len(remaining.left) == 1:
        raise InputError(
            f"--dirichlet {params.dirichlet:g}: there is nothing to partition by, as no record has a class of its own "
            f"({classes}); leave it out"
        )
    concentrations = np.full(len(remaining.left), params.dirichlet)
    proportions = np.random.default_rng((seed, 0)).dirichlet(concentrations, size=clients)  # FedRand, section 4.1
    return [remaining.take(each, rng, p) for rng, p in zip(rngs, proportions, strict=True)], remaining


def _each(params: Any) -> int:
    """The number of records of a client."""
    return int(2 * params.records + params.reference + params.background)


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
        right = (*texts, *item.references)
        records.append(Record(item.id, item.group, pictures[item.id], item.prompt, texts[0], right, where=item.where))
    return tuple(records)


def _check_enough(pool: int, test: int, novel: int, params: Any, clients: int) -> None:
    """Raise InputError if the numbers of pool, test and novel items are too small for the settings."""
    due = clients * _each(params) + (0 if test else params.test)
    if pool < due:
        also, flags = ("", "") if test else (f" and {params.test} test records", ", --test")
        raise InputError(
            f"these settings need {due} records ({clients} clients with {_parts(params)} each{also}) and the data set "
            f"has {pool} with a picture and a text; lower --records, --reference, --background{flags} or --clients"
        )
    if test and test < params.test:
        raise InputError(f"--test {params.test}: the data set has {test} test records")
    if novel and novel < params.novel + params.test:
        raise InputError(
            f"--novel {params.novel}: with {params.test} for utility (--test) that is more than the {novel} records "
            "that nocaps has of this domain; lower one of them or use --nocaps-domain all"
        )


def _parts(params: Any) -> str:
    return f"2 x {params.records} candidates + {params.reference} reference + {params.background} background records"


def _check_clients(sizes: Mapping[str, int], params: Any, clients: int) -> None:
    """Raise InputError unless the data name `clients` clients and each has enough records. sizes: by client."""
    if len(sizes) != clients:
        names = ", ".join(sorted(sizes)[:4]) + (", ..." if len(sizes) > 4 else "")
        raise InputError(f"--clients {clients}: the data name {len(sizes)} ({names}); give --clients {len(sizes)}")
    name, least = min(sizes.items(), key=lambda pair: pair[1])
    if least < _each(params):
        raise InputError(
            f"these settings need {_each(params)} records of each client ({_parts(params)}) and {name} has {least}; "
            "lower --records, --reference or --background"
        )
