"""Miniatures of one's own data in the layouts that tools write: class folders, Hugging Face files, lists, Karpathy's split.

Picture n is `minidata.picture(n)`. Every builder takes the root and returns what a reader must find.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests import minidata
from tests.minidata import picture, write

NAMES = ("night heron", "oak", "pine")  # of classes; picture n is of class n % 3
Found = dict[str, dict[int, str]]  # {"train", "test" or "all": {picture: class}}


def of(numbers: Iterable[int]) -> dict[int, str]:
    return {n: NAMES[n % 3] for n in numbers}


WHOLE: Found = {"all": of(range(33))}
SPLIT: Found = {"train": of(range(24)), "test": of(range(100, 109))}


def _class_folders(base: Path, numbers: Iterable[int], ending: str = ".png") -> None:
    for n, name in of(numbers).items():
        write(base / name.replace(" ", "_") / f"{n}{ending}", picture(n, "PNG"))


def clutter(root: Path) -> None:
    """What systems leave in folders of pictures."""
    for folder in (root, *[path for path in root.rglob("*") if path.is_dir()]):
        for name in ("._0.png", ".directory", ".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX/._0.png"):
            write(folder / name, b"no picture")


def flat(root: Path) -> Found:
    _class_folders(root, range(33), ".PNG")
    clutter(root)
    return WHOLE


def train_and_test(root: Path) -> Found:
    _class_folders(root / "Training", range(24))
    _class_folders(root / "test", range(100, 109))
    _class_folders(root / "validation", range(200, 209))
    clutter(root)
    return SPLIT


def train_and_val(root: Path) -> Found:
    _class_folders(root / "train", range(24))
    _class_folders(root / "val", range(100, 109))
    return SPLIT


def train_alone(root: Path) -> Found:
    _class_folders(root / "train", range(33))
    return WHOLE


def a_class_called_train(root: Path) -> Found:
    """Three vehicles, one of which is no split."""
    for n in range(33):
        write(root / ("bus", "car", "train")[n % 3] / f"{n}.png", picture(n, "PNG"))
    return {"all": {n: ("bus", "car", "train")[n % 3] for n in range(33)}}


def imagefolder(root: Path) -> Found:
    for split, numbers in (("train", range(24)), ("test", range(100, 109))):
        lines = [json.dumps({"file_name": f"{n}.png", "label": NAMES[n % 3], "more": n}) for n in numbers]
        write(root / split / "metadata.jsonl", "\n".join(lines).encode())
        for n in numbers:
            write(root / split / f"{n}.png", picture(n, "PNG"))
    return SPLIT


def imagefolder_of_one(root: Path) -> Found:
    lines = [json.dumps({"file_name": f"a/{n}.png", "label": n % 3}) for n in range(33)]
    write(root / "metadata.jsonl", ("\n".join(lines) + "\n\n").encode())
    for n in range(33):
        write(root / f"a/{n}.png", picture(n, "PNG"))
    return {"all": {n: str(n % 3) for n in range(33)}}


def _csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    write(path, text.getvalue().encode("utf-8-sig"))


def splits_with_csv(root: Path) -> Found:
    for split, numbers in (("train", range(24)), ("test", range(100, 109))):
        _csv(root / split / "metadata.csv", [("file_name", "label"), *((f"{n}.png", NAMES[n % 3]) for n in numbers)])
        for n in numbers:
            write(root / split / f"{n}.png", picture(n, "PNG"))
    return SPLIT


def labels_beside_images(root: Path) -> Found:
    _csv(root / "labels.csv", [("filename", "class", "note"), *((f"{n}.png", NAMES[n % 3], "") for n in range(33))])
    for n in range(33):
        write(root / f"images/{n}.png", picture(n, "PNG"))
    clutter(root)
    return WHOLE


def doubled(root: Path) -> Found:
    _class_folders(root / "archive/seg_train/seg_train", range(24))
    _class_folders(root / "archive/seg_test/seg_test", range(100, 109))
    clutter(root)
    return SPLIT


def doubled_train(root: Path) -> Found:
    _class_folders(root / "train/train", range(33))
    return WHOLE


def _features(names: Sequence[str] | None) -> dict[str, object]:
    label = {"names": list(names), "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    return {"image": {"_type": "Image"}, "label": label}


def labelled_table(numbers: Iterable[int], names: Sequence[str] | None = NAMES, image: str = "image") -> pa.Table:
    """Rows as `datasets` keeps them: bytes and path of a picture, a number, and in the schema what the numbers mean."""
    said = {"info": {"features": _features(names)}}
    rows = [{image: {"bytes": picture(n, "PNG"), "path": f"{n}.png"}, "label": n % 3} for n in numbers]
    return pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(said)})


def _parquet(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=10)


def parquet(root: Path) -> Found:
    _parquet(root / "data/train-00000-of-00002.parquet", labelled_table(range(12)))
    _parquet(root / "data/train-00001-of-00002.parquet", labelled_table(range(12, 24)))
    _parquet(root / "data/test-00000-of-00001.parquet", labelled_table(range(100, 109)))
    return SPLIT


def parquet_with_img(root: Path) -> Found:
    _parquet(root / "all.parquet", labelled_table(range(33), None, "img"))
    return {"all": {n: str(n % 3) for n in range(33)}}


def parquet_of_no_split_and_test(root: Path) -> Found:
    _parquet(root / "birds.parquet", labelled_table(range(24)))
    _parquet(root / "birds-test.parquet", labelled_table(range(100, 109)))
    return SPLIT


def arrow(folder: Path, table: pa.Table, batch: int = 7) -> None:
    """A folder of `Dataset.save_to_disk`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "data-00000-of-00001.arrow"
    with pa.ipc.new_stream(folder / name, table.schema) as stream:
        stream.write_table(table, max_chunksize=batch)
    state = {"_data_files": [{"filename": name}], "_fingerprint": "0a", "_format_type": None, "_split": None}
    write(folder / "state.json", state)
    write(folder / "dataset_info.json", {"features": {}})


