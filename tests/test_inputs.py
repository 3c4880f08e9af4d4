"""Inputs that are no regular files, and the record of what was read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaudit import inputs


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert inputs.read_bytes(tmp_path / "a") == b"x"


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="FIFO") as caught:
        inputs.opened(tmp_path / "pipe")
    assert "not a regular file" in (caught.value.strerror or "")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_impossible_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        inputs.opened(tmp_path / name)


def test_devices_and_folders_are_refused(tmp_path: Path) -> None:
    for path in (Path(os.devnull), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            inputs.opened(path)


@pytest.mark.parametrize(("form", "usual"), [("PNG", True), ("JPEG", True), ("EPS", False), ("PCX", False)])
def test_pictures_of_usual_formats_only(tmp_path: Path, form: str, usual: bool) -> None:
    path = tmp_path / "x.png"  # the name says nothing
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, form)
    if usual:
        with inputs.picture(path) as found:
            assert found.size == (4, 4)
    else:
        with pytest.raises(OSError, match="damaged"), inputs.picture(path):
            pass


def test_what_was_read_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    inputs.read_bytes(tmp_path / "a")
    with inputs.recorded() as files:
        inputs.listed(tmp_path)
        inputs.read_bytes(tmp_path / "a")
    inputs.listed(tmp_path.parent)
    assert files == {tmp_path, tmp_path / "a"}
