"""Environments of other frameworks for slow tests: made once, in a cache folder, beside the project's packages.

`FEDAUDIT_TEST_ENVIRONMENTS` names another folder than `~/.cache/fedaudit-tests`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def environment(name: str, requirement: str) -> Path:
    """A virtual environment with a requirement, which sees the project's packages (torch, peft) behind its own. The
    test is skipped where it cannot be installed."""
    base = Path(os.environ.get("FEDAUDIT_TEST_ENVIRONMENTS", Path.home() / ".cache" / "fedaudit-tests"))
    place = base / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    done = place / "installed.txt"
    if not done.is_file() or done.read_text() != requirement:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement],
        ):
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                pytest.skip(f"{requirement} cannot be installed: {(run.stderr.strip() or 'no word').splitlines()[-1]}")
        done.write_text(requirement)
    (packages,) = (place / "lib").glob("python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "project.pth").write_text("".join(f"{path}\n" for path in others))
    return place
