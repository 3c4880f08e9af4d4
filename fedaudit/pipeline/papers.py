"""Tables and figures of papers by name, such as `--paper dpfpl:table2`. Imports nothing heavy.

An item is a file of reports/papers/; dpfpl_figure3.py is the item dpfpl:figure3. The file has:

- a docstring that begins with the item's title ("DP-FPL, Table 2: accuracy of ...");
- the literal `PRESET`, and `TASKS`: command-line words for each column or panel, by its name; both are empty for an
  item that needs no training;
- `SCALE` and `REAL`, if there is a preset of the paper's own scale: this preset, and `TASKS` for the paper's own data;
- a function `build(evidence, write)` that writes the page and returns a sentence on how far ours agrees.

`TINY`, in one item of each preset, are command-line words with which tests run it in seconds.
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

Words = Mapping[str, Sequence[str]]  # words of the command line, by column or panel


@dataclass(frozen=True)
class PaperItem:
    """A table or figure of a paper, as its file declares it."""

    module: str
    summary: str  # first line of its docstring
    preset: str | None  # at the embedded scale
    tasks: Words
    scale: str | None = None  # the preset of the paper's scale
    real: Words | None = None  # as `tasks`, for the paper's own data

    @property
    def title(self) -> str:
        """Such as "DP-FPL, Table 2"."""
        return self.summary.partition(": ")[0]

    @property
    def paper(self) -> str:
        """Such as "DP-FPL"."""
        return self.title.partition(", ")[0]


@functools.cache
def items() -> dict[str, PaperItem]:
    """All tables and figures by name, sorted by paper, tables before figures, then by number."""
    by_name = {}
    for path in plugins.package_folder("reports.papers").glob("*.py"):
        if (tasks := plugins.literal(path, "TASKS")) is not None:
            real = (plugins.literal(path, name) for name in ("SCALE", "REAL"))
            item = PaperItem(path.stem, plugins.summary(path), plugins.literal(path, "PRESET"), tasks, *real)
            by_name[path.stem.replace("_", ":", 1)] = item
    return dict(sorted(by_name.items(), key=lambda pair: _sort_key(pair[0])))


def _sort_key(name: str) -> tuple[str, bool, int, str]:
    paper, _, item = name.partition(":")
    number = re.search(r"\d+", item)
    return paper, not item.startswith("table"), int(number[0]) if number else 0, item


def find(name: str) -> PaperItem:
    """The item of this name. InputError: there is none; the message lists all."""
    if name not in items():
        near = nearest(name, [*items(), *papers(), ALL])
        raise InputError(
            f"--paper {name}: no such table or figure{near}; there are {', '.join(items())}; of all of a paper give "
            f"{', '.join(papers())}, of all papers {ALL}"
        )
    return items()[name]


def papers() -> list[str]:
    """The names of all papers that have items, such as "dpfpl"."""
    return list(dict.fromkeys(name.partition(":")[0] for name in items()))


def item_names(text: str) -> list[str]:
    """The items' names for a name of the command line: of one item, of a paper (its items), or `ALL`. InputError: there
    is no such name; the message lists all."""
    if text == ALL or text in papers():
        return [name for name in items() if text in (ALL, name.partition(":")[0])]
    find(text)
    return [text]


@dataclass(frozen=True)
class DrawnItem:
    """The result of drawing an item."""

    name: str
    seconds: float
    page: Path | None = None  # None: it could not be drawn
    agreed: str = ""  # a sentence on how far ours agrees with the paper
    why: str = ""  # why it could not be drawn


def draw(name: str, plans: Mapping[str, Plan], out: Path, progress: Progress) -> DrawnItem:
    """Run the plans of an item, by column or panel, and write its page under `out`."""
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


def write_index(name_or_paper: str, drawn: Sequence[DrawnItem], out: Path) -> Path:
    """Write the index of all items of a command-line name (see `item_names`) as page and CSV; items that are not in
    `drawn` stand there as not run yet. Returns the page's path."""
    from reports.paper_index import rendered

    names = item_names(name_or_paper)
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
    title = "All papers" if name_or_paper == ALL else find(names[0]).paper
    for ending, data in rendered(name_or_paper, title, [find(name).title for name in names], rows).items():
        write_atomic(folder / f"{name_or_paper}.{ending}", data)
    return folder / f"{name_or_paper}.html"
