"""Copies: found by their pixels however they are stored, counted, named, and merged before records are dealt."""

import io
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedaudit.machinery.errors import InputError
from fedaudit.tasks import coco as coco_task
from fedaudit.tasks import duplicates
from fedaudit.tasks import images as images_task
from fedaudit.tasks.base import Federation
from fedaudit.tasks.classification import Labelled, federate
from fedaudit.tasks.digits import Params
from tests import minidata
from tests.minidata import picture, write

CLASSES = ("Forest", "River")
EACH = 12  # training pictures of a class
KINDS = [{}, {"shots": 6}, {"partition": "dirichlet", "dirichlet": 1.0}, {"partition": "dominant", "shots": 8}]


class Folder:
    """A data set in CoOp's layout: 12 training and 3 test pictures of each of two classes, all different."""

    def __init__(self, root: Path) -> None:
        self.root, self.images = root, root / "eurosat/2750"
        self.lists: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
        for label, name in enumerate(CLASSES):
            for n in range(EACH + 3):
                self.add("train" if n < EACH else "test", f"{name}/{n}.png", name, picture(100 * label + n, "PNG"))

    def add(self, split: str, file: str, name: str, content: bytes | None = None) -> None:
        """List a file, which is written if there is content."""
        if content is not None:
            write(self.images / file, content)
        self.lists[split].append([file, CLASSES.index(name), name])

    def federation(self, **changes: object) -> Federation:
        write(self.root / "eurosat/split_zhou_EuroSAT.json", self.lists)
        params = images_task.Params(dataset="eurosat", data_root=str(self.root), **changes)  # type: ignore[arg-type]
        return images_task.images(params, clients=2, seed=0)


def pixels(path: Path, form: str, **options: object) -> bytes:
    """The picture of a file in another format."""
    out = io.BytesIO()
    Image.open(path).save(out, form, **options)
    return out.getvalue()


def planted(folder: Folder, kind: str) -> None:
    first = folder.images / "Forest/0.png"
    split, file, content = {
        "listed twice": ("train", "Forest/0.png", None),
        "train and test": ("test", "Forest/0.png", None),
        "two classes": ("train", "River/else.png", first.read_bytes()),
        "two names": ("train", "Forest/else.png", first.read_bytes()),
        "two formats": ("train", "Forest/else.bmp", pixels(first, "BMP")),
    }[kind]
    folder.add(split, file, file.partition("/")[0], content)


def left_out(training: int, across: int, copy: str) -> str:
    counts = f"twice in training: {training}, in training and test: {across}, twice in test: 0"
    return f"pictures left out as their pixels are those of another one: 1 ({counts}), Forest/0.png = {copy}."


TORN = "pictures left out as each stands under two classes, and no class is right for it: 2, Forest/0.png = River/else.png."
PLANTINGS = {  # the sentence, and how many training records are left
    "listed twice": (left_out(1, 0, "Forest/0.png"), 24),
    "train and test": (left_out(0, 1, "Forest/0.png"), 24),
    "two classes": (TORN, 23),
    "two names": (left_out(1, 0, "Forest/else.png"), 24),
    "two formats": (left_out(1, 0, "Forest/else.bmp"), 24),
}


def roles(federation: Federation) -> dict[bytes, set[str]]:
    """The roles of each content, slowly: decoded pixels and text."""
    found: dict[bytes, set[str]] = {}
    parts = [("test", federation.test), ("novel", federation.novel), ("novel test", federation.novel_test)]
    for client in federation.clients:
        sides = client.member.tolist()
        parts += [(("held out", "member")[side], [r]) for r, side in zip(client.records, sides, strict=True)]
        parts += [("reference", client.reference), ("member", client.background)]
    for role, records in parts:
        for r in records:
            found.setdefault(f"{r.image.shape} {r.prompt} {r.text}".encode() + r.image.tobytes(), set()).add(role)
    return found


@pytest.mark.parametrize("kind", PLANTINGS)
def test_a_planted_copy_is_found_counted_and_named(tmp_path, kind):
    folder = Folder(tmp_path)
    assert folder.federation().remarks == ()
    planted(folder, kind)
    federation = folder.federation()
    sentence, records = PLANTINGS[kind]
    assert federation.remarks == (sentence,)
    assert sum(len(c.records) + len(c.reference) for c in federation.clients) == records
    assert len(federation.test) == 6
    assert all(len(one) == 1 for one in roles(federation).values())


