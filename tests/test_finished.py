"""A finished run: shown without writing anything, and pinned by the digests of its manifests."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fedaudit.command import cli
from fedaudit.machinery import user_files

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

WORDS = "--method promptfl --attack lira --shadows 4 --rounds 1 --clients 2 --train 4 --test 1 --targets 1 --no-twin --threads 1"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    assert cli.main([*WORDS.split(), f"--out={place}"]) == 0
    return place


def test_it_is_shown_on_a_disk_that_nobody_can_write(out: Path, monkeypatch: Any, capsys: Any) -> None:
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(out)) and flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=OSError(30, "Read-only file system")))
    user_files._digests.clear()
    assert cli.main([*WORDS.split(), f"--out={out}"]) == 0
    said = capsys.readouterr()
    assert "reused: report" in said.err
    assert "report: " in said.out


def test_the_page_names_the_digests_of_the_manifests(out: Path) -> None:
    (page,) = out.glob("reports/*/index.html")
    text = page.read_text()
    for part in ("runs", "analyses"):
        (manifest,) = out.glob(f"{part}/*/manifest.json")
        assert hashlib.sha256(manifest.read_bytes()).hexdigest() in text
    banks = sorted(out.glob("shadows/*/*/manifest.json"))
    assert len(banks) == 2  # the simulated federation, and the target's shadows
    each = "\n".join(hashlib.sha256(manifest.read_bytes()).hexdigest() for manifest in banks)
    assert hashlib.sha256(each.encode()).hexdigest() in text


def test_a_report_outlives_the_training_that_somebody_threw_away(out: Path, tmp_path: Path, capsys: Any) -> None:
    copy = shutil.copytree(out, tmp_path / "copy")
    for part in ("runs", "shadows", "cache"):
        shutil.rmtree(copy / part)
    assert cli.main([*WORDS.split(), f"--out={copy}"]) == 0
    assert "reused: report" in capsys.readouterr().err
    assert not (copy / "runs").exists()
