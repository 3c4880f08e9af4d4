"""Miniature data sets in the real formats: MSCOCO, NoCaps and ScienceQA, as unpacked archives and as parquet files."""

import functools
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = {1: "person", 18: "dog", 44: "bottle"}
TOPICS = ("geography", "biology", "physics")
DOMAINS = ("in-domain", "near-domain", "out-domain")


@functools.cache
def picture(n: int, form: str = "JPEG") -> bytes:
    """An image of 12 x 8 pixels that depends on n."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(n).integers(0, 256, (8, 12, 3), np.uint8)).save(out, form)
    return out.getvalue()


def write(path: Path, content: object) -> Path:
    """Bytes as they are, anything else as JSON; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def _captions(numbers: range, name: str, each: int, *, of: str = "", **more: list[str]) -> dict[str, object]:
    """`of` keeps the captions of one data set apart from those of another one."""
    images = [{"id": n, "file_name": name.format(n), "coco_url": "http://", "license": 1} for n in numbers]
    for key, values in more.items():
        for image, value in zip(images, values, strict=True):
            image[key] = value
    pairs = ((n, i) for n in numbers for i in range(each))
    notes = [{"id": 10 * n + i, "image_id": n, "caption": f"caption {i} of {of}{n}"} for n, i in pairs]
    return {"info": {}, "images": images, "annotations": notes}


def coco_class(n: int) -> str:
    """The largest object in picture n; every seventh picture has none."""
    return "none" if n % 7 == 0 else list(CLASSES.values())[n % 3]


def _instances(numbers: range) -> dict[str, object]:
    """Per picture a small object of another class before and after the large one."""
    kinds, notes = list(CLASSES), []
    for n in numbers:
        if n % 7:
            for shift, area in ((1, 5.5), (0, 70.25), (2, 6.0)):
                box = {"bbox": [0, 0, 1, 1], "segmentation": [[0.0] * 8], "iscrowd": 0}
                notes.append({"image_id": n, "category_id": kinds[(n + shift) % 3], "area": area, **box})
    names = [{"id": kind, "name": name, "supercategory": "thing"} for kind, name in CLASSES.items()]
    return {"images": [{"id": n} for n in numbers], "annotations": notes, "categories": names}


def coco(root: Path, *, train: int = 90, val: int = 20, year: str = "2017", images: str = ".") -> Path:
    """annotations/captions_*.json and instances_*.json, five captions each, with train<year>/ and val<year>/."""
    for split, numbers in (("train", range(1, train + 1)), ("val", range(1000, 1000 + val))):
        if numbers:
            name = "{:012d}.jpg" if year == "2017" else f"COCO_{split}2014_{{:012d}}.jpg"
            write(root / f"annotations/captions_{split}{year}.json", _captions(numbers, name, 5))
            write(root / f"annotations/instances_{split}{year}.json", _instances(numbers))
            for n in numbers:
                write(root / images / (split + year) / name.format(n), picture(n))
    return root


def nocaps(root: Path, *, n: int = 90, images: str = "images") -> Path:
    """nocaps_val_4500_captions.json with ten captions each and the domains in turn."""
    domains = [DOMAINS[i % 3] for i in range(n)]
    write(root / "nocaps_val_4500_captions.json", _captions(range(n), "{:016x}.jpg", 10, of="novel ", domain=domains))
    for i in range(n):
        write(root / images / f"{i:016x}.jpg", picture(5000 + i))
    return root


def parquet(path: Path, rows: list[dict[str, object]], *, group: int = 16) -> Path:
    """Rows as a parquet file with several row groups; a value of `image` may be bytes, or (bytes, path), or None."""
    for row in rows:
        if isinstance(row.get("image"), tuple):
            row["image"] = dict(zip(("bytes", "path"), row["image"], strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def coco_rows(numbers: range, *, column: str = "answer") -> list[dict[str, object]]:
    """Rows of the usual repositories: the bytes of a picture, its id and a list of captions."""
    return [
        {"image": (picture(n), None), "image_id": n, "category": coco_class(n)}
        | {column: [f"caption {i} of {n}" for i in range(5)]}
        for n in numbers
    ]


def nocaps_rows(n: int = 30) -> list[dict[str, object]]:
    return [
        {"image": (picture(5000 + i), None), "image_id": i, "region": DOMAINS[i % 3]}
        | {"annotations_captions": [f"caption {j} of novel {i}" for j in range(10)]}
        for i in range(n)
    ]


def question(n: int, split: str) -> dict[str, object]:
    """Question n; every third has no picture."""
    return {
        "question": f"What is shown in {n}?", "choices": [f"wrong {n}", f"right {n}", f"other {n}"], "answer": 1,
        "hint": f"Hint {n}." if n % 2 else "", "image": "image.png" if n % 3 else None, "task": "closed choice",
        "grade": "grade4", "subject": "science", "topic": TOPICS[n % 5 % 3], "category": "c", "skill": "s",
        "lecture": "", "solution": "", "split": split,
    }  # fmt: skip


def _splits(train: int, test: int) -> dict[str, range]:
    return {"train": range(train), "val": range(2000, 2006), "test": range(3000, 3000 + test)}


def scienceqa(root: Path, *, train: int = 120, test: int = 30, images: str = "images") -> Path:
    """problems.json and pid_splits.json with <images>/<split>/<pid>/image.png."""
    splits = _splits(train, test)
    problems = {str(n): question(n, split) for split, numbers in splits.items() for n in numbers}
    write(root / "problems.json", problems)
    write(root / "pid_splits.json", {split: [str(n) for n in numbers] for split, numbers in splits.items()})
    for pid, one in problems.items():
        if one["image"]:
            write(root / images / str(one["split"]) / pid / "image.png", picture(int(pid), "PNG"))
    return root


def scienceqa_rows(numbers: range) -> list[dict[str, object]]:
    rows = [question(n, "") for n in numbers]
    for n, row in zip(numbers, rows, strict=True):
        del row["split"]
        row["image"] = (picture(n, "PNG"), "image.png") if row["image"] else None
    return rows


def scienceqa_parquet(root: Path, *, train: int = 120, test: int = 30) -> Path:
    """data/<split>-00000-of-00001-<hash>.parquet."""
    for split, numbers in _splits(train, test).items():
        name = {"val": "validation"}.get(split, split)
        parquet(root / f"data/{name}-00000-of-00001-0a1b.parquet", scienceqa_rows(numbers))
    return root