def saved_to_disk(root: Path) -> Found:
    arrow(root / "train", labelled_table(range(24)))
    arrow(root / "test", labelled_table(range(100, 109)))
    write(root / "train/cache-0a1b.arrow", b"left by map")
    write(root / "dataset_dict.json", {"splits": ["train", "test"]})
    return SPLIT


def saved_dataset(root: Path) -> Found:
    arrow(root, labelled_table(range(33)))
    return WHOLE


FOLDERS: Mapping[str, Callable[[Path], Found]] = {
    name.__name__: name
    for name in (
        flat, train_and_test, train_and_val, train_alone, a_class_called_train, imagefolder, imagefolder_of_one,
        splits_with_csv, labels_beside_images, doubled, doubled_train,
        parquet, parquet_with_img, parquet_of_no_split_and_test, saved_to_disk, saved_dataset,
    )
}  # fmt: skip

# --- pairs: {"train" or "test": {picture: (texts, references, group, client)}}

Pair = tuple[tuple[str, ...], tuple[str, ...], str, str]


def _line(n: int, **more: object) -> dict[str, object]:
    return {"image": f"img/{n}.png", "text": f"text of {n}", **more}


def write_list(path: Path, lines: Iterable[Mapping[str, object]], images: Path | None = None) -> None:
    """A list with its pictures, whose names end in their numbers."""
    lines = list(lines)
    write(path, "\n".join(map(json.dumps, lines)).encode())
    for line in lines:
        name = str(line.get("image", line.get("file_name")))
        write((images or path.parent) / name, picture(int(Path(name).stem), "PNG"))


def one_list(root: Path) -> dict[str, dict[int, Pair]]:
    found: dict[int, Pair] = {n: ((f"text of {n}",), (f"also {n}",), NAMES[n % 3], f"ward {n % 2}") for n in range(60)}
    lines = [_line(n, client=of, group=group, references=more, age=str(n)) for n, (_, more, group, of) in found.items()]
    write_list(root / "mine.jsonl", lines)
    clutter(root)
    return {"train": found, "test": {}}


