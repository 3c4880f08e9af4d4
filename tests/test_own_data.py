"""One's own data: every layout is read to the last record and refused by its sentence; from pictures to a report."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fedaudit.command import cli
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import sentences
from fedaudit.tasks import coco as coco_task
from fedaudit.tasks import folder as folder_task
from fedaudit.tasks import pairs as pairs_task
from fedaudit.tasks.base import IMAGE, Record
from fedaudit.tasks.captions import INSTRUCTION, captions
from fedaudit.tasks.captions import Params as Captions
from tests import minidata, minilayouts
from tests.minidata import picture, write
from tests.unprinted import nothing_drawn

NUMBER = {picture(n, form): n for n in range(720) for form in ("PNG", "JPEG")}
SMALL = {"records": 4, "reference": 5, "test": 6}


def number(shown: object) -> int:
    return NUMBER[shown.read_bytes() if isinstance(shown, Path) else shown]


def loaded(root: Path, seed: int = 0) -> minilayouts.Found:
    found = folder_task.load(str(root), np.random.default_rng(seed))
    parts = {"train": (found.pictures, found.labels), "test": (found.test_pictures, found.test_labels)}
    return {
        split: {number(p): found.classes[label] for p, label in zip(pictures, labels, strict=True)}
        for split, (pictures, labels) in parts.items()
    }


@pytest.mark.parametrize("layout", minilayouts.FOLDERS)
def test_every_picture_has_its_class_and_split(tmp_path: Path, layout: str) -> None:
    expected, rows = minilayouts.FOLDERS[layout](tmp_path), loaded(tmp_path)
    if "all" in expected:
        assert rows["train"] | rows["test"] == expected["all"]
        assert set(Counter(rows["test"].values()).values()) == {3}, "three tenths of eleven"
        assert loaded(tmp_path, seed=1) != rows, "the seed draws the test pictures"
    else:
        assert rows == expected
    federation = folder_task.folder(folder_task.Params(data_root=str(tmp_path)), clients=3, seed=0)
    held = [number(r.picture) for c in federation.clients for r in (*c.records, *c.reference)]
    tested = [number(r.picture) for r in federation.test]
    assert (len(held), len(tested), len({*held, *tested})) == (24, 9, 33)
    everything = {n: name for part in expected.values() for n, name in part.items()}
    assert {number(r.picture): r.text for r in federation.records.values()} == everything


def _beside(file: str, layout: Callable[[Path], object] = minilayouts.flat) -> Callable[[Path], object]:
    return lambda root: (layout(root), write(root / file, picture(0)))


def _only(line: dict[str, object]) -> Callable[[Path], object]:
    return lambda root: write(root / "metadata.jsonl", json.dumps(line).encode())


def _table(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return lambda root: minilayouts.arrow(root, change(minilayouts.labelled_table(range(33))))


def _without_bytes(table: pa.Table) -> pa.Table:
    rows = [row | {"image": {"bytes": None, "path": "/home/x/0.png"}} for row in table.to_pylist()]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.Table.from_pylist(rows, schema=pa.schema([("image", kind), ("label", pa.int64())]))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda root: None, r"--data-root .*: no data set recognised; it should hold a folder of pictures for"),
    "pictures without a class": (lambda root: write(root / "0.png", picture(0)), "should hold a folder of pictures"),
    "splits without classes": (
        lambda root: [write(root / f"{split}/{n}.png", picture(n)) for split in ("train", "test") for n in range(9)],
        "test/, train/ are splits whose pictures have no class; each should hold a folder for each class, or metadata.csv",
    ),
    "one split without classes": (lambda root: write(root / "train/0.png", picture(0)), "train/ are splits whose"),
    "two folders of a split": (
        lambda root: [write(root / f"{one}/oak/0.png", picture(0)) for one in ("train", "my_train")],
        "my_train and .*/train are both of split train",
    ),
    "two lists of a split": (
        lambda root: [write(root / f"{one}.csv", b"file_name,label\n") for one in ("labels", "metadata")],
        "labels.csv and metadata.csv are lists of one split",
    ),
    "a row of too many cells": (
        lambda root: write(root / "labels.csv", b"file_name,label\n0.png,oak,elm\n"),
        "labels.csv, line 2 has more cells than the header, file_name, label",
    ),
    "a quote that does not end": (
        lambda root: write(root / "labels.csv", b'file_name,label\n0.png,"oak\n'),
        "labels.csv, line 1 is no valid CSV",
    ),
    "one class": (lambda root: write(root / "oak/0.png", picture(0)), "there is one class, 'oak'"),
    "a class without pictures": (_beside("elm/notes.txt"), r"elm holds no images \(.jpg, .*\), it holds notes.txt"),
    "a class in a class": (_beside("oak/old/0.png"), "oak/old is a folder inside a class"),
    "a format of phones": (_beside("oak/IMG_1.HEIC"), "IMG_1.HEIC is of a format that is not read; .* of JPEG, PNG"),
    "a folder beside the splits": (
        _beside("extra/0.png", minilayouts.train_and_test),
        "extra lies beside Training/, test/, validation/ and is of no split",
    ),
    "a class of the test": (_beside("test/elm/0.png", minilayouts.train_and_test), "'elm' has no training records"),
    "two classes of one name": (_beside("night heron/0.png"), "'night heron' and 'night_heron' are both 'night heron'"),
    "a line that is no JSON": (lambda root: write(root / "metadata.jsonl", b"{"), "metadata.jsonl, line 1 is no valid"),
    "a line of no label": (_only({"file_name": "0.png", "text": "an oak"}), "line 1: it has no label .* --task pairs"),
    "a line without a picture": (_only({"label": 0}), "line 1: it names no picture; image or file_name or"),
    "a line of no picture": (_only({"file_name": "0.png", "label": 0}), "0.png: no such file, but .*line 1"),
    "a picture elsewhere": (_only({"file_name": "../0.png", "label": 0}), "../0.png lies outside"),
    "no label in a table": (_table(lambda t: t.drop_columns("label")), "has no column label or .*; it has image"),
    "no picture in a table": (_table(lambda t: t.drop_columns("image")), "has no column image or img; it has label"),
    "a label without a name": (
        lambda root: minilayouts.arrow(root, minilayouts.labelled_table(range(33), ("oak", "pine"))),
        "row 2 of .*data-00000-of-00001.arrow: the label 2 is none of its 2 classes",
    ),
    "names of pictures": (_table(_without_bytes), "row 0 of .*: it holds the name of its picture"),
    "a cut table": (
        lambda root: (minilayouts.saved_dataset(root), write(root / "data-00000-of-00001.arrow", b"\xff\xff\xff\xff")),
        "data-00000-of-00001.arrow is no readable Arrow file",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_own_pictures_that_are_refused(tmp_path: Path, what: str) -> None:
    make, sentence = REFUSED[what]
    make(tmp_path)
    with pytest.raises(InputError, match=sentence) as refused:
        folder_task.folder(folder_task.Params(data_root=str(tmp_path)), clients=3, seed=0)
    assert str(refused.value).isprintable()


def saved(image: Image.Image, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
GREY = np.repeat(PIXELS[..., :1], 3, 2)
RGB = Image.fromarray(PIXELS)
FORMS: dict[str, tuple[bytes, np.ndarray]] = {
    "bytes behind a PNG": (saved(RGB) + b"\0" * 999, PIXELS),
    "bytes behind a JPEG": (
        saved(RGB, "JPEG") + b"\0" * 999, np.asarray(Image.open(io.BytesIO(saved(RGB, "JPEG"))).convert("RGB")),
    ),
    "CMYK": (saved(RGB.convert("CMYK"), "TIFF"), PIXELS),
    "palette": (saved(RGB.quantize(256)), np.asarray(RGB.quantize(256).convert("RGB"))),
    "grey": (saved(Image.fromarray(PIXELS[..., 0])), GREY),
    "16 bits": (saved(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 256 + 77)), GREY),
    "16 bits in a TIFF": (saved(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 256 + 200), "TIFF"), GREY),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_pictures_that_are_read(tmp_path: Path, form: str) -> None:
    content, expected = FORMS[form]
    path = write(tmp_path / "a.png", content)
    for shown in (content, path):
        assert np.array_equal(Record("a", "g", shown, IMAGE, "t").image, expected)


def of_items(root: Path, **changes: object) -> dict[str, dict[int, minilayouts.Pair]]:
    """What the items of pairs say, by picture."""
    train, test = pairs_task.load(pairs_task.Params(data_root=str(root), **changes))
    from fedaudit.tasks.tables import Row, contents

    def shown(source: object) -> int:
        return number(contents([source])[source] if isinstance(source, Row) else source)

    return {
        split: {shown(i.source): (i.texts, i.references, i.group, i.client) for i in items}
        for split, items in (("train", train), ("test", test))
    }


@pytest.mark.parametrize("layout", minilayouts.PAIRS)
def test_every_pair_is_read(tmp_path: Path, layout: str) -> None:
    expected = minilayouts.PAIRS[layout](tmp_path)
    assert expected == of_items(tmp_path)
    params = pairs_task.Params(data_root=str(tmp_path), **SMALL)
    federation = pairs_task.pairs(params, clients=2, seed=0)
    named = sorted({client for *_, client in expected["train"].values()})
    for k, client in enumerate(federation.clients):
        for record in (*client.records, *client.reference):
            texts, more, group, of = expected["train"][number(record.picture)]
            assert record.text in texts, "a text is learnt and references are not"
            assert sorted(record.references) == sorted((*texts, *more))
            assert (record.group, record.prompt) == (group, INSTRUCTION)
            assert of == (named[k] if len(named) == 2 else "")
    seen = [number(r.picture) for r in federation.records.values()]
    assert len(seen) == len(set(seen)) == 2 * 13 + 6
    tested = {number(r.picture) for r in federation.test}
    assert tested <= set(expected["test"] or expected["train"])


def test_a_prompt_shows_other_values_of_a_pair(tmp_path: Path) -> None:
    minilayouts.one_list(tmp_path)
    params = pairs_task.Params(data_root=str(tmp_path / "mine.jsonl"), prompt=r"USER: <image>\nAge {age}?", **SMALL)
    for record in pairs_task.pairs(params, clients=2, seed=0).records.values():
        assert record.prompt == f"USER: <image>\nAge {number(record.picture)}?"
    with pytest.raises(ValueError, match=r"prompt must hold <image> once, not 'Describe.'"):
        pairs_task.Params(prompt="Describe.")


def test_pictures_below_another_folder(tmp_path: Path) -> None:
    lines = map(minilayouts._line, range(60))
    minilayouts.write_list(tmp_path / "lists/mine.jsonl", lines, tmp_path / "pictures")
    assert len(of_items(tmp_path / "lists", images_root=str(tmp_path / "pictures"))["train"]) == 60


def _list(change: Callable[[int, dict[str, object]], object]) -> Callable[[Path], object]:
    def build(root: Path) -> None:
        lines = [minilayouts._line(n) for n in range(60)]
        for n, line in enumerate(lines):
            change(n, line)
        minilayouts.write_list(root / "mine.jsonl", lines)

    return build


PLAIN = _list(lambda n, line: None)
WRONG_PAIRS: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "nothing": (lambda root: None, {}, "no pairs recognised; it should hold a list of pairs"),
    "two lists": (
        lambda root: [minilayouts.write_list(root / f"{name}.jsonl", [minilayouts._line(0)]) for name in "ab"], {},
        "a.jsonl and b.jsonl are lists of one split; name one"),
    "a blank text": (_list(lambda n, line: line.update(text=" ")), {}, "line 1: its text is empty or missing"),
    "a text that is none": (_list(lambda n, line: line.update(text=7)), {}, "line 1: text must be a text, or a list"),
    "a client of some": (_list(lambda n, line: n and line.update(client="a")), {}, "line 1: it names no client, and"),
    "more clients": (_list(lambda n, line: line.update(client=n % 3)), {}, r"name 3 \(0, 1, 2\); give --clients 3"),
    "a small client": (
        _list(lambda n, line: line.update(client="a" if n < 9 else "b")), {},
        r"need 13 records of each client \(2 x 4 candidates .*\) and a has 9; lower --records"),
    "a partition of clients": (
        _list(lambda n, line: line.update(client=n % 2)), {"dirichlet": 0.3}, "--dirichlet 0.3: .* name the client"),
    "no groups": (PLAIN, {"dirichlet": 0.3}, r"--dirichlet 0.3: there is nothing to partition by, .*\(group\)"),
    "a prompt that a pair cannot fill": (
        PLAIN, {"prompt": "<image> {question}"}, r"line 1: the prompt shows \{question\}, which must be a text"),
    "no picture": (lambda root: (PLAIN(root), shutil.rmtree(root / "img")), {}, r"img/\d+.png: no such file"),
    "too few": (lambda root: minilayouts.write_list(root / "a.jsonl", [minilayouts._line(0)]), {}, "need 32 records"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_PAIRS)
def test_pairs_that_are_refused(tmp_path: Path, what: str) -> None:
    make, changes, sentence = WRONG_PAIRS[what]
    make(tmp_path)
    with pytest.raises(InputError, match=sentence) as refused:
        pairs_task.pairs(pairs_task.Params(data_root=str(tmp_path), **SMALL | changes), clients=2, seed=0)
    assert all(sentence.isprintable() for sentence in sentences(refused.value))


def _coco(root: Path, clients: int = 3, **changes: object) -> object:
    params = coco_task.Params(data_root=str(root), records=6, reference=8, test=6, **changes)
    return coco_task.coco(params, clients=clients, seed=0)


def _numbers(records: object) -> set[int]:
    return {int(record.id.removeprefix("coco-")) for record in records}


@pytest.mark.parametrize(("images", "instances"), [(".", False), ("images", True)])
def test_karpathys_split(tmp_path: Path, images: str, instances: bool) -> None:
    root, split = minilayouts.karpathy(tmp_path, images=images, instances=instances), minilayouts.KARPATHY
    federation = _coco(root, clients=4)
    held = _numbers(r for c in federation.clients for r in (*c.records, *c.reference))
    assert held <= {*split["train"], *split["restval"]}
    assert held & {*split["restval"]}, "restval is for training"
    assert _numbers(federation.test) <= {*split["test"]}
    for record in federation.records.values():
        n = int(record.id.removeprefix("coco-"))
        assert record.group == (minidata.coco_class(n) if instances else "all")
        assert number(record.picture) == n
        assert sorted(record.references) == [f"caption {i} of {n}" for i in range(5)]


@pytest.mark.parametrize(("gone", "left"), [("val2014", {"train"}), ("train2014", {"restval", "test"})])
def test_karpathys_split_where_one_archive_is_unpacked(tmp_path: Path, gone: str, left: set[str]) -> None:
    shutil.rmtree(minilayouts.karpathy(tmp_path) / gone)
    federation = _coco(tmp_path, clients=1)
    seen = _numbers(federation.records.values())
    assert {split for split, numbers in minilayouts.KARPATHY.items() if seen & {*numbers}} == left


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda images: images[0].update(split="extra"), "image 1: the split must be train, restval, val, test, not"),
        (lambda images: images[0].pop("filename"), "image 1: an object lacks the key 'filename'"),
        (lambda images: images[0].update(sentences=[7]), "image 1: captions must be text"),
        (lambda images: images[0].update(filepath="../x"), "../x lies outside"),
        (lambda images: images.append(images[0]), "would both be the record coco-000000000001"),
        (lambda images: images.clear(), "no picture of .*dataset_coco.json is there to train on"),
    ],
)
def test_a_wrong_split_of_karpathy(tmp_path: Path, change: Callable[[list], object], sentence: str) -> None:
    path = minilayouts.karpathy(tmp_path) / "dataset_coco.json"
    content = json.loads(path.read_text())
    change(content["images"])
    write(path, content)
    with pytest.raises(InputError, match=sentence):
        _coco(tmp_path)


def test_mscoco_without_its_objects(tmp_path: Path) -> None:
    root = minidata.coco(tmp_path)
    for path in root.glob("annotations/instances_*.json"):
        path.unlink()
    assert {r.group for r in _coco(root).records.values()} == {"all"}
    with pytest.raises(InputError, match=r"--dirichlet 0.3: there is nothing to partition by.*\(instances_\*.json"):
        _coco(root, dirichlet=0.3)


@pytest.mark.usefixtures("unsafe_but_quick")
def test_digits_as_pictures_become_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for n in range(200):
        file = tmp_path / "digits" / str(digits.target[n]) / f"{n}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[n] * 255 / 16).astype(np.uint8)).save(file)
    minilayouts.clutter(tmp_path / "digits")
    words = f"--task folder --data-root {tmp_path / 'digits'} --clients 3 --rounds 1 --method promptfl --epsilon none"
    words += f" --attack loss --threads 1 --quiet --out {tmp_path / 'out'}"
    assert cli.main(words.split()) == 0
    assert "report: " in capsys.readouterr().out
    (page,) = tmp_path.glob("out/reports/*/index.html")
    assert "folder" in page.read_text()


def test_pairs_become_a_report(tmp_path: Path, unsafe_but_quick: None) -> None:
    drawn = captions(Captions(records=4, reference=4, novel=4, test=3), clients=2, seed=0)
    lines = []
    for k, client in enumerate(drawn.clients):
        for record in (*client.records, *client.reference, *drawn.test[k : k + 1]):
            write(tmp_path / f"mine/img/{record.id}.png", saved(Image.fromarray(record.picture)))
            lines.append({"image": f"img/{record.id}.png", "text": record.text, "client": f"ward {k}"})
    write(tmp_path / "mine/pairs.jsonl", "\n".join(map(json.dumps, lines)).encode())
    words = f"--task pairs --data-root {tmp_path / 'mine'} --clients 2 --per-round 2 --rounds 1 --records 4"
    more = "--reference 4 --test 2 --method fedavg --attack loss --local-steps 1 --threads 1 --quiet"
    assert cli.main([*words.split(), *more.split(), "--out", str(tmp_path / "out")]) == 0
    assert list(tmp_path.glob("out/reports/*/index.html"))


KINDS = {  # of pictures by the name of a class: how one is made of noise, and saved
    "Äpfel": ((320, 240), "RGB", "JPEG"),
    "golden retriever": ((240, 320), "RGB", "PNG"),
    "eastern_screech-owl": ((40, 40), "RGB", "PNG"),
    "猫": ((3, 1), "RGB", "BMP"),
    "747-400": ((1, 1), "L", "PNG"),
    "o'brien": ((500, 7), "RGBA", "WEBP"),
    "(unnamed)": ((64, 64), "P", "GIF"),
    "x" * 60: ((300, 200), "CMYK", "JPEG"),
    "sixteen bits": ((50, 60), "I;16", "TIFF"),
    "ink": ((90, 33), "1", "PNG"),
}  # fmt: skip


def noise(size: tuple[int, int], mode: str, rng: np.random.Generator) -> Image.Image:
    width, height = size
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 2**16, (height, width), np.uint16))
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a class for each of `KINDS`, and a list of pairs."""
    root, rng, lines = tmp_path_factory.mktemp("kinds"), np.random.default_rng(0), []
    for name, (size, mode, form) in KINDS.items():
        for i in range(8):
            picture_of = saved(noise(size, mode, rng), form)
            write(root / "folder" / name / f"{i} ü.{form.lower()}", picture_of)
            lines.append(
                {"image": f"../folder/{name}/{i} ü.{form.lower()}", "text": f"{name} number {i}", "group": name}
            )
    write(
        root / "lists/pairs.jsonl", "\n".join(json.dumps(one | {"image": one["image"][3:]}) for one in lines).encode()
    )
    return root


@pytest.mark.parametrize("task", ["folder", "pairs"])
def test_ordinary_pictures_reach_the_page_with_the_built_in_models(
    task: str, kinds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--task {task} --attack loss --rounds 1 --threads 1 --quiet --out {tmp_path}"
    if task == "folder":
        words += f" --method promptfl --epsilon none --data-root {kinds / 'folder'}"
    else:
        words += f" --method fedavg --data-root {kinds / 'lists/pairs.jsonl'} --images-root {kinds} --records 4 --reference 6 --test 4 --clients 2 --local-steps 1"
    with nothing_drawn():
        assert cli.main(words.split()) == 0, capsys.readouterr().err
    (report,) = (tmp_path / "reports").glob("*/index.html")
    page = report.read_text()
    assert ("has no token for" in page) == (task == "folder")
    assert (report.parent / "records.html").exists()
    findings = json.loads((report.parent / "findings.json").read_text())
    assert all(
        f["value"] is not None
        for f in findings
        if f["metric"] == "auroc" and f["headline"] and f["nonmembers"] == "held-out"
    )
