"""Data enter keys by content: what is drawn from local files, wherever they lie, read once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.command.cli import read_command
from fedaudit.machinery import user_files
from fedaudit.pipeline import data
from tests import minidata, miniimages, minilayouts

FEW = "--records 3 --reference 3 --test 3 --clients 3 --per-round 2"
IMAGES = "--method promptfl --task images --clients 2"
TASKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "coco": (f"--task coco --novel 4 {FEW}", lambda root: (minidata.coco(root), minidata.nocaps(root / "nocaps"))),
    "scienceqa": (f"--task scienceqa {FEW}", minidata.scienceqa),
    "parquet": (f"--task scienceqa {FEW}", minidata.scienceqa_parquet),
    "eurosat": (f"{IMAGES} --dataset eurosat", lambda root: miniimages.eurosat(root, False)),
    "caltech101": (f"{IMAGES} --dataset caltech101", lambda root: miniimages.caltech101(root, False)),
    "oxford_pets": (f"{IMAGES} --dataset oxford_pets", lambda root: miniimages.oxford_pets(root, True)),
    "folder": ("--method promptfl --task folder --clients 2", minilayouts.train_and_test),
    "saved": ("--method promptfl --task folder --clients 2", minilayouts.saved_to_disk),
    "pairs": ("--task pairs --records 3 --reference 3 --test 3 --clients 2 --per-round 2", minilayouts.one_list),
    "cifar10": (f"{IMAGES} --dataset cifar10", lambda root: miniimages.cifar10(root, False)),
}


def aged(root: Path) -> None:
    """Make everything below `root` old enough to be known by its time."""
    then = time.time() - 3600
    for path in (root, *root.rglob("*")):
        os.utime(path, (then, then))


def built(name: str, root: Path) -> tuple[str, Path]:
    """Words and data root of a miniature data set that is not quite new."""
    words, build = TASKS[name]
    build(root)
    aged(root)
    return words, root


def digest(words: str, root: Path, out: Path) -> str:
    """What a fresh process finds; it saves its index."""
    user_files._digests.clear()
    plan = read_command([*words.split(), f"--data-root={root}", f"--out={out}"]).plan
    found = plan.data.digest
    assert found is not None
    plan.data.save()
    return found


@pytest.mark.parametrize("name", TASKS)
def test_data_are_known_by_content_and_read_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, root = built(name, tmp_path / "data")
    first = digest(words, root, tmp_path / "out")
    elsewhere = shutil.copytree(root, tmp_path / "moved" / "there")
    assert digest(words, elsewhere, tmp_path / "out") == first
    assert digest(words, root, tmp_path / "other") == first

    def guarded(reader: Callable[[Path], object]) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            assert not path.is_relative_to(root), f"{path} was read"
            return reader(path)

        return read

    with monkeypatch.context() as patch:  # a second command reads nothing
        for reader in ("_regular", "sha256"):
            patch.setattr(user_files, reader, guarded(getattr(user_files, reader)))
        patch.setattr(data, "_content", lambda _: pytest.fail("the data were dealt again"))
        assert digest(words, root, tmp_path / "out") == first
    for n, path in enumerate(sorted(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))):
        path.write_bytes(minidata.picture(10_000 + n))
    in_pictures = name not in ("cifar10", "parquet", "saved")
    assert (digest(words, root, tmp_path / "out") != first) == in_pictures


def longer_pictures(root: Path) -> None:
    """With their times kept: the size tells."""
    for path in root.rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"\0")
    aged(root)


def other_captions(root: Path) -> None:
    file = root / "annotations/captions_train2017.json"
    file.write_text(file.read_text().replace("caption", "title").replace('"title"', '"caption"'))


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "longer pictures": ("eurosat", longer_pictures),
    "another name of a class folder": ("eurosat", lambda root: (root / "eurosat/2750/Forest").rename(root / "eurosat/2750/Quarry")),
    "a picture more": (
        "caltech101",
        lambda root: minidata.write(next(root.rglob("airplanes")) / "image_9999.jpg", minidata.picture(77)),
    ),
    "other captions": ("coco", other_captions),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_data_is_seen(what: str, tmp_path: Path) -> None:
    name, change = CHANGES[what]
    words, root = built(name, tmp_path / "data")
    first = digest(words, root, tmp_path / "out")
    change(root)
    assert digest(words, root, tmp_path / "out") != first


def test_what_changed_just_now_is_read_again_and_the_place_of_the_data_is_in_no_key(tmp_path: Path) -> None:
    """Within a tick of the clock a file can change twice without showing it."""
    words, build = TASKS["eurosat"]
    keys = set()
    for name in ("a", "b"):
        build(tmp_path / name)
        digest(words, tmp_path / name, tmp_path / "out")
        plan = read_command([*words.split(), f"--data-root={tmp_path / name}", f"--out={tmp_path / 'out'}"]).plan
        assert str(tmp_path) not in str(plan.cells[0].setting)
        keys.add(plan.report_folder.name)
    assert len(keys) == 1
    assert not list((tmp_path / "out").glob("cache/data-*"))


def test_a_damaged_index_is_not_believed(tmp_path: Path) -> None:
    words, root = built("eurosat", tmp_path / "data")
    first = digest(words, root, tmp_path / "out")
    (index,) = (tmp_path / "out").glob("cache/data-*.json")
    index.write_text(index.read_text().replace(first, "0" * len(first)))
    assert digest(words, root, tmp_path / "out") == first
