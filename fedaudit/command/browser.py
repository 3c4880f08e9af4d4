"""`--open`: shows a finished page in the browser. Imports nothing heavy."""

from __future__ import annotations

import webbrowser
from pathlib import Path


def show(page: Path, asked_by: str = "--open") -> None:
    """Open the page in the browser of this machine; if there is none, print a sentence with the page's path, which
    begins with what asked for it."""
    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    if not opened:
        print(f"{asked_by}: there is no browser here; open {page.resolve()} in one")
