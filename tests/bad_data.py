"""Data sets of MSCOCO, NoCaps and ScienceQA that cannot be used: what is done to a miniature, and what the message names."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests import minidata
from tests.bad_pictures import CONTENTS, DAMAGES, replaced
from tests.minidata import write

EACH = 40  # training records of a miniature
DEEP = b"[" * 200_000
HALF = "\ud800"  # half of a surrogate pair
LONG = "x" * 300
HUGE = 10**23
CAPTIONS, INSTANCES = "annotations/captions_train2017.json", "annotations/instances_train2017.json"
NOCAPS, PROBLEMS, SPLITS = "nocaps/nocaps_val_4500_captions.json", "problems.json", "pid_splits.json"
TRAIN = "data/train-00000-of-00001.parquet"
NOT_JSON: dict[str, bytes] = {
    "cut": b'{"images": [{',
    "deep": DEEP,
    "no UTF-8": b'{"\xff": 1}',
    "a list": b"[]",
    "NaN": b"NaN",
    "5000 digits": b"9" * 5000,
}


@dataclass(frozen=True)
class Bad:
    """One bad data set, or folder of a model."""

    name: str
    layout: str  # of test_bad_data.LAYOUTS
    damage: Callable[[Path], object]
    named: str = "--backbone"  # what the message must name: a file or a flag

    def __str__(self) -> str:
        return f"{self.layout}: {self.name}"


class Sly:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def edited(root: Path, file: str, change: Callable[[Any], object]) -> None:
    """A JSON file whose content `change` alters in place."""
    content = json.loads((root / file).read_bytes())
    change(content)
    write(root / file, content)


def in_each(key: str, **fields: Any) -> Callable[[Any], None]:
    """Every object in the list `key` of a file, or of all its objects where that is empty, gets these values."""

    def change(content: Any) -> None:
        for item in content[key] if key else content.values():
            item.update(fields)

    return change


def overwritten(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: write(root / file, content)


def made_to(file: str, how: str) -> Callable[[Path], object]:
    """By its name in `DAMAGES`."""
    return lambda root: replaced([root / file], DAMAGES[how])


def edit(file: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda root: edited(root, file, change)


BROKEN: list[tuple[str, str, tuple[str, ...]]] = [
    ("coco", CAPTIONS, (*NOT_JSON, "a FIFO", "a link to itself")),
    ("coco", INSTANCES, ("cut", "a list")),
    ("coco", NOCAPS, ("deep",)),
    ("coco-parquet", TRAIN, ("a FIFO", "text")),
    ("scienceqa", PROBLEMS, ("deep", "a list")),
]
"""Files that cannot be read, or are nothing of what they should be."""


def _broken() -> Iterator[Bad]:
    for layout, file, names in BROKEN:
        for name in names:
            damage = overwritten(file, NOT_JSON[name]) if name in NOT_JSON else made_to(file, name)
            yield Bad(f"{Path(file).name} is {name}", layout, damage, Path(file).name)


VALUES: list[tuple[str, str, str, str, tuple[object, ...]]] = [
    ("coco", CAPTIONS, "images", "file_name", (None, "../../secret.jpg", "a\0b.jpg", f"{LONG}.jpg")),
    ("coco", CAPTIONS, "annotations", "image_id", ([1],)),
    ("coco", CAPTIONS, "annotations", "caption", (None, f"a {HALF} b", "a \0 b")),
    ("coco", INSTANCES, "categories", "id", ([1], 1)),  # of which each needs one of its own
    ("coco", INSTANCES, "categories", "name", (7, " ", "dog")),
    ("coco", INSTANCES, "annotations", "image_id", ({},)),
    ("coco", INSTANCES, "annotations", "category_id", ([1], HUGE)),
    ("coco", INSTANCES, "annotations", "area", ("large", float("inf"))),
    ("coco", NOCAPS, "images", "id", ([],)),
    ("coco", NOCAPS, "images", "domain", (["out-domain"],)),
    ("coco", NOCAPS, "images", "file_name", ("../x.jpg",)),
    ("scienceqa", PROBLEMS, "", "question", (7, " ", "What is <image>?")),
    ("scienceqa", PROBLEMS, "", "image", (7, "../../secret.png", "/etc/hostname", LONG, HALF)),
    ("scienceqa", PROBLEMS, "", "choices", ("abc", ["a", "b", None])),
    ("scienceqa", PROBLEMS, "", "answer", (True, 0.5)),
    ("scienceqa", PROBLEMS, "", "hint", (7,)),
    ("scienceqa", PROBLEMS, "", "topic", (HALF,)),
    ("scienceqa", PROBLEMS, "", "split", (None, "../train")),
]
"""What stands in a field of every object of a list: layout, file, list, field, values."""
CHANGES: list[tuple[str, str, dict[str, Callable[[Any], object]]]] = [
    ("coco", CAPTIONS, {
        **{f"an id is {i!a}": lambda c, i=i: c["images"][0].update(id=i) for i in (True, 1.5, HUGE, "a\nb")},
        "images are an object": lambda c: c.update(images={}),
        "an image is null": lambda c: c["images"].append(None),
        "an id twice": lambda c: c["images"].append(c["images"][0] | {"file_name": "other.jpg"}),
        "two ids with one stem": lambda c: (
            c["images"].extend({"id": f"{x}/b.jpg", "file_name": f"{x}.jpg"} for x in "ac"),
            c["annotations"].extend({"image_id": f"{x}/b.jpg", "caption": "x"} for x in "ac"),
        ),
        "annotations are text": lambda c: c.update(annotations="none"),
        "an annotation is text": lambda c: c["annotations"].append("a caption"),
    }),
    ("coco", INSTANCES, {
        "categories are an object": lambda c: c.update(categories={}),
        "a category is text": lambda c: c["categories"].append("dog"),
    }),
    ("coco", NOCAPS, {"NoCaps without captions": lambda c: c.update(annotations=[])}),
    ("scienceqa", PROBLEMS, {
        "a question is null": lambda p: p.update({"1": None}),
        **{f"a question's number is {pid!a}": lambda p, pid=pid: p.update({pid: p["1"]}) for pid in ("../1", "1\0", "a/b")},
    }),
]  # fmt: skip
SPLIT_CHANGES: dict[str, Callable[[Any], object]] = {
    "splits without a test part": lambda s: s.pop("test"),
    "a part of the splits is an object": lambda s: s.update(train={}),
    "a part of the splits holds lists": lambda s: s.update(train=[[1]]),
    "a question in two splits": lambda s: s.update(test=s["train"]),
    "a question in no split": lambda s: s.update(train=[]),
}


def _unsaid(root: Path, change: Callable[[Any], object]) -> None:
    edited(root, PROBLEMS, lambda problems: [one.pop("split") for one in problems.values()])
    edited(root, SPLITS, change)


def _json() -> Iterator[Bad]:
    for layout, file, key, field, values in VALUES:
        for value in values:
            change = edit(file, in_each(key, **{field: value}))
            yield Bad(f"{file} {key} {field} {ascii(value)[:30]}", layout, change, Path(file).name)
    for layout, file, changes in CHANGES:
        for name, change in changes.items():
            yield Bad(name, layout, edit(file, change), Path(file).name)
    for name, change in SPLIT_CHANGES.items():
        yield Bad(name, "scienceqa", functools.partial(_unsaid, change=change), SPLITS)


def _pictures() -> Iterator[Bad]:
    for layout, folder, files, names in (
        ("coco", "train2017/", "*.jpg", ("missing", "empty", "a bomb")),
        ("scienceqa", "images/train/", "*/*.png", ("a FIFO",)),
    ):
        for name in names:
            change = lambda root, how=DAMAGES[name], glob=folder + files: replaced(root.glob(glob), how)  # noqa: E731
            yield Bad(f"pictures: {name}", layout, change, folder)
    nowhere = "neither train2017/ nor images/train2017/ is there; unpack"
    yield Bad("the pictures' folder is a file", "coco", _no_folders, nowhere)
    yield Bad("the data root is a file", "coco", _no_root, "--data-root")


def _no_folders(root: Path) -> None:
    for split in ("train2017", "val2017"):
        (root / split).rename(root / f"moved-{split}")
        write(root / split, b"")


def _no_root(root: Path) -> None:
    root.rename(root.with_name("moved"))
    write(root, b"")


ROWS: dict[str, tuple[Callable[[int], object], ...]] = {
    "answer": (lambda n: n, lambda n: [n], lambda n: {"cooked": "a"}),
    "image": (
        lambda n: n, lambda n: {"path": "x.jpg"}, lambda n: {"bytes": b"x", "path": n}, lambda n: {"bytes": None, "path": "x"},
        lambda n: (CONTENTS["text"], None),
    ),
    "image_id": (lambda n: [n], lambda n: f"{n}/same.jpg"),
    "category": (
        lambda n: 0.5, lambda n: [[1]], lambda n: {"category": "a", "area": "b"},
        lambda n: {"category": [1, 2], "area": [float("nan"), 1.0]}, lambda n: {"category": [1, 2], "area": [1.0]},
    ),
    "domain": (lambda n: n,),
}  # fmt: skip
"""What stands in a column of a parquet file, by the row's number."""


