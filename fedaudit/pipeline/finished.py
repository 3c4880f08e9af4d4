"""Whether folders on disk are finished: the list of a folder's files is written last. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.plan import Plan

COMPLETE = "complete.json"


def finish(folder: Folder) -> None:
    """Mark a folder as finished by writing the list of its files."""
    folder.write_json(COMPLETE, [name for name in folder.names() if name != COMPLETE])


def complete(folder: Folder, say: Callable[[str], None]) -> bool:
    """Whether a folder is finished and all of its files are there and intact. Damaged or missing files are named by
    `say`; damaged ones are removed."""
    if not folder.usable(COMPLETE, say):
        return False
    intact = [folder.usable(name, say) for name in folder.read_json(COMPLETE)]
    return all(intact)


def on_disk(path: Path, say: Callable[[str], None]) -> bool:
    """As `complete`, for a path that may not exist."""
    return path.is_dir() and complete(claim(path), say)


def intact(path: Path) -> bool:
    """Whether a folder is finished and has no damaged file; nothing is said or changed."""
    folder = Folder(path)
    return COMPLETE in folder and not folder.damaged


def sound(plan: Plan) -> bool:
    """Whether the report is finished and the existing folders of its cells have no damaged file; folders that were
    deleted do not matter."""
    folders = (folder for cell in plan.cells for folder in cell.folders)
    return intact(plan.report_folder) and not any(Folder(folder).damaged for folder in folders)
