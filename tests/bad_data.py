"""Data sets of MSCOCO, NoCaps and ScienceQA that cannot be used: what is done to a miniature, and what the message names."""

from __future__ import annotations

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

DEEP = b"[" * 200_000
HALF = "\ud800"  # half of a surrogate pair
LONG = "x" * 300
HUGE = 10**23
CAPTIONS, INSTANCES = "annotations/captions_train2017.json", "annotations/instances_train2017.json"
NOCAPS, PROBLEMS, SPLITS = "nocaps/nocaps_val_4500_captions.json", "problems.json", "pid_splits.json"
TRAIN = "data/train-00000-of-00001.parquet"
NOT_JSON: dict[str, bytes] = {
    "nothing": b"",
    "cut": b'{"images": [{',
    "deep": DEEP,
    "no UTF-8": b'{"\xff": 1}',
    "a list": b"[]",
    "NaN": b"NaN",
}


@dataclass(frozen=True)
class Bad:
    """One bad data set."""

    name: str
    layout: str  # of test_bad_data.LAYOUTS
    damage: Callable[[Path], object]
    named: str  # what the message must name: a file or a flag

    def __str__(self) -> str:
        return f"{self.layout}: {self.name}"


def edited(root: Path, file: str, change: Callable[[Any], object]) -> None:
    """A JSON file whose content `change` alters in place."""
    content = json.loads((root / file).read_bytes())
    change(content)
    write(root / file, content)


def _each(items: list[dict[str, Any]], **fields: Any) -> None:
    for item in items:
        item.update(fields)


def _fields(key: str, **fields: Any) -> Callable[[Any], None]:
    """Every object in the list `key` of a file gets these values."""
    return lambda content: _each(content[key], **fields)


def _file(layout: str, file: str) -> Iterator[Bad]:
    """What can be wrong with any file of JSON."""
    for name, content in NOT_JSON.items():
        yield Bad(
            f"{Path(file).name} is {name}", layout, functools.partial(_overwritten, file, content), Path(file).name
        )
    for name in ("a FIFO", "a folder", "a link to itself"):
        yield Bad(f"{Path(file).name} is {name}", layout, functools.partial(_replaced, file, name), Path(file).name)


def _overwritten(file: str, content: bytes, root: Path) -> None:
    write(root / file, content)


def _replaced(file: str, how: str, root: Path) -> None:
    replaced([root / file], DAMAGES[how])


def _json(layout: str, file: str, changes: dict[str, Callable[[Any], object]]) -> Iterator[Bad]:
    for name, change in changes.items():
        yield Bad(name, layout, functools.partial(edited, file=file, change=change), Path(file).name)


