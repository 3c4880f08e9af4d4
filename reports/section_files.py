"""The order of sections on a page. A module of its own, because keys of runs depend on it but not on any section."""

from __future__ import annotations

from pathlib import Path

from fedaudit.machinery import plugins

PACKAGE = "fedaudit.reports.sections"


def section_files() -> dict[str, Path]:
    """The files of reports/sections/ that define `ORDER`, by section name, in page order."""
    files = plugins.package_folder(PACKAGE).glob("*.py")
    order = {path: number for path in files if (number := plugins.literal(path, "ORDER")) is not None}
    return {path.stem: path for path in sorted(order, key=lambda path: (order[path], path.stem))}
