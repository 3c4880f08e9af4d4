"""A folder or module of a user's own that has the name of one of ours: one sentence names both, or the command does not see it at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fedaudit.command.import_shadowing import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
MINE = "raise SystemExit('this is mine')\n"
CALL = "import fedaudit\ntry: fedaudit.audit(method='fedrand')\nexcept fedaudit.InputError as error: print(error)\n"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, with ours behind it, as installed packages are."""
    where = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=where, capture_output=True, text=True)


@pytest.fixture(params=["package", "module"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder in which every name of ours is taken."""
    for name in PACKAGES:
        file = tmp_path / (f"{name}/__init__.py" if request.param == "package" else f"{name}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(MINE)
    return tmp_path


def test_the_library_names_what_hides_ours(folder: Path) -> None:
    done = run(folder, "-c", CALL)
    assert done.stdout.count("\n") == 1, done.stderr
    assert done.stdout.startswith(f"{folder / 'trainers'}")
    assert all(
        word in done.stdout for word in (f"own trainers ({ROOT / 'trainers'})", "rename it", "python -P", "fedaudit")
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_each_of_ours_is_looked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(MINE)
    assert run(tmp_path, "-c", CALL).stdout.startswith(f"{tmp_path / f'{name}.py'} hides FedAudit's own {name} (")


def test_a_package_that_is_imported_already(folder: Path) -> None:
    for name in PACKAGES:
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.exists():
                file.write_text("")
    assert "hides FedAudit's own trainers" in run(folder, "-c", "import trainers\n" + CALL).stdout


def test_a_folder_without_init_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "trainers").mkdir()
    done = run(tmp_path, "-c", "import fedaudit; print(fedaudit.audit)")
    assert done.stdout.startswith("<function audit"), done.stderr


def test_importing_and_errors_need_no_look(folder: Path) -> None:
    done = run(folder, "-c", "import fedaudit; print(fedaudit.__version__, fedaudit.InputError.__name__)")
    assert done.stdout.endswith("InputError\n"), done.stderr


@pytest.mark.parametrize("words", [("-m", "fedaudit"), ("-P", "-m", "fedaudit"), (str(ROOT / "audit.py"),)], ids=str)
def test_the_command_takes_nothing_from_the_folder_it_is_called_in(words: tuple[str, ...], folder: Path) -> None:
    done = run(folder, *words, "--list")
    assert done.returncode == 0, done.stderr
    assert "maxrenyi" in done.stdout


def test_the_command_names_what_hides_ours_on_the_path(folder: Path) -> None:
    where = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    words = [sys.executable, "-m", "fedaudit", "--list"]
    done = subprocess.run(words, cwd=ROOT.parent, env=where, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {folder / 'trainers'}")


def test_an_unknown_name_is_an_ordinary_error() -> None:
    done = run(ROOT, "-c", "import fedaudit\nfedaudit.audits")
    assert "AttributeError: module 'fedaudit' has no attribute 'audits'" in done.stderr