CAPTION_CHANGES: dict[str, Callable[[Any], object]] = {
    "images are an object": lambda c: c.update(images={}),
    "an image is a number": lambda c: c["images"].append(7),
    "an image is null": lambda c: c["images"].append(None),
    "an id is a list": lambda c: c["images"][0].update(id=[1]),
    "an id is an object": lambda c: c["images"][0].update(id={}),
    "an id is null": lambda c: c["images"][0].update(id=None),
    "an id is a fraction": lambda c: c["images"][0].update(id=1.5),
    "an id is true": lambda c: c["images"][0].update(id=True),
    "an id is huge": lambda c: c["images"][0].update(id=HUGE),
    "an id is half a character": lambda c: c["images"][0].update(id=HALF),
    "an id of two lines": lambda c: c["images"][0].update(id="a\nb"),
    "an id twice": lambda c: c["images"].append(c["images"][0] | {"file_name": "other.jpg"}),
    "two ids with one stem": lambda c: (
        c["images"].extend({"id": f"{x}/b.jpg", "file_name": f"{x}.jpg"} for x in "ac"),
        c["annotations"].extend({"image_id": f"{x}/b.jpg", "caption": "x"} for x in "ac"),
    ),
    "a file name is null": _fields("images", file_name=None),
    "a file name is empty": _fields("images", file_name=""),
    "a file name leads outside": _fields("images", file_name="../../secret.jpg"),
    "a file name is absolute": _fields("images", file_name="/etc/hostname"),
    "a file name has a NUL": _fields("images", file_name="a\0b.jpg"),
    "a file name is half a character": _fields("images", file_name=HALF),
    "a file name is over-long": _fields("images", file_name=f"{LONG}.jpg"),
    "a file name of two lines": _fields("images", file_name="a\nb.jpg"),
    "annotations are text": lambda c: c.update(annotations="none"),
    "an annotation is text": lambda c: c["annotations"].append("a caption"),
    "an image_id is a list": lambda c: c["annotations"][0].update(image_id=[1]),
    "a caption is a number": lambda c: c["annotations"][0].update(caption=7),
    "a caption is a list": lambda c: c["annotations"][0].update(caption=["a", "b"]),
    "a caption is null": lambda c: c["annotations"][0].update(caption=None),
    "captions hold half a character": _fields("annotations", caption=f"a {HALF} b"),
    "captions hold a NUL": _fields("annotations", caption="a \0 b"),
}  # fmt: skip
INSTANCE_CHANGES: dict[str, Callable[[Any], object]] = {
    "categories are an object": lambda c: c.update(categories={}),
    "a category is text": lambda c: c["categories"].append("dog"),
    "a category has no name": lambda c: c["categories"][0].update(name=None),
    "a category is called 7": lambda c: c["categories"][0].update(name=7),
    "a category has a blank name": lambda c: c["categories"][0].update(name=" "),
    "a category is half a character": lambda c: _each(c["categories"], name=HALF),
    "a category's id is a list": lambda c: c["categories"][0].update(id=[1]),
    "a category's id twice": lambda c: c["categories"].append(c["categories"][0] | {"name": "other"}),
    "two categories of one name": lambda c: c["categories"].append({"id": 99, "name": "dog"}),
    "a category that is not there": lambda c: c["annotations"][0].update(category_id=HUGE, area=1e9),
    "a category_id is a list": lambda c: c["annotations"][0].update(category_id=[1]),
    "category_ids of two kinds": lambda c: [note.update(category_id="x") for note in c["annotations"][::2]],
    "an area is text": lambda c: c["annotations"][0].update(area="large"),
    "an area is null": lambda c: c["annotations"][0].update(area=None),
    "an area is infinite": lambda c: c["annotations"][0].update(area=float("inf")),
    "an area is no number": lambda c: c["annotations"][0].update(area=float("nan")),
    "an object's image_id is an object": lambda c: c["annotations"][0].update(image_id={}),
}
NOCAPS_CHANGES: dict[str, Callable[[Any], object]] = {
    "a domain is a list": _fields("images", domain=["out-domain"]),
    "a NoCaps file name leads outside": _fields("images", file_name="../x.jpg"),
    "a NoCaps id is a list": lambda c: c["images"][0].update(id=[]),
    "NoCaps without captions": lambda c: c.update(annotations=[]),
}


def _coco() -> Iterator[Bad]:
    for file in (CAPTIONS, INSTANCES):
        yield from _file("coco", file)
    digits = b'{"images": [{"id": ' + b"9" * 5000 + b'}], "annotations": []}'
    yield Bad(
        "an id of 5000 digits", "coco", functools.partial(_overwritten, CAPTIONS, digits), "captions_train2017.json"
    )
    yield from _json("coco", CAPTIONS, CAPTION_CHANGES)
    yield from _json("coco", INSTANCES, INSTANCE_CHANGES)
    yield from _json("coco", NOCAPS, NOCAPS_CHANGES)
    yield Bad("NoCaps is deep", "coco", functools.partial(_overwritten, NOCAPS, DEEP), "nocaps_val_4500_captions.json")
    for name, how in DAMAGES.items():
        yield Bad(
            f"pictures: {name}",
            "coco",
            lambda root, how=how: replaced((root / "train2017").iterdir(), how),
            "train2017/",
        )
    yield Bad("the pictures' folder is a file", "coco", _no_folders, "train2017")
    yield Bad("the data root is a file", "coco", _no_root, "--data-root")


def _no_folders(root: Path) -> None:
    for split in ("train2017", "val2017"):
        (root / split).rename(root / f"moved-{split}")
        write(root / split, b"")


