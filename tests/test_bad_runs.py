"""Bad run folders: refused in one sentence that names the file, by the reader and by the command, and left as they are."""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedaudit.command import cli
from fedaudit.external.reading import read
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import sentences
from tests.bad_run_files import FILES, VALUES
from tests.bad_run_texts import JSON
from tests.bad_runs import REFUSED
from tests.small_run import Change, small_run

READ = REFUSED | FILES | JSON
pytestmark = pytest.mark.timeout(60)  # who opens a pipe waits for ever


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("good") / "my-run")


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "my-run")


def contents(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        large = path.is_file() and path.stat().st_size > 10**8
        content = path.is_file() and (large or hashlib.sha256(path.read_bytes()).hexdigest())
        found[str(path)] = path.lstat().st_mode, path.is_symlink() and os.readlink(path), content
    return found


@pytest.mark.parametrize("name", READ | VALUES)
def test_refused_in_one_sentence(run: Path, name: str) -> None:
    """By the reader, but for wrong numbers and pixels, which are seen once all is read."""
    change, message = (READ | VALUES)[name]
    change(run)
    before = contents(run)
    with pytest.raises(InputError, match=message) as caught:
        read_all(run, name)
    for text in sentences(caught.value):
        assert str(run) in text
        assert text.isprintable()
        assert ". " not in text.replace("... ", "")
        assert len(text) < 600 + 2 * len(str(run))
    assert contents(run) == before


def read_all(run: Path, name: str) -> None:
    found = read(run)
    assert name in VALUES, "read without a word"
    assert found.remarks


SAMPLE = dict([*READ.items()][::24]) | dict([*VALUES.items()][::2])


@pytest.mark.parametrize(("change", "message"), SAMPLE.values(), ids=SAMPLE)
def test_refused_by_the_command(run: Path, change: Change, message: str, tmp_path: Path, capsys: Any) -> None:
    change(run)
    assert cli.main(["--run", str(run), "--out", str(tmp_path / "out")]) == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    assert re.fullmatch("error: .*\n", said)
    assert not (tmp_path / "out").exists()
