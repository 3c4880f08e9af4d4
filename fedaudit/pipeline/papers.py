"""Tables and figures of papers by name: `--paper dpfpl:table2`. Imports nothing heavy.

An item is a file of reports/papers/ whose docstring begins with the paper's title ("DP-FPL, Table 2: accuracy of"),
with the literals `PRESET` and `TASKS`, what each of its columns or panels is called and the words that ask for it, and
a function `build(evidence, write)` that returns in a sentence how far ours agrees. `SCALE` and `REAL` are the same on
the paper's own data. `TINY`, in one of the items of a preset, are words with which tests run it in seconds. Its key is
its name: dpfpl_figure3.py is dpfpl:figure3. One that is computed from nothing that was trained has no task, and no
preset.
"""

from __future__ import annotations

import functools
import importlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of, write_atomic
from fedaudit.pipeline import keys
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    from reports.report import Evidence

ALL = "all"
FOLDER = "papers"  # under --out

Words = Mapping[str, Sequence[str]]  # by what a column is called


@dataclass(frozen=True)
class PaperItem:
    """A table or figure: its module, what each of its columns or panels is called, with the words that ask for it, at
    the embedded scale and, where there is such a preset, at the paper's."""

    module: str
    summary: str
    preset: str | None
    tasks: Words
    scale: str | None = None
    real: Words | None = None

    @property
    def title(self) -> str:
        """As DP-FPL, Table 2."""
        return self.summary.partition(": ")[0]

    @property
    def paper(self) -> str:
        """As DP-FPL."""
        return self.title.partition(", ")[0]


@functools.cache
def items() -> dict[str, PaperItem]:
    """Every table and figure by its key: those of a paper together, tables first, by their numbers."""
    found = {}
    for path in plugins.package_folder("reports.papers").glob("*.py"):
        if (tasks := plugins.literal(path, "TASKS")) is not None:
            own = (plugins.literal(path, name) for name in ("SCALE", "REAL"))
            item = PaperItem(path.stem, plugins.summary(path), plugins.literal(path, "PRESET"), tasks, *own)
            found[path.stem.replace("_", ":", 1)] = item
    return dict(sorted(found.items(), key=lambda named: _place(named[0])))


def _place(name: str) -> tuple[str, bool, int, str]:
    paper, _, item = name.partition(":")
    number = re.search(r"\d+", item)
    return paper, not item.startswith("table"), int(number[0]) if number else 0, item


def find(name: str) -> PaperItem:
    """The item of that name. InputError names those that there are."""
    if name not in items():
        near = nearest(name, [*items(), *papers(), ALL])
        raise InputError(
            f"--paper {name}: no such table or figure{near}; there are {', '.join(items())}; of all of a paper give "
            f"{', '.join(papers())}, of all papers {ALL}"
        )
    return items()[name]


def papers() -> list[str]:
    """The papers that there are items of."""
    return list(dict.fromkeys(name.partition(":")[0] for name in items()))


def named(text: str) -> list[str]:
    """The items that are meant: one, all of a paper, or all. InputError names those that there are."""
    if text == ALL or text in papers():
        return [name for name in items() if text in (ALL, name.partition(":")[0])]
    find(text)
    return [text]


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
        agreed = importlib.import_module(f"reports.papers.{find(name).module}").build(evidence, folder.write)
    return DrawnItem(name, time.monotonic() - start, folder.path / "index.html", agreed)


def write_index(asked: str, drawn: Sequence[DrawnItem], out: Path) -> Path:
    """The index of the items that were asked for under one name, as page and CSV; returns where the page is. Those that
    are not drawn yet stand there as such."""
    from reports.paper_index import rendered

    names = named(asked)
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
    for ending, data in rendered(asked, title, [find(name).title for name in names], rows).items():
        write_atomic(place / f"{asked}.{ending}", data)
    return place / f"{asked}.html"
