"""What a data set was read from is known: whatever changes a federation, pictures aside, changes a file or folder that was recorded."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from tests import bad_data, minidata, miniimages
from tests.minidata import write
from tests.test_bad_data import LAYOUTS, _classes

PICTURES = (".jpg", ".jpeg", ".png")
SETS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = LAYOUTS | {
    f"{name}-coop": (lambda root, build=build: build(root, True), _classes(name))
    for name, build in miniimages.BUILDERS.items()
}
Change = Callable[[Path], object]


def _signature(paths: set[Path]) -> dict[Path, tuple[int, int] | None]:
    """Size and time of change of each file and folder."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None for path in paths}


def _drawn(build: Callable[[Path], Any], root: Path) -> Any:
    """What a federation is, but for what its pictures show; what was said where there is none."""
    try:
        federation = build(root)
    except InputError as error:
        return str(error)
    records = [(r.id, r.group, r.prompt, r.text, str(r.picture)[:200]) for r in federation.records.values()]
    return records, [sorted(client.classes) for client in federation.clients]


def _changes(root: Path) -> Iterator[tuple[str, Change]]:
    """Every list edited and removed, every folder renamed and joined by others; of many folders beside each other the first."""
    inside = sorted(path.relative_to(root) for path in root.rglob("*"))
    for path in (p for p in inside if (root / p).is_file() and p.suffix not in PICTURES):
        yield f"edit {path}", lambda r, p=path: write(r / p, (r / p).read_bytes() + b" 0")
        yield f"remove {path}", lambda r, p=path: (r / p).unlink()
    seen: set[Path] = set()
    for path in (p for p in inside if (root / p).is_dir()):
        if path.parent not in seen:
            yield f"rename {path}", lambda r, p=path: (r / p).rename(r / p.parent / "renamed")
            yield f"copy {path}", lambda r, p=path: shutil.copytree(r / p, r / p.parent / "copied")
            yield f"remove {path}", lambda r, p=path: shutil.rmtree(r / p)
            yield f"picture in {path}", lambda r, p=path: write(r / p / "new.jpg", minidata.picture(0))
            yield f"split in {path}", lambda r, p=path: write(r / p / "split_zhou_New.json", {})
            yield f"parquet in {path}", lambda r, p=path: write(r / p / "train.parquet", b"")
        seen.add(path.parent)
    yield "nocaps", lambda r: minidata.nocaps(r / "nocaps", n=3)
    yield "captions", lambda r: write(r / bad_data.CAPTIONS, {})


def _copied(file: str, to: str) -> None:
    """A link to a picture, which no change writes into."""
    (os.link if file.endswith(PICTURES) else shutil.copy2)(file, to)


SLOW = pytest.mark.slow  # every data set in CoOp's layout, which all read by the same code; quick: three of them
QUICK_COOP = ("caltech101-coop", "food101-coop", "dtd-coop")


@pytest.mark.parametrize(
    "layout", [pytest.param(s, marks=SLOW) if s.endswith("-coop") and s not in QUICK_COOP else s for s in SETS]
)
def test_whatever_changes_a_federation_changes_what_was_recorded(layout: str, tmp_path: Path) -> None:
    make, build = SETS[layout]
    make(tmp_path / "kept")
    root, counted = shutil.copytree(tmp_path / "kept", tmp_path / "root", copy_function=_copied), 0
    with user_files.recorded() as files:
        before = _drawn(build, root)
    for name, change in _changes(tmp_path / "kept"):
        assert all(path.exists() for path in files)
        known = _signature(files)
        change(root)
        if _drawn(build, root) != before:
            counted += 1
            assert _signature(files) != known, name
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "kept", root, copy_function=_copied)
    assert counted > 2


def test_pictures_that_could_be_copies_are_recorded(tmp_path: Path) -> None:
    """All have one height and width, so that another content of any could be a copy."""
    make, build = SETS["food101-coop"]
    make(tmp_path)
    with user_files.recorded() as files:
        federation = build(tmp_path)
    assert {record.picture for record in federation.records.values()} <= files
