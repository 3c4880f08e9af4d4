"""Runs of a paper's table or figure, and its page: `--paper dpfpl:table2`. Imports nothing heavy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of
from fedaudit.pipeline import keys, provenance
from fedaudit.pipeline.plan import Plan
from fedaudit.reports.paper_items import ALL, find, matching

if TYPE_CHECKING:
    from fedaudit.reports.report import Evidence

FOLDER = "papers"  # under --out


@dataclass(frozen=True)
class DrawnItem:
    """The result of drawing an item."""

    name: str
    seconds: float
    page: Path | None = None  # None: it could not be drawn
    agreed: str = ""  # a sentence on how far ours agrees with the paper
    why: str = ""  # why it could not be drawn


def draw(
    name: str, plans: Mapping[str, Plan], out: Path, progress: Progress, *, words: Sequence[str] = ()
) -> DrawnItem:
    """Run the plans of a paper's table or figure (`name`, as "dpfpl:table2"), one for each column or panel, and write
    its page under `out`; returns its path, and how far ours agrees with the paper. `words` are the command's (default:
    those that draw this item alone)."""
    from fedaudit.pipeline.page import read_evidence
    from fedaudit.pipeline.run import run
    from fedaudit.reports.made import noting

    start = time.monotonic()
    for task, plan in plans.items():
        progress.say(f"{name}, {task}")
        run(plan, progress)
    evidence: dict[str, list[Evidence]] = {t: [read_evidence(cell) for cell in p.cells] for t, p in plans.items()}
    key = key_of(keys.page([cell for plan in plans.values() for cell in plan.cells], figure=find(name).module))
    folder = claim(out / FOLDER / f"{name.replace(':', '-')}-{key[:8]}")
    with folder.lock(progress.say):
        note = provenance.made(words or _words(name), start, device=_device(plans))
        agreed = find(name).build(evidence, noting(folder.write, note))
    return DrawnItem(name, time.monotonic() - start, folder.path / "index.html", agreed)


def _words(name: str) -> list[str]:
    return ["--paper", name]


def _device(plans: Mapping[str, Plan]) -> str:
    return next((plan.device for plan in plans.values()), "cpu")


def write_index(selection: str, drawn: Sequence[DrawnItem], out: Path, *, words: Sequence[str] = ()) -> Path:
    """Write the index of all items that were asked for (see `reports.paper_items.matching`) as page and CSV; items that
    are not in `drawn` stand there as not run yet. Returns the page's path. `words` as in `draw`."""
    from fedaudit.reports.made import noting
    from fedaudit.reports.paper_index import render_files

    names = matching(selection)
    folder = claim(out / FOLDER).path
    done = {one.name: one for one in drawn}
    rows = [
        {
            "item": name,
            "shows": find(name).summary.partition(": ")[2].rstrip("."),
            "agreement": done[name].agreed if name in done else "",
            "seconds": round(done[name].seconds, 1) if name in done else None,
            "page": page.relative_to(folder).as_posix() if name in done and (page := done[name].page) else "",
            "why": done[name].why if name in done else "not run yet",
        }
        for name in names
    ]
    papers = list(dict.fromkeys(find(name).paper for name in names))
    title = "All papers" if selection == ALL else ", ".join(papers)
    stem = f"several-{key_of({'items': names})[:8]}" if "," in selection else selection
    note = provenance.made(words or _words(selection), time.monotonic() - sum(one.seconds for one in drawn))
    write = noting(lambda file, data: write_atomic(folder / file, data), note)
    for ending, data in render_files(selection, title, [find(name).title for name in names], rows).items():
        write(f"{stem}.{ending}", data)
    return folder / f"{stem}.html"
