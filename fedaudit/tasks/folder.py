"""Classification of one's own pictures: a folder for each class, or the usual files of the Hugging Face hub.

`--data-root DIR` holds a folder per class, or `train/` and `test/` (or `val/`) with these; parquet files or a folder of
`datasets.save_to_disk` with `image` and `label`; or pictures with a list of their labels. Without a test split three
tenths of each class, drawn at random, are for testing. Layouts: docs/guides/own-data.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import text
from fedaudit.tasks import local_files
from fedaudit.tasks.base import Federation
from fedaudit.tasks.class_folders import Rows, class_folders, with_test
from fedaudit.tasks.classification import Labelled, federate
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.imagesets import labelled, unpacked
from fedaudit.tasks.local_files import choose_splits, identifier
from fedaudit.tasks.partition_params import Partitioned
from fedaudit.tasks.picture_lists import inside, listed_pictures, lists, split_folders, visible_folders
from fedaudit.tasks.tables import SPLIT, Row, contents, table_rows, tables_of_splits

SOURCE = "a folder of pictures for each class, or parquet files with image and label"
LABELS = ("label", "labels", "fine_label", "class", "category")  # columns, and keys of lists


class Facts(TaskFacts):
    learner = "prompts"
    own_files = True


@dataclass(frozen=True)
class Params(Partitioned):
    data_root: str = text("", "folder of pictures: a folder for each class, maybe in train/ and test/")


def clients_in(params: Params, usual: int) -> int:
    """`usual`, or as many as there are classes if each client needs one of its own."""
    if params.partition != "pathological":
        return usual
    root = inside(local_files.folder(params.data_root, flag="--data-root", source=SOURCE))
    with unpacked("--task folder", root):
        if files := tables_of_splits(root):
            pool, _ = choose_splits(files, ())
            rows = table_rows(files[pool], {"label": LABELS}, needed=("label",))
            names = {_class_name(values["label"], row) for row, values in rows}
        else:
            by_split = _lists(root) or _class_folders(root)
            names = {name for _, name in by_split[choose_splits(by_split, ())[0]]}
    return min(usual, len(names))


def folder(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the pictures in `data_root`; these are decoded when they are used."""
    data_set = load(params.data_root, np.random.default_rng((seed, 5)))
    return federate([data_set], params=params, clients=clients, seed=seed)


def load(data_root: str, rng: np.random.Generator) -> Labelled:
    """Load the pictures in a folder with their classes. InputError for whatever is missing or unreadable."""
    root = local_files.folder(data_root, flag="--data-root", source=SOURCE)
    with unpacked("--task folder", root):
        root = inside(root)
        by_split = _lists(root) or _tables(root) or _class_folders(root)
        pool, tested = choose_splits(by_split, ("test", "val"))
        rows = by_split[pool], by_split[tested] if tested is not None else []
        train, test = rows if tested is not None else with_test(rows[0], rng)
    return labelled("folder", root, train, test)


def _lists(root: Path) -> dict[str, Rows]:
    """{split: rows} of pictures with lists of their labels."""
    return {split: list(_listed(path)) for split, path in lists(root).items()}


def _listed(path: Path) -> Iterator[tuple[Path, str]]:
    for line in listed_pictures(path):
        label = next((line.values[key] for key in LABELS if key in line.values), None)
        if label is None:
            raise InputError(f"{line.where}: it has no {' or '.join(LABELS)}; for texts take --task pairs")
        if not line.picture.exists():
            raise InputError(f"{line.picture}: no such file, but {line.where} names it; unpack the images again")
        yield line.picture, _class_name(label, line.where)


def _tables(root: Path) -> dict[str, Rows]:
    """{split: rows} of parquet files or of files that `datasets` saved."""
    files = tables_of_splits(root)
    pool, tested = choose_splits(files, ("test", "val")) if files else ("", None)
    used = {split: files[split] for split in (pool, tested) if split in files}
    return {split: _of_table(paths) for split, paths in used.items()}


def _of_table(files: list[Path]) -> Rows:
    rows: list[tuple[Row, dict[str, Any]]] = list(table_rows(files, {"label": LABELS}, needed=("label",)))
    pictures = contents([row for row, _ in rows])
    return [(pictures[row], _class_name(values["label"], row)) for row, values in rows]


def _class_name(label: Any, where: object) -> str:
    return str(identifier(label, "a label", where))


def _class_folders(root: Path) -> dict[str, Rows]:
    """{split: rows} of a folder per class, in `root` or in a folder per split. InputError: there is no folder, or one
    lies beside the splits, or splits hold pictures without classes."""
    there = visible_folders(root)
    if not there:
        raise InputError(f"--data-root {root}: no data set recognised; it should hold {SOURCE}")
    splits = split_folders(root)
    named = {match[1]: one.name for one in there if (match := SPLIT.fullmatch(one.name.lower()))}
    if not splits and (len(named) > 1 or len(named) == len(there)):
        raise InputError(
            f"--data-root {root}: {', '.join(f'{name}/' for name in named.values())} are splits whose pictures have no "
            "class; each should hold a folder for each class, or metadata.csv with the columns file_name and label"
        )
    if beside := [one for one in there if splits and not any(path.is_relative_to(one) for path in splits.values())]:
        names = ", ".join(f"{path.name}/" for path in splits.values())
        raise InputError(f"{beside[0]} lies beside {names} and is of no split; move it out of {root}")
    return {split: class_folders(path) for split, path in splits.items()} or {"train": class_folders(root)}
