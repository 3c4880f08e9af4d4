"""Whether what a plan left on disk is all there: a folder is finished when the list of its files is, which comes last.
Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.plan import Plan

COMPLETE = "complete.json"


def finish(folder: Folder) -> None:
    """Mark a folder as finished: list what it holds."""
    folder.write_json(COMPLETE, [name for name in folder.names() if name != COMPLETE])


def complete(folder: Folder, say: Callable[[str], None]) -> bool:
    """All files of a finished folder are there and intact; COMPLETE is written last."""
    if not folder.usable(COMPLETE, say):
        return False
    intact = [folder.usable(name, say) for name in folder.read_json(COMPLETE)]
    return all(intact)


def on_disk(path: Path, say: Callable[[str], None]) -> bool:
    """Whether a folder is there, finished and intact; what is damaged is named and removed."""
    return path.is_dir() and complete(claim(path), say)


def intact(path: Path) -> bool:
    """Whether a folder is finished and nothing in it was damaged since; nothing is said or changed."""
    folder = Folder(path)
    return COMPLETE in folder and not folder.damaged


def sound(plan: Plan) -> bool:
    """Whether the report is finished and nothing that it came from was damaged since; what is no longer there does not
    matter."""
    places = (place for cell in plan.cells for place in cell.folders)
    return intact(plan.report_folder) and not any(Folder(place).damaged for place in places)