def _no_root(root: Path) -> None:
    root.rename(root.with_name("moved"))
    write(root, b"")


def _rows(
    change: Callable[[int, dict[str, Any]], dict[str, Any]], root: Path, *, rows: Any = minidata.coco_rows
) -> None:
    minidata.parquet(root / TRAIN, [row | change(n, row) for n, row in enumerate(rows(range(90)))])


ROW_CHANGES: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "captions are numbers": lambda n, row: {"answer": n},
    "captions are lists of numbers": lambda n, row: {"answer": [n]},
    "captions are objects without raw": lambda n, row: {"answer": {"cooked": "a"}},
    "captions are bytes": lambda n, row: {"answer": b"a"},
    "pictures are numbers": lambda n, row: {"image": n},
    "pictures are text": lambda n, row: {"image": "a.jpg"},
    "pictures are lists": lambda n, row: {"image": [1, 2]},
    "pictures are objects without bytes": lambda n, row: {"image": {"path": "x.jpg"}},
    "pictures are objects with numbers": lambda n, row: {"image": {"bytes": n, "path": "x.jpg"}},
    "paths are numbers": lambda n, row: {"image": {"bytes": b"x", "path": n}},
    "pictures are null": lambda n, row: {"image": {"bytes": None, "path": "x"}},
    "image_ids are lists": lambda n, row: {"image_id": [n]},
    "image_ids are fractions": lambda n, row: {"image_id": n + 0.5},
    "image_ids are not numbers": lambda n, row: {"image_id": float("nan")},
    "image_ids are true": lambda n, row: {"image_id": True},
    "image_ids with one stem": lambda n, row: {"image_id": f"{n}/same.jpg"},
    "image_ids of two lines": lambda n, row: {"image_id": f"{n}\n"},
    "classes are numbers with fractions": lambda n, row: {"category": 0.5},
    "classes are nested lists": lambda n, row: {"category": [[1]]},
    "classes are lists of objects": lambda n, row: {"category": [{"name": "a"}]},
    "classes are objects of text": lambda n, row: {"category": {"category": "a", "area": "b"}},
    "areas are text": lambda n, row: {"category": {"category": [1], "area": ["x"]}},
    "areas are not numbers": lambda n, row: {"category": {"category": [1, 2], "area": [float("nan"), 1.0]}},
    "areas are fewer than classes": lambda n, row: {"category": {"category": [1, 2], "area": [1.0]}},
    "domains are numbers": lambda n, row: {"domain": n},
}


def _coco_parquet() -> Iterator[Bad]:
    for name in ("a FIFO", "a folder", "a link to itself", "empty", "text"):
        yield Bad(f"the file is {name}", "coco-parquet", functools.partial(_replaced, TRAIN, name), Path(TRAIN).name)
    for name, change in ROW_CHANGES.items():
        yield Bad(name, "coco-parquet", functools.partial(_rows, change), Path(TRAIN).name)
    for name, content in CONTENTS.items():
        images = {"image": (content, None)}
        yield Bad(
            f"pictures: {name}",
            "coco-parquet",
            functools.partial(_rows, lambda n, row, i=images: dict(i)),
            Path(TRAIN).name,
        )
    yield Bad("captions are no UTF-8", "coco-parquet", _no_text, Path(TRAIN).name)
    yield Bad("a column twice", "coco-parquet", _twice, Path(TRAIN).name)
    yield Bad("the file is cut", "coco-parquet", _cut, Path(TRAIN).name)
    yield Bad("nothing but the columns", "coco-parquet", _no_rows, "--records")
    yield Bad("no captions", "coco-parquet", functools.partial(_rows, lambda n, row: {"answer": [" "]}), "--records")


def _no_text(root: Path) -> None:
    table = pa.Table.from_pylist([row | {"image": row["image"][0]} for row in minidata.coco_rows(range(90))])
    words = pa.Array.from_buffers(pa.string(), 90, pa.array([b"\xff\xfe"] * 90, pa.binary()).buffers())
    pq.write_table(table.set_column(table.schema.get_field_index("answer"), "answer", words), root / TRAIN)


