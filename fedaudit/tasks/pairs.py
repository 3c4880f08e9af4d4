"""One's own pairs of a picture and a text, for LoRA: a list, or the usual files of the Hugging Face hub.

`--data-root` names a list in JSON lines or CSV (`image`, `text`, optionally `client`, `group`, `references`), or a
folder with `train.jsonl` and `test.jsonl`, an imagefolder with `metadata.jsonl`, parquet files, or a folder of
`datasets.save_to_disk`. Where pairs name clients, each client draws from its own; else clients draw by group,
Dirichlet(0.5), as in FedRand, section 4.1. Layouts: docs/guides/own-data.md.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, choice, number, text, whole
from fedaudit.tasks import local_files
from fedaudit.tasks.base import Federation
from fedaudit.tasks.captions import INSTRUCTION
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.local_files import Item, choose_splits, federate, identifier
from fedaudit.tasks.metrics import answer_scores, caption_scores
from fedaudit.tasks.picture_lists import inside, listed_pictures, lists
from fedaudit.tasks.tables import Row, table_rows, tables_of_splits

SOURCE = "a list of pairs in JSON lines or CSV (image, text), or parquet files with image and text"
COLUMNS = {
    "text": ("text", "caption", "captions", "answer"),
    "group": ("group", "category", "label"),
    "client": ("client",),
    "references": ("references",),
}
SCORES = {"captions": caption_scores, "answers": answer_scores}
PLACE = re.compile(r"\{(\w+)\}")  # where a prompt shows another value of the pair

Pair = tuple[Path | Row, dict[str, Any], str]  # picture, values by the names in COLUMNS and of places, file and line


@dataclass(frozen=True)
class Params(Parameters):
    data_root: str = text("", "list of pairs (JSON lines or CSV), or the folder that holds it")
    images_root: str = text("", "folder that the list's pictures lie below (default: the list's own)")
    prompt: str = text("", "instruction with one <image> (default: FedRand's); {key}: a value of the pair")
    score: str = choice(
        "captions", "utility: overlap with captions, or exact match of answers", ("captions", "answers")
    )
    records: int = whole(25, "expected training records per client; as many are held out", least=2, most=10**6)
    background: int = whole(0, "further training records per client that are not asked about", least=0, most=10**6)
    reference: int = whole(75, "records per client kept for thresholds", least=2, most=10**6)
    test: int = whole(40, "test records for utility", least=1, most=10**6)
    dirichlet: float = number(0.5, "concentration of the partition by group", least=0.001, most=10**6)

    def check(self) -> None:
        if self.prompt and self.prompt.count("<image>") != 1:
            raise ValueError(f"prompt must hold <image> once, not {self.prompt!r}")


class Facts(TaskFacts):
    own_files = True


def clients_in(params: Params, usual: int) -> int:
    """The number of clients that the pairs name; `usual` if they name none."""
    return len({item.client for item in load(params)[0]} - {""}) or usual


def pairs(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the pairs of `data_root`."""
    pool, test = load(params)
    return federate(
        pool, test, params=params, clients=clients, seed=seed, score=SCORES[params.score], classes="group"
    )  # fmt: skip


def load(params: Params) -> tuple[list[Item], list[Item]]:
    """(Items that clients draw from, items for testing, maybe none). InputError for whatever is missing or
    unreadable."""
    columns = {name: (name,) for name in PLACE.findall(params.prompt)} | COLUMNS
    by_split = _lists(params, columns) or _tables(params, columns)
    pool, tested = choose_splits(by_split, ("test", "val"))
    used = (split for split in (pool, tested) if split is not None)
    train, *test = (_items(by_split[split](), split, params.prompt or INSTRUCTION) for split in used)
    return train, test[0] if test else []


Columns = dict[str, tuple[str, ...]]
BySplit = dict[str, Callable[[], Iterable[Pair]]]  # readers of each split's pairs


