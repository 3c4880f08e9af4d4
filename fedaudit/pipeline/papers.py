"""Runs of a paper's table or figure, and its page: `--paper dpfpl:table2`. Imports nothing heavy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of, write_atomic
from fedaudit.pipeline import keys
from fedaudit.pipeline.plan import Plan
from reports.paper_items import ALL, find, matching

if TYPE_CHECKING:
    from reports.report import Evidence

FOLDER = "papers"  # under --out


@dataclass(frozen=True)
class DrawnItem:
    """What became of an item: its page and how far ours agrees, or why there is none."""

    name: str
    seconds: float
    page: Path | None = None
    agreed: str = ""
    why: str = ""


def draw(name: str, plans: Mapping[str, Plan], out: Path, progress: Progress) -> DrawnItem:
    """Run the plans of an item, one per task, and write its page under `out`."""
    from fedaudit.pipeline.page import read_evidence
    from fedaudit.pipeline.run import run

    start = time.monotonic()
    for task, plan in plans.items():
        progress.say(f"{name}, {task}")
        run(plan, progress)
    evidence: dict[str, list[Evidence]] = {t: [read_evidence(cell) for cell in p.cells] for t, p in plans.items()}
    key = key_of(keys.page([cell for plan in plans.values() for cell in plan.cells], figure=find(name).module))
    folder = claim(out / FOLDER / f"{name.replace(':', '-')}-{key[:8]}")
    with folder.lock(progress.say):
        agreed = find(name).build(evidence, folder.write)
    return DrawnItem(name, time.monotonic() - start, folder.path / "index.html", agreed)


def write_index(asked: str, drawn: Sequence[DrawnItem], out: Path) -> Path:
    """The index of the items that were asked for under one name, as page and CSV; returns where the page is. Those that
    are not drawn yet stand there as such."""
    from reports.paper_index import render_files

    names = matching(asked)
    place = claim(out / FOLDER).path
    done = {one.name: one for one in drawn}
    rows = [
        {
            "item": name,
            "shows": find(name).summary.partition(": ")[2].rstrip("."),
            "agreement": done[name].agreed if name in done else "",
            "seconds": round(done[name].seconds, 1) if name in done else None,
            "page": page.relative_to(place).as_posix() if name in done and (page := done[name].page) else "",
            "why": done[name].why if name in done else "not run yet",
        }
        for name in names
    ]
    title = "All papers" if asked == ALL else find(names[0]).paper
    for ending, data in render_files(asked, title, [find(name).title for name in names], rows).items():
        write_atomic(place / f"{asked}.{ending}", data)
    return place / f"{asked}.html"
