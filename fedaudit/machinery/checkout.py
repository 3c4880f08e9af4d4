"""The commit of the running code, where it runs from a git checkout."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from fedaudit.machinery.closure import source_file


def commit() -> str:
    """The commit of the git checkout that this package lies in, with "+" if tracked files differ from it; "" outside of
    a checkout."""
    package = source_file("fedaudit")
    assert package is not None
    root = package.parent.parent

    def git(*words: str) -> str:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            process = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30, check=False
            )
            return process.stdout.strip() if process.returncode == 0 else ""
        return ""

    if Path(git("rev-parse", "--show-toplevel") or "/").resolve() != root.resolve():
        return ""
    head = git("rev-parse", "--short=12", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--untracked-files=no") else head