def _twice(root: Path) -> None:
    table = pa.Table.from_pylist([row | {"image": row["image"][0]} for row in minidata.coco_rows(range(90))])
    pq.write_table(table.append_column("image", table["image"]), root / TRAIN)


def _cut(root: Path) -> None:
    os.truncate(root / TRAIN, 3000)


def _no_rows(root: Path) -> None:
    table = pq.read_table(root / TRAIN)
    pq.write_table(table.slice(0, 0), root / TRAIN)


def _asked(**fields: Any) -> Callable[[Any], None]:
    return lambda problems: _each(list(problems.values()), **fields)


def _named(pid: str) -> Callable[[Any], object]:
    return lambda problems: problems.update({pid: problems["1"]})


QUESTION_CHANGES: dict[str, Callable[[Any], object]] = {
    "a question is null": lambda p: p.update({"1": None}),
    "a question is a list": lambda p: p.update({"1": []}),
    "texts of questions are null": _asked(question=None),
    "texts of questions are numbers": _asked(question=7),
    "texts of questions are blank": _asked(question=" "),
    "texts of questions hold half a character": _asked(question=f"What {HALF}?"),
    "texts of questions hold a NUL": _asked(question="What\0?"),
    "texts of questions show two pictures": _asked(question="What is <image>?"),
    "pictures are numbers": _asked(image=7),
    "pictures lie outside": _asked(image="../../secret.png"),
    "pictures lie elsewhere": _asked(image="/etc/hostname"),
    "pictures have over-long names": _asked(image=LONG),
    "pictures are half a character": _asked(image=HALF),
    "a number leads outside": _named("../1"),
    "a number with a NUL": _named("1\0"),
    "a number of two lines": _named("1\n2"),
    "no number": _named(""),
    "a number is half a character": _named(HALF),
    "choices are an object": _asked(choices={"a": 1}),
    "choices are text": _asked(choices="abc"),
    "choices are numbers": _asked(choices=[1, 2]),
    "a choice is null": _asked(choices=["a", "b", None]),
    "answers are text": _asked(answer="1"),
    "answers are true": _asked(answer=True),
    "answers are huge": _asked(answer=HUGE),
    "answers are fractions": _asked(answer=0.5),
    "hints are lists": _asked(hint=["a"]),
    "hints are numbers": _asked(hint=7),
    "topics are lists": _asked(topic=["a"]),
    "topics are half a character": _asked(topic=HALF),
    "splits are numbers": _asked(split=1),
    "splits are null": _asked(split=None),
    "splits are lists": _asked(split=["train"]),
    "a split of no kind": lambda p: p["1"].update(split="../train"),
}
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


def _scienceqa() -> Iterator[Bad]:
    yield from _file("scienceqa", PROBLEMS)
    yield from _json("scienceqa", PROBLEMS, QUESTION_CHANGES)
    for name, change in SPLIT_CHANGES.items():
        yield Bad(name, "scienceqa", functools.partial(_unsaid, change=change), SPLITS)
    for name in ("a FIFO", "cut in its header", "a bomb", "16 bits a pixel"):
        files = lambda root, how=DAMAGES[name]: replaced((root / "images/train").glob("*/*.png"), how)  # noqa: E731
        yield Bad(f"pictures: {name}", "scienceqa", files, "images/train/")


SCIENCE_ROWS: dict[str, dict[str, Any]] = {
    "choices are text": {"choices": "abc"},
    "choices are numbers": {"choices": [1, 2]},
    "answers are text": {"answer": "1"},
    "answers are fractions": {"answer": 1.0},
    "questions are numbers": {"question": 7},
    "hints are numbers": {"hint": 7},
    "topics are lists": {"topic": ["a"]},
}


def _scienceqa_parquet() -> Iterator[Bad]:
    for name, fields in SCIENCE_ROWS.items():
        change = lambda root, fields=fields: minidata.parquet(  # noqa: E731
            next(root.glob("data/train*")), [row | fields for row in minidata.scienceqa_rows(range(120))]
        )
        yield Bad(name, "scienceqa-parquet", change, "train-00000")


BAD = [*_coco(), *_coco_parquet(), *_scienceqa(), *_scienceqa_parquet()]