def _lists(params: Params, columns: Columns) -> BySplit:
    """Readers of the lists in `data_root`, by split."""
    root, images = Path(params.data_root).expanduser().absolute(), None
    if params.images_root:
        images = local_files.folder(params.images_root, flag="--images-root", source="the pictures of the list")
    files = {"train": root} if root.is_file() else lists(inside(_folder(params)), any_name=True)
    return {split: partial(_listed, path, images, columns) for split, path in files.items()}


def _folder(params: Params) -> Path:
    return local_files.folder(params.data_root, flag="--data-root", source=SOURCE)


def _listed(path: Path, images: Path | None, columns: Columns) -> Iterator[Pair]:
    for line in listed_pictures(path, images):
        present = {name: [key for key in keys if key in line.values] for name, keys in columns.items()}
        yield line.picture, {name: line.values[keys[0]] if keys else None for name, keys in present.items()}, line.where


def _tables(params: Params, columns: Columns) -> BySplit:
    """Readers of the parquet and Arrow files in `data_root`, by split. InputError: there are none."""
    root = _folder(params)
    files = tables_of_splits(root)
    if not files:
        raise InputError(f"--data-root {root}: no pairs recognised; it should hold {SOURCE}")
    return {split: partial(_rows, paths, columns) for split, paths in files.items()}


def _rows(files: Sequence[Path], columns: Columns) -> Iterator[Pair]:
    return ((row, values, str(row)) for row, values in table_rows(files, columns, needed=("text",)))


def _items(pairs: Iterable[Pair], split: str, prompt: str) -> list[Item]:
    """An item for each picture with a prompt of a client; further lines of the same add their texts. InputError: a
    value is wrong, or some pairs name clients and some do not."""
    first: dict[tuple[Path | Row, str, str], int] = {}
    read: list[Item] = []
    for source, values, where in pairs:
        texts, references = (_texts(values[name], name, where) for name in ("text", "references"))
        if not texts:
            raise InputError(f"{where}: its text is empty or missing ({' or '.join(COLUMNS['text'])})")
        group, client = (_name(values[name], name, where) for name in ("group", "client"))
        item = Item(
            f"pairs-{split}-{len(first):06d}", group or "all", source, _filled(prompt, values, where), texts, where,
            references, client,
        )  # fmt: skip
        place = first.setdefault((source, item.prompt, client), len(read))
        if place == len(read):
            read.append(item)
        else:
            read[place] = _joined(read[place], item)
    if silent := [item for item in read if not item.client] if any(item.client for item in read) else []:
        raise InputError(f"{silent[0].where}: it names no client, and other pairs do")
    return read


def _joined(one: Item, other: Item) -> Item:
    """The item with the texts of another one of the same picture and prompt."""
    texts, more = (
        tuple(dict.fromkeys((*a, *b))) for a, b in ((one.texts, other.texts), (one.references, other.references))
    )
    return Item(one.id, one.group, one.source, one.prompt, texts, one.where, more, one.client)


def _texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    """The texts in a string or a list of strings; blank ones are left out."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if bad := [one for one in listed if not isinstance(one, str)]:
        raise InputError(f"{where}: {name} must be a text, or a list of texts, not {short_repr(bad[0])}")
    return tuple(one.strip() for one in listed if one.strip())


def _name(value: Any, name: str, where: str) -> str:
    return "" if value is None else str(identifier(value, f"a {name}", where))


def _filled(prompt: str, values: dict[str, Any], where: str) -> str:
    """The prompt with the pair's own values in place of {key}; the two characters \\n are a line break."""

    def value(match: re.Match[str]) -> str:
        answer = values[match[1]]
        if not isinstance(answer, str):
            raise InputError(f"{where}: the prompt shows {match[0]}, which must be a text, not {short_repr(answer)}")
        return answer

    return PLACE.sub(value, prompt.replace("\\n", "\n"))