def test_without_copies_the_lists_are_not_touched(tmp_path):
    """The same records, coins and order with a picture that is a copy appended as without it."""
    one, other = Folder(tmp_path / "one"), Folder(tmp_path / "other")
    planted(other, "two names")
    for kind in KINDS:
        federations = [folder.federation(**kind) for folder in (one, other)]
        dealt = [[pair for client in found.clients for pair in client.labelled_candidates] for found in federations]
        first, second = ([(r.id, r.image.tobytes(), used) for r, used in pairs] for pairs in dealt)
        assert first == second, kind


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_content_has_two_roles(kind, data):
    """Pixels from few values, so that most are copies: within and across the lists, under one class or two."""
    classes = 4
    own = data.draw(st.lists(st.integers(0, 80), min_size=60, max_size=90))
    tests = data.draw(st.lists(st.integers(0, 80), min_size=8, max_size=30))
    torn = data.draw(st.integers(0, 3))
    labels = np.array([v % classes for v in own])
    labels[:torn] = (labels[:torn] + 1) % classes
    train, test = (np.array(v, np.uint8).reshape(-1, 1, 1, 1).repeat(3, -1) for v in (own, tests))
    test_labels = np.array([v % classes for v in tests])
    try:
        data_set = Labelled("toy", tuple("abcd"), train, labels, test, test_labels)
        federation = federate([data_set], params=Params(**kind), clients=2, seed=0)
    except InputError:
        return  # too little is left
    assert {len(one) for one in roles(federation).values()} == {1}
    said = " ".join(federation.remarks)
    under = {v: {label for label, w in zip(labels.tolist(), own, strict=True) if w == v} for v in own}
    under |= {v: under.get(v, set()) | {v % classes} for v in tests}
    torn_pictures = sum(len(under[v]) > 1 for v in (*own, *tests))
    merged = len(own) + len(tests) - torn_pictures - sum(len(some) == 1 for some in under.values())
    for n, words in ((merged, "those of another one"), (torn_pictures, "no class is right for it")):
        assert (f"{words}: {n}" in said) == bool(n)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 4), min_size=1, max_size=3)), min_size=1, max_size=9)
)
@settings(max_examples=30, deadline=None)
def test_records_with_texts_are_copies_if_pixels_and_a_text_are_equal(records):
    """Against a loop over pairs."""
    pictures = [np.full((2, 2, 3), value, np.uint8) for value, _ in records]
    texts = [some for _, some in records]
    kept: list[int] = []
    for i, (value, some) in enumerate(records):
        if not any(records[j][0] == value and {*records[j][1]} & {*some} for j in kept):
            kept.append(i)
    copies = duplicates.later(texts, pictures)
    assert [i for i in range(len(records)) if i not in copies] == kept
    for i, first in copies.items():
        assert first in kept
        assert records[first][0] == records[i][0]
        assert {*texts[first]} & {*texts[i]}