def _coco_parquet() -> Iterator[Bad]:
    cases = [(f"{column} {made(1)!s:.60}", _rows(column, made)) for column, makers in ROWS.items() for made in makers]
    for name, damage in (*cases, ("captions are no UTF-8", _no_text), ("a column twice", _twice)):
        yield Bad(name, "coco-parquet", damage, Path(TRAIN).name)
    yield Bad("no captions", "coco-parquet", _rows("answer", lambda n: [" "]), "--records")


def _rows(column: str, made: Callable[[int], object]) -> Callable[[Path], object]:
    rows = minidata.coco_rows(range(EACH))
    return lambda root: minidata.parquet(root / TRAIN, [row | {column: made(n)} for n, row in enumerate(rows)])


def _table() -> pa.Table:
    return pa.Table.from_pylist([row | {"image": row["image"][0]} for row in minidata.coco_rows(range(EACH))])


def _no_text(root: Path) -> None:
    words = pa.Array.from_buffers(pa.string(), EACH, pa.array([b"\xff\xfe"] * EACH, pa.binary()).buffers())
    pq.write_table(_table().set_column(_table().schema.get_field_index("answer"), "answer", words), root / TRAIN)


def _twice(root: Path) -> None:
    pq.write_table(_table().append_column("image", _table()["image"]), root / TRAIN)


def _scienceqa_parquet() -> Iterator[Bad]:
    for field, value in (("choices", "abc"), ("question", 7)):
        change = lambda root, more={field: value}: minidata.parquet(  # noqa: E731
            next(root.glob("data/train*")), [row | more for row in minidata.scienceqa_rows(range(EACH))]
        )
        yield Bad(f"{field} {value}", "scienceqa-parquet", change, "train-00000")


BAD = [*_broken(), *_json(), *_pictures(), *_coco_parquet(), *_scienceqa_parquet()]
