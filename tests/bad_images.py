"""Classification data sets that cannot be used: what is done to a miniature, and what the message names."""

import functools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from tests.bad_data import DEEP, HALF, LONG, Bad, edit, made_to, overwritten
from tests.bad_pictures import DAMAGES, replaced
from tests.minidata import picture, write

SPLIT = "food-101/split_zhou_Food101.json"
ROW_VALUES: list[tuple[int, tuple[object, ...]]] = [  # of picture, label and name
    (0, (None, "../../secret.jpg", "/etc/hostname", "a\0.jpg", LONG)),
    (1, ([1],)),
    (2, (["x"], " ", HALF, "a\nb")),
]
SPLIT_CHANGES: dict[str, Callable[[Any], object]] = {
    "a row is null": lambda c: c["train"].append(None),
    "names alike in a prompt": lambda c: [
        rows.append([*rows[0][:1], 7, rows[0][2].replace("_", " ")]) for rows in c.values()
    ],
    "one class only": lambda c: c.update({split: [row for row in rows if row[1] == 0] for split, rows in c.items()}),
}


def _in_rows(place: int, value: object) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for row in (row for split in content.values() for row in split if row[1] == 0):
            row[place] = value

    return change


def _split_file() -> Iterator[Bad]:
    values = {f"{place} {ascii(v)[:30]}": _in_rows(place, v) for place, values in ROW_VALUES for v in values}
    for name, change in (values | SPLIT_CHANGES).items():
        yield Bad(name, "food101-coop", edit(SPLIT, change), SPLIT if name in values else "food-101")


def _folders() -> Iterator[Bad]:
    forest = "eurosat/2750/Forest"
    for name in ("a bomb", "a FIFO"):
        how = DAMAGES[name]
        yield Bad(f"pictures: {name}", "eurosat", lambda r, how=how: replaced((r / forest).iterdir(), how), forest)
    yield Bad("a class with other files only", "eurosat", lambda r: write(r / "eurosat/2750/Text/a.txt", b"x"), "Text")
    yield Bad("one picture in a class", "eurosat", lambda r: write(r / "eurosat/2750/Few/a.jpg", picture(0)), "Few")
    for name in ("Sea_or_Lake", "a\nb", "\udcff", "__"):  # the name of another, and three of no name
        yield Bad(f"a class called {name!a}", "eurosat", functools.partial(_class, name=name), "eurosat")
    yield Bad("a class that links to itself", "eurosat", lambda r: (r / "eurosat/2750/Loop").symlink_to("Loop"), "Loop")
    yield Bad("no class folders", "eurosat", _flat, "2750")


def _class(root: Path, name: str) -> None:
    for n in range(8):
        write(root / "eurosat/2750" / name / f"{n}.jpg", picture(n))


def _flat(root: Path) -> None:
    os.rename(root / "eurosat/2750", root / "moved")
    write(root / "eurosat/2750", b"")


LISTS: list[tuple[str, str, bytes, str]] = [  # data set, file, content, what is named where it is not the file
    ("oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"../x_1 1 1 1\n", ""),
    ("oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"a\0b_1 1 1 1\n", ""),
    ("oxford_pets", "oxford-iiit-pet/annotations/test.txt", b"x 1 1 1\n", "images/x.jpg"),
    ("oxford_pets", "oxford-iiit-pet/annotations/trainval.txt", b"", "oxford_pets"),
    ("dtd", "dtd/dtd/labels/train1.txt", b"\xff\xfe\n", ""),
    ("dtd", "dtd/dtd/labels/train1.txt", b"../secret/x.jpg\n", ""),
    ("fgvc_aircraft", "fgvc-aircraft-2013b/data/images_variant_train.txt", b"../../x Boeing\n", ""),
    ("ucf101", "ucf101/ucfTrainTestlist/trainlist01.txt", b"YoYo/../../x.avi 1\n", ""),
    ("food101", "food-101/meta/train.json", b'{"waffles": [7]}', ""),
    ("food101", "food-101/meta/train.json", b'{"waffles": ["../../x"]}', ""),
    ("food101", "food-101/meta/train.json", DEEP, ""),
    ("food101", "food-101/meta/train.json", b'{"\\ud800": ["waffles/1005"]}', "food-101"),
]
FILES = {
    "oxford_pets": "oxford-iiit-pet/annotations/trainval.txt",
    "oxford_flowers": "flowers-102/setid.mat",
    "cifar10": "cifar-10-batches-py/data_batch_1",
    "food101-coop": SPLIT,
}


def _lists() -> Iterator[Bad]:
    for data_set, file, content, named in LISTS:
        yield Bad(f"{content[:40]!r}", data_set, overwritten(file, content), named or file)
    for data_set, file in FILES.items():
        yield Bad("a FIFO", data_set, made_to(file, "a FIFO"), file)


def _matrices() -> Iterator[Bad]:
    labels = "flowers-102/imagelabels.mat"
    for value in ("rose", [[float("nan")] * 33], [[1.5] * 33], [[1j] * 33], [[1e23] * 33]):
        damage = lambda r, value=value: savemat(r / labels, {"labels": value})  # noqa: E731
        yield Bad(f"labels are {value!s:.8}", "oxford_flowers", damage, labels)


def _batches() -> Iterator[Bad]:
    data, batch, meta = np.zeros((3, 3072), np.uint8), FILES["cifar10"], "cifar-10-batches-py/batches.meta"
    batches: dict[str, Any] = {
        "negative labels": {"data": data, "labels": [-1, 0, 1]},
        "labels with fractions": {"data": data, "labels": [0.5, 0, 1]},
        "fewer labels": {"data": data, "labels": [0]},
        "pictures of another size": {"data": data[:, :99], "labels": [0, 1, 2]},
        "pixels above 255": {"data": np.full((3, 3072), 300), "labels": [0, 1, 2]},
        "a list": [data, [0, 1, 2]],
    }
    for name, content in batches.items():
        yield Bad(name, "cifar10", overwritten(batch, pickle.dumps(content, 2)), batch)
    for names in ("abc", [1, 2, 3], ["a", "b", "a"]):
        content = pickle.dumps({"label_names": names})
        yield Bad(f"names are {names}", "cifar10", overwritten(meta, content), "cifar-10-batches-py")


BAD = [*_split_file(), *_folders(), *_lists(), *_matrices(), *_batches()]
