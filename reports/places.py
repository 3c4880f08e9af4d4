"""Where the sections of a page stand. By itself, so that what asks for it, as every key does, reaches no section."""

from __future__ import annotations

from pathlib import Path

from fedaudit.machinery import plugins

PACKAGE = "reports.sections"


def places() -> dict[str, Path]:
    """The files of sections by name, in the order in which they stand on a page."""
    files = plugins.package_folder(PACKAGE).glob("*.py")
    found = {path: place for path in files if (place := plugins.literal(path, "ORDER")) is not None}
    return {path.stem: path for path in sorted(found, key=lambda path: (found[path], path.stem))}