def test_pixels_are_equal_across_formats_and_modes_and_not_across_shapes(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (6, 4), np.uint8)
    same = [np.repeat(grey[..., None], 3, -1)]
    for n, form in enumerate(("PNG", "BMP", "TIFF", "GIF")):
        same.append(tmp_path / f"{n}.{form.lower()}")
        Image.fromarray(grey).save(same[-1], form)
    same.append(same[1].read_bytes())
    same.append(pixels(same[1], "PNG", compress_level=0))
    turned = grey.reshape(4, 6)[..., None].repeat(3, -1)
    broken, again = (write(tmp_path / name, same[-1][: len(same[-1]) // 2]) for name in ("broken.png", "again.png"))
    found = duplicates.identities([*same, turned, broken, again, broken, tmp_path / "none.png"])
    assert len({*found[: len(same)]}) == 1
    assert len({*found[len(same) - 1 :]}) == 5, "a damaged or missing file equals itself only"
    assert found[-2] == found[-4]


def test_only_pictures_of_equal_height_and_width_are_decoded_and_files_once(tmp_path, monkeypatch):
    paths = []
    for n, side in enumerate((3, 4, 5, 5)):
        paths.append(tmp_path / f"{n}.png")
        Image.fromarray(np.full((side, 4, 3), n, np.uint8)).save(paths[-1])
    monkeypatch.setattr(duplicates.user_files, "decode", decode := Mock(wraps=duplicates.user_files.decode))
    monkeypatch.setattr(duplicates, "_known", {})
    monkeypatch.setattr(duplicates.user_files, "GRAIN_NS", 0)
    before = duplicates.identities(paths)
    assert sorted(call.args[0].name for call in decode.mock_calls) == ["2.png", "3.png"]
    kept = json.loads(json.dumps(duplicates.known_pictures()))
    duplicates._known.clear()
    duplicates.remember(kept)
    assert duplicates.identities(paths) == before
    assert decode.call_count == 2
    Image.fromarray(np.full((5, 4, 3), 3, np.uint8)).save(paths[2])
    found = duplicates.identities(paths)
    assert found[2] == found[3], "a file that changed is decoded again"
    assert [call.args[0].name for call in decode.mock_calls[2:]] == ["2.png"]


def test_undecoded_pictures_equal_their_file_until_pixels_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_known", {})
    monkeypatch.setattr(duplicates.user_files, "GRAIN_NS", 0)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        Image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(path)
    with duplicates.undecoded() as passed:
        apart = duplicates.identities([*paths, paths[0]])
    assert apart[0] == apart[2] != apart[1]
    assert passed == [*paths, paths[0]]
    same = duplicates.identities(paths)
    assert same[0] == same[1], "outside of the block they are decoded"
    with duplicates.undecoded() as passed:
        assert duplicates.identities(paths) == same
    assert not passed, "pixels are known: what was on disk under these names is found"
    duplicates._known.clear()
    black, white = np.zeros((3, 4, 3), np.uint8), np.ones((3, 4, 3), np.uint8)
    with duplicates.undecoded() as passed:
        drawn = duplicates.identities([black, white, black.copy()])
    assert drawn[0] == drawn[2] != drawn[1]
    assert not passed, "pixels in memory need no decoding"


def test_a_class_that_has_nothing_but_copies_is_refused_with_the_reason(tmp_path):
    folder = Folder(tmp_path)
    folder.lists["test"] = [row for row in folder.lists["test"] if row[2] == "Forest"]
    folder.add("test", "River/0.png", "River")
    with pytest.raises(InputError, match=r"class 'River' has no test records that are left: pictures left out .*: 1 "):
        folder.federation()


def test_copies_across_two_domains_stay_in_the_first():
    def domain(name: str, first: int) -> Labelled:
        values = np.arange(first, first + 40, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, -1)
        tests = np.arange(200, 204, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, -1) + np.uint8(first // 8)
        return Labelled(name, ("a", "b"), values, np.arange(40) % 2, tests, np.arange(4) % 2)

    federation = federate([domain("one", 0), domain("two", 32)], params=Params(), clients=4, seed=0)
    assert [sum(len(c.records) + len(c.reference) for c in federation.clients[i : i + 2]) for i in (0, 2)] == [40, 32]
    assert federation.remarks[0].startswith(
        "pictures left out as their pixels are those of another one: 8 (twice in training: 8"
    )
    assert ", one training picture 32 = two training picture 0," in federation.remarks[0]


def captions(root: Path, pairs: list[tuple[int, str]], **changes: int) -> Federation:
    """COCO's federation of rows (number of the picture, caption) in a parquet file."""
    named = ((f"{i}.jpg", n, text) for i, (n, text) in enumerate(pairs))
    rows = [{"image": (picture(n), name), "file_name": name, "caption": text} for name, n, text in named]
    minidata.parquet(root / "train.parquet", rows)
    params = {"records": 4, "background": 0, "reference": 4, "test": 4} | changes
    return coco_task.coco(coco_task.Params(data_root=str(root), **params), clients=2, seed=0)


def test_copies_with_texts_are_drawn_once(tmp_path):
    """Of 30 pictures 28 are needed; 8 more are copies, and 3 show a picture with another caption."""
    different = [(n, f"caption {n}") for n in range(30)]
    copies = [(n, f"caption {n}") for n in range(8)]
    other = [(n, f"another of {n}") for n in range(3)]
    federation = captions(tmp_path, different + copies + other, records=5, reference=4, test=4 + 1)
    assert {len(one) for one in roles(federation).values()} == {1}
    assert len(federation.records) == 33
    assert federation.remarks[0].startswith(
        "records drawn and left out, as they have pixels, prompt and text of another one that was drawn: 8, "
    )
    with pytest.raises(InputError, match=r"these settings need 34 records .* the data set has 33"):
        captions(tmp_path, different + copies + other, records=5, reference=4, test=4 + 2)
    assert captions(tmp_path, different).remarks == ()
