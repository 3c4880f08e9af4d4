"""A user's folder may hold modules with the names of our packages: neither the command nor the library sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_rooms import ROOMS

ROOT = Path(__file__).resolve().parent.parent
MINE = "NAME = 'mine'\n"
TINY = {"method": "promptfl", "epsilon": "none", "attack": "loss", "rounds": 1, "clients": 2, "train": 8, "test": 1}


def run(folder: Path, *words: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, with ours behind it, as installed packages are."""
    where = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], cwd=folder, env=where, capture_output=True, text=True)


MODULE = pytest.param("module", marks=pytest.mark.slow)  # found by the same import; quick: a package


@pytest.fixture(params=["package", MODULE])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder in which every name of ours is taken."""
    for name in ROOMS:
        file = tmp_path / (f"{name}/__init__.py" if request.param == "package" else f"{name}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(MINE)
    return tmp_path


def test_the_library_runs_beside_them_and_leaves_them_alone(folder: Path) -> None:
    audit = f"fedaudit.audit(**{TINY}, threads=1, quiet=True, out='runs')"
    tiny = f"import fedaudit\nfrom tests.unprinted import no_pages\nwith no_pages(): found = {audit}\n"
    mine = "; ".join(f"import {name}; assert {name}.NAME == 'mine'" for name in ROOMS)
    done = run(folder, "-c", f"{tiny}{mine}; print(len(found.findings))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_theirs_may_be_imported_first(folder: Path) -> None:
    done = run(folder, "-c", "import trainers, attacks; import fedaudit; print(fedaudit.audit, trainers.NAME)")
    assert done.stdout.startswith("<function audit"), done.stderr
    assert done.stdout.endswith("mine\n")


@pytest.mark.parametrize("words", [("-m", "fedaudit"), ("-P", "-m", "fedaudit"), (str(ROOT / "audit.py"),)], ids=str)
def test_the_command_takes_nothing_from_the_folder_it_is_called_in(words: tuple[str, ...], folder: Path) -> None:
    (folder / "yaml.py").write_text("raise SystemExit('this is mine')\n")
    done = run(folder, *words, "--list", "attacks")
    assert done.returncode == 0, done.stderr
    assert "maxrenyi" in done.stdout


def test_the_command_runs_with_theirs_on_the_path(folder: Path) -> None:
    done = run(ROOT.parent, "-m", "fedaudit", "--version", path=f"{folder}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr


ORDERS = (
    "import trainers.base, fedaudit.trainers.base",
    "import fedaudit.trainers.base, trainers.base",
    "from trainers import base; import trainers, fedaudit.trainers.base",
)


def test_in_a_checkout_the_short_name_is_the_same_module() -> None:
    """In whatever order they are imported; torch, which takes long, is none of ours."""
    same = "assert trainers is fedaudit.trainers and trainers.base is fedaudit.trainers.base"
    names = "print(trainers.base.__name__, trainers.base.__spec__.name, trainers.base.Method.__module__)"
    forks = f"import os, torch\nfor imports in {ORDERS}:\n    if not os.fork(): break\n    assert not os.wait()[1]\nelse: os._exit(0)"
    done = run(ROOT, "-c", f"{forks}\nexec(imports)\nimport fedaudit; {same}; {names}")
    assert done.stdout.split() == ["fedaudit.trainers.base"] * 9, done.stderr


def test_a_name_that_is_none_is_an_ordinary_error() -> None:
    done = run(ROOT, "-c", "import attacks.nothing")
    assert "ModuleNotFoundError: No module named 'fedaudit.attacks.nothing'" in done.stderr
    done = run(ROOT, "-c", "import fedaudit\nfedaudit.nothing")
    assert "AttributeError: module 'fedaudit' has no attribute 'nothing'" in done.stderr
