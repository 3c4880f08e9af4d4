"""Classification data sets that cannot be used: what is done to a miniature, and what the message names."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from tests.bad_data import DEEP, HALF, LONG, Bad, _overwritten, edited
from tests.bad_pictures import DAMAGES, replaced
from tests.minidata import picture, write

SPLIT = "food-101/split_zhou_Food101.json"


def _rows(**change: Any) -> Callable[[Any], None]:
    """Every row of a split file with another picture, label or name."""
    places = {"picture": 0, "label": 1, "name": 2}

    def apply(content: Any) -> None:
        for split in content.values():
            for row in split:
                for what, value in change.items():
                    row[places[what]] = value

    return apply


SPLIT_CHANGES: dict[str, Callable[[Any], object]] = {
    "a row is null": lambda c: c["train"].append(None),
    "a row is a number": lambda c: c["train"].append(7),
    "labels are lists": _rows(label=[1]),
    "labels are objects": _rows(label={}),
    "labels are text": lambda c: [row.__setitem__(1, "x") for row in c["train"][:3]],
    "names are lists": _rows(name=["x"]),
    "names are null": _rows(name=None, label=0),
    "names are numbers": _rows(name=7, label=0),
    "names are blank": _rows(name=" ", label=0),
    "names hold half a character": _rows(name=HALF, label=0),
    "names hold a NUL": _rows(name="a\0b", label=0),
    "names of two lines": _rows(name="a\nb", label=0),
    "names that are one name in a prompt": lambda c: [
        rows.append([rows[0][0], 7, rows[0][2].replace("_", " ")]) for rows in c.values()
    ],
    "one class only": lambda c: c.update({split: [row for row in rows if row[1] == 0] for split, rows in c.items()}),
    "pictures are null": _rows(picture=None),
    "pictures are numbers": _rows(picture=7),
    "pictures lie outside": _rows(picture="../../secret.jpg"),
    "pictures lie elsewhere": _rows(picture="/etc/hostname"),
    "pictures with a NUL": _rows(picture="a\0.jpg"),
    "pictures with half a character": _rows(picture=HALF),
    "pictures with over-long names": _rows(picture=LONG),
    "pictures without a name": _rows(picture=""),
}


def _split_file() -> Iterator[Bad]:
    for name, change in SPLIT_CHANGES.items():
        yield Bad(name, "food101-coop", functools.partial(edited, file=SPLIT, change=change), "food-101")
    yield Bad("the split file is deep", "food101-coop", functools.partial(_overwritten, SPLIT, DEEP), "split_zhou")
    for name in ("a FIFO", "a folder", "a link to itself"):
        how = DAMAGES[name]
        yield Bad(
            f"the split file is {name}", "food101-coop", lambda r, how=how: replaced([r / SPLIT], how), "split_zhou"
        )


def _folders() -> Iterator[Bad]:
    forest = "eurosat/2750/Forest"
    for name, how in DAMAGES.items():
        if name != "missing":
            yield Bad(f"pictures: {name}", "eurosat", lambda r, how=how: replaced((r / forest).iterdir(), how), forest)
    yield Bad("a class without pictures", "eurosat", lambda r: (r / "eurosat/2750/Empty").mkdir(), "Empty")
    yield Bad("a class with other files only", "eurosat", lambda r: write(r / "eurosat/2750/Text/a.txt", b"x"), "Text")
    yield Bad("one class", "eurosat", _one_class, "eurosat")
    yield Bad("one picture in a class", "eurosat", lambda r: write(r / "eurosat/2750/Few/a.jpg", picture(0)), "Few")
    yield Bad("two classes of one name", "eurosat", _same_name, "eurosat")
    yield Bad("a class of two lines", "eurosat", lambda r: _class(r, "a\nb"), "eurosat")
    yield Bad("a class with no characters", "eurosat", lambda r: _class(r, "\udcff"), "eurosat")
    yield Bad("a class that is a blank", "eurosat", lambda r: _class(r, "__"), "eurosat")
    yield Bad("a class that links to itself", "eurosat", lambda r: (r / "eurosat/2750/Loop").symlink_to("Loop"), "Loop")
    yield Bad("no class folders", "eurosat", _flat, "2750")


def _class(root: Path, name: str) -> None:
    for n in range(8):
        write(root / "eurosat/2750" / name / f"{n}.jpg", picture(n))


def _one_class(root: Path) -> None:
    for folder in ("AnnualCrop", "SeaLake"):
        os.rename(root / "eurosat/2750" / folder, root / folder)


def _same_name(root: Path) -> None:
    _class(root, "Sea_or_Lake")


def _flat(root: Path) -> None:
    os.rename(root / "eurosat/2750", root / "moved")
    write(root / "eurosat/2750", b"")


LISTS: list[tuple[str, str, str, bytes]] = [
    ("a picture outside", "oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"../x_1 1 1 1\n"),
    ("a picture elsewhere", "oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"/etc/x_1 1 1 1\n"),
    ("a NUL", "oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"a\0b_1 1 1 1\n"),
    ("a pet without a breed", "oxford_pets", "oxford-iiit-pet/annotations/test.txt", b"x 1 1 1\n"),
    ("an empty list", "oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b""),
    ("no UTF-8", "dtd", "dtd/dtd/labels/train1.txt", b"\xff\xfe\n"),
    ("a texture outside", "dtd", "dtd/dtd/labels/train1.txt", b"../secret/x.jpg\n"),
    ("an over-long texture", "dtd", "dtd/dtd/labels/train1.txt", b"banded/" + b"x" * 300 + b"\n"),
    (
        "an aircraft outside",
        "fgvc_aircraft",
        "fgvc-aircraft-2013b/data/images_variant_train.txt",
        b"../../x Boeing\n",
    ),
    ("an action without a name", "ucf101", "ucf101/ucfTrainTestlist/trainlist01.txt", b"yoyo/v_1.avi 1\n"),
    ("a video outside", "ucf101", "ucf101/ucfTrainTestlist/trainlist01.txt", b"YoYo/../../x.avi 1\n"),
    ("a food is a number", "food101", "food-101/meta/train.json", b'{"waffles": [7]}'),
    ("a food lies outside", "food101", "food-101/meta/train.json", b'{"waffles": ["../../x"]}'),
    ("a food lies elsewhere", "food101", "food-101/meta/train.json", b'{"waffles": ["/etc/hostname"]}'),
    ("foods are deep", "food101", "food-101/meta/train.json", DEEP),
    ("a food is half a character", "food101", "food-101/meta/train.json", b'{"\\ud800": ["waffles/1005"]}'),
    ("no foods", "food101", "food-101/meta/train.json", b"{}"),
]


NAMED = {
    "an empty list": "oxford_pets",
    "no foods": "food101",
    "a pet without a breed": "images/x.jpg",
    "a food is half a character": "food-101",
}


def _lists() -> Iterator[Bad]:
    for name, data_set, file, content in LISTS:
        yield Bad(name, data_set, functools.partial(_overwritten, file, content), NAMED.get(name, file))
    for file, data_set in {
        "oxford-iiit-pet/annotations/trainval.txt": "oxford_pets", "flowers-102/setid.mat": "oxford_flowers",
        "cifar-10-batches-py/data_batch_1": "cifar10", "food-101/meta/test.json": "food101",
    }.items():  # fmt: skip
        for name in ("a FIFO", "a folder", "a link to itself", "a link to a device"):
            how = DAMAGES[name]
            yield Bad(f"a list is {name}", data_set, lambda r, f=file, how=how: replaced([r / f], how), file)


def _matrices() -> Iterator[Bad]:
    labels = "flowers-102/imagelabels.mat"
    values: dict[str, Any] = {
        "labels are text": "rose",
        "labels are not numbers": [[float("nan")] * 33],
        "labels are fractions": [[1.5] * 33],
        "labels are objects": {"a": 1},
        "labels are complex": [[1j] * 33],
        "labels are huge": [[1e23] * 33],
    }
    for name, value in values.items():
        yield Bad(name, "oxford_flowers", lambda r, v=value: savemat(r / labels, {"labels": v}), labels)


def _batches() -> Iterator[Bad]:
    data, batch = np.zeros((3, 3072), np.uint8), "cifar-10-batches-py/data_batch_1"
    batches: dict[str, Any] = {
        "negative labels": {"data": data, "labels": [-1, 0, 1]},
        "labels with fractions": {"data": data, "labels": [0.5, 0, 1]},
        "labels are text": {"data": data, "labels": "abc"},
        "labels are true": {"data": data, "labels": [True, False, True]},
        "labels are null": {"data": data, "labels": None},
        "fewer labels": {"data": data, "labels": [0]},
        "pictures of another size": {"data": data[:, :99], "labels": [0, 1, 2]},
        "pixels are fractions": {"data": data + 0.5, "labels": [0, 1, 2]},
        "pixels are text": {"data": "abc", "labels": [0, 1, 2]},
        "pixels above 255": {"data": np.full((3, 3072), 300), "labels": [0, 1, 2]},
        "a list": [data, [0, 1, 2]],
    }
    for name, content in batches.items():
        yield Bad(name, "cifar10", lambda r, c=content: write(r / batch, pickle.dumps(c, 2)), batch)
    raw = {
        "deep": b"(" * 100_000 + b"l" * 100_000 + b".",
        "of Python code": b"cos\nsystem\n(S'true'\ntR.",
        "cut": pickle.dumps(data)[:50],
    }
    for name, content in raw.items():
        yield Bad(f"a batch is {name}", "cifar10", functools.partial(_overwritten, batch, content), batch)
    meta = "cifar-10-batches-py/batches.meta"
    for name, value in {
        "numbers": [1, 2, 3],
        "text": "abc",
        "a number": 3,
        "null": [None] * 3,
        "twice the same": ["a", "b", "a"],
        "half a character": [HALF, "b", "c"],
    }.items():
        yield Bad(
            f"names are {name}",
            "cifar10",
            lambda r, v=value: write(r / meta, pickle.dumps({"label_names": v})),
            "cifar-10-batches-py",
        )


BAD = [*_split_file(), *_folders(), *_lists(), *_matrices(), *_batches()]