def lists_of_splits(root: Path) -> dict[str, dict[int, Pair]]:
    """Five lines of a picture are one record."""
    write_list(root / "train.jsonl", [_line(n, text=f"{i} of {n}") for i in range(5) for n in range(60)])
    write_list(root / "test.jsonl", map(_line, range(100, 110)))
    write_list(root / "val.jsonl", map(_line, range(200, 210)))
    train = {n: (tuple(f"{i} of {n}" for i in range(5)), (), "all", "") for n in range(60)}
    return {"train": train, "test": {n: ((f"text of {n}",), (), "all", "") for n in range(100, 110)}}


def imagefolder_of_texts(root: Path) -> dict[str, dict[int, Pair]]:
    write_list(root / "metadata.jsonl", [{"file_name": f"{n}.png", "text": f"text of {n}"} for n in range(60)])
    return {"train": {n: ((f"text of {n}",), (), "all", "") for n in range(60)}, "test": {}}


def csv_of_texts(root: Path) -> dict[str, dict[int, Pair]]:
    texts = {n: f'text, "of" {n}\nin two lines' for n in range(60)}
    _csv(
        root / "mine.csv",
        [("image", "text", "group", "client"), *((f"{n}.png", text, NAMES[n % 3], n % 2) for n, text in texts.items())],
    )
    for n in texts:
        write(root / f"images/{n}.png", picture(n, "PNG"))
    return {"train": {n: ((text,), (), NAMES[n % 3], str(n % 2)) for n, text in texts.items()}, "test": {}}


def _text_rows(numbers: Iterable[int]) -> pa.Table:
    pictures = {n: {"bytes": picture(n, "PNG"), "path": "image.png"} for n in numbers}
    rows = [{"image": shown, "caption": [f"a {n}", f"b {n}"], "client": n % 2} for n, shown in pictures.items()]
    return pa.Table.from_pylist(rows)


def _text_pairs(numbers: Iterable[int]) -> dict[int, Pair]:
    return {n: ((f"a {n}", f"b {n}"), (), "all", str(n % 2)) for n in numbers}


def parquet_of_texts(root: Path) -> dict[str, dict[int, Pair]]:
    _parquet(root / "train.parquet", _text_rows(range(60)))
    _parquet(root / "test.parquet", _text_rows(range(100, 110)))
    return {"train": _text_pairs(range(60)), "test": _text_pairs(range(100, 110))}


def saved_texts(root: Path) -> dict[str, dict[int, Pair]]:
    arrow(root, _text_rows(range(60)))
    return {"train": _text_pairs(range(60)), "test": {}}


PAIRS: Mapping[str, Callable[[Path], dict[str, dict[int, Pair]]]] = {
    name.__name__: name
    for name in (one_list, lists_of_splits, imagefolder_of_texts, csv_of_texts, parquet_of_texts, saved_texts)
}  # fmt: skip

# --- Karpathy's split of MSCOCO

KARPATHY = {"train": range(1, 61), "restval": range(500, 530), "val": range(600, 606), "test": range(700, 710)}


def karpathy(root: Path, *, images: str = ".", instances: bool = False) -> Path:
    """dataset_coco.json with train2014/ and val2014/; restval lies in val2014/, as there."""
    entries = []
    for split, n in [(split, n) for split, numbers in KARPATHY.items() for n in numbers]:
        part = "train2014" if split == "train" else "val2014"
        name = f"COCO_{part}_{n:012d}.jpg"
        said = [{"tokens": ["a"], "raw": f"caption {i} of {n} ", "imgid": n, "sentid": 10 * n + i} for i in range(5)]
        entry = {"filepath": part, "filename": name, "imgid": n, "cocoid": n, "split": split}
        entries.append(entry | {"sentids": [10 * n + i for i in range(5)], "sentences": said})
        write(root / images / part / name, picture(n))
    write(root / "dataset_coco.json", {"images": entries, "dataset": "coco"})
    for part in ("train2014", "val2014") if instances else ():
        numbers = [n for split, some in KARPATHY.items() if (split == "train") == (part == "train2014") for n in some]
        write(root / f"annotations/instances_{part}.json", minidata._instances(numbers))
    return root
