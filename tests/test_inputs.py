"""Inputs that are no regular files, and the record of what was read."""

import hashlib
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.base import Record
from tests.bad_pictures import CONTENTS, saved
from tests.minidata import write


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe", "FIFO.*, not a regular file"),  # which does not block
        (os.devnull, "not a regular file"),
        ("", "not a regular file"),  # the folder
        ("a\0b", "no file can have this name"),
        ("a\ud800b", "no file can have this name"),
    ],
)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=message):
        user_files.opened(tmp_path / name)


def test_what_was_read_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert user_files.read_bytes(tmp_path / "a") == b"x"
    with user_files.recorded() as files:
        user_files.listed(tmp_path)
        user_files.read_bytes(tmp_path / "a")
    user_files.listed(tmp_path.parent)
    assert files == {tmp_path, tmp_path / "a"}


def test_what_is_not_there_is_recorded_by_the_folder_where_it_could_appear(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with user_files.recorded() as files:
        assert not user_files.exists(tmp_path / "none" / "a.json")
        assert user_files.is_dir(tmp_path / "there")
    assert files == {tmp_path, tmp_path / "there"}
    (tmp_path / "loop").symlink_to("loop")
    assert user_files.exists(tmp_path / "loop"), "opening it says what is wrong"
    assert not user_files.is_dir(tmp_path / "loop")


def _old(path: Path, content: bytes, *, age_s: int = 60) -> Path:
    path.write_bytes(content)
    then = path.stat().st_mtime_ns - age_s * 10**9
    os.utime(path, ns=(then, then))
    return path


def test_a_file_is_hashed_once_unless_its_size_or_time_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _old(tmp_path / "a", b"x")
    monkeypatch.setattr(user_files.hashlib, "file_digest", digest := Mock(wraps=hashlib.file_digest))
    assert user_files.sha256(path) == user_files.sha256(path) == hashlib.sha256(b"x").hexdigest()
    assert digest.call_count == 1
    _old(path, b"y", age_s=50)
    assert user_files.sha256(path) == hashlib.sha256(b"y").hexdigest()
    _old(path, b"yy", age_s=50)
    assert user_files.sha256(path) == hashlib.sha256(b"yy").hexdigest()


def test_a_file_that_was_written_just_now_is_not_trusted(tmp_path: Path) -> None:
    user_files.sha256(write(tmp_path / "a", b"x"))
    assert str(tmp_path / "a") not in user_files.known_digests()


def test_what_another_process_found_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _old(tmp_path / "a", b"x")
    now = path.stat()
    monkeypatch.setattr(user_files, "_digests", {})
    user_files.remember({str(path): (now.st_size, now.st_mtime_ns, "known")})
    assert user_files.sha256(path) == "known"
    assert user_files.known_digests() == {str(path): (now.st_size, now.st_mtime_ns, "known")}
    user_files.remember({str(path): (0, 0, "older")})
    assert user_files.sha256(path) == "known"
    path.write_bytes(b"other")
    assert user_files.sha256(path) == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize("kind", ["file", "bytes", "pixels"])
def test_the_digest_of_a_record_is_that_of_its_content(tmp_path: Path, kind: str) -> None:
    content = saved(np.zeros((4, 4, 3), np.uint8), "PNG")
    pictures = {"file": _old(tmp_path / "a.png", content), "bytes": content, "pixels": np.zeros((4, 4, 3), np.uint8)}
    record = Record("a", "g", pictures[kind], "<image>", "text")
    assert record.digest == hashlib.sha256(record.content).hexdigest()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_pictures_of_8_bits_are_read_in_any_colours(tmp_path: Path, mode: str, recwarn) -> None:
    level = 255 if mode == "1" else 204  # a palette has this one
    form = {"CMYK": "TIFF", "YCbCr": "JPEG"}.get(mode, "PNG")
    seen_through = {"transparency": b"\x00" * 256} if mode == "P" else {}
    Image.fromarray(np.full((5, 4, 3), level, np.uint8)).convert(mode).save(tmp_path / "a", form, **seen_through)
    record = Record("a", "g", tmp_path / "a", "<image>", "text")
    assert record.image.shape == (5, 4, 3)
    assert np.abs(record.image.astype(int) - level).max() <= 3
    assert not recwarn.list


def test_of_an_animation_the_first_picture_counts(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4, 3), level, np.uint8)) for level in (0, 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert Record("a", "g", tmp_path / "a.gif", "<image>", "text").image.max() == 0


@pytest.mark.parametrize("name", CONTENTS)
def test_pictures_that_cannot_be_used_are_named_with_their_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.png").write_bytes(CONTENTS[name])
    record = Record("a", "g", tmp_path / "a.png", "<image>", "text", where="list.json line 3")
    with pytest.raises(InputError, match=r"record a \(list.json line 3\): .*a.png is no readable image \(") as refused:
        _ = record.image
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("field", ["id", "group", "prompt", "text", "domain", "references"])
@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_texts_that_cannot_be_written_are_refused(field: str, bad: str) -> None:
    values = {"id": "a", "group": "g", "prompt": "<image>", "text": "text", "domain": ""}
    given = values | {field: (bad,) if field == "references" else f"{values.get(field)}{bad}"}
    with pytest.raises(InputError, match="holds a NUL or half a character") as refused:
        Record(picture=np.zeros((1, 1, 3), np.uint8), where="list.json line 3", **given)
    assert str(refused.value).isprintable()


def test_a_folder_says_what_it_holds_or_that_nobody_may_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_files.largest(tmp_path) == "it is empty"
    for name, size in (("small", 1), ("large", 9)):
        (tmp_path / name).write_bytes(bytes(size))
    assert user_files.largest(tmp_path) == "it holds large, small"
    assert user_files.largest(tmp_path, most=1) == "it holds large and 1 more"

    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError))
    assert user_files.largest(tmp_path) == "it cannot be read"
