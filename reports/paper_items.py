"""Tables and figures of papers ("items") by name, such as dpfpl:table2. Imports nothing heavy.

Items are listed by the files of `reports/papers/` with a class `Items`, each attribute of which is a `PaperItem`. The
file's docstring begins with the paper's title ("DP-FPL: ..." or "DP-FPL, Table 2: ..."). For each item it has a
function of the same name, `table2(evidence, write)`, which writes the page and returns in a sentence how far our
numbers agree with the printed ones. The file's name up to its first underscore is the paper's name.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.reports.archive import self_contained

if TYPE_CHECKING:
    from fedaudit.reports.report import Evidence
    from fedaudit.reports.templates import Write

ALL = "all"
ITEMS = "Items"  # the class of a file that lists items

Words = Mapping[str, Sequence[str]]  # command-line arguments by the name of a column or panel


@dataclass(frozen=True)
class PaperItem:
    """A table or figure of a paper, and the commands that compute it: one per column or panel, with the arguments of
    `preset`, those in `tasks`, and `method` and `attacked`: what it does not show is neither trained nor attacked.
    `title` and `module` are filled in by `items`, and `shows` if it is empty."""

    shows: str = ""  # its content in words; by default from the first line of the file's docstring
    preset: str | None = None  # a file of fedaudit/presets; None: nothing is trained
    tasks: Words = field(default_factory=dict)
    method: str = ""  # value of --method: those of the preset's methods that it shows, spelt as there; "": all
    attacked: bool = False  # whether it shows what attacks found
    scale: str | None = None  # the preset with the paper's own sizes; None: there is none
    real: Words | None = None  # `tasks` on the paper's own data; None: not available
    tiny: str = ""  # arguments with which tests run all items of the preset and `method` in seconds; one of them has it
    title: str = ""  # such as "DP-FPL, Table 2"
    module: str = ""  # the file's module in `reports.papers`

    @property
    def only(self) -> list[str]:
        """Arguments that leave out what the item does not show; where it names budgets, also twins without noise."""
        method = [f"--method={self.method}"] if self.method else []
        method += ["--no-twin"] if "epsilon=" in self.method else []
        return method if self.attacked else [*method, "--attack=none"]

    @property
    def paper(self) -> str:
        """The paper's title, such as DP-FPL."""
        return self.title.partition(", ")[0]

    @property
    def summary(self) -> str:
        """Title and content in one line."""
        return f"{self.title}: {self.shows}."

    def build(self, evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
        """Write the item's files through `write(name, bytes)`, index.html last; `evidence` holds the runs by column or
        panel. Returns in a sentence how far ours agrees with the paper. ValueError: the runs have nothing to show."""
        module = importlib.import_module(f"fedaudit.reports.papers.{self.module}")
        name = self.title.rpartition(", ")[2].replace(" ", "").lower()
        return cast("Callable[..., str]", getattr(module, name))(evidence, self_contained(write))


@functools.cache
def items() -> dict[str, PaperItem]:
    """All tables and figures of papers, {name: item}, such as "dpfpl:table2": grouped by paper, tables before figures,
    in the order of their numbers."""
    by_name = {}
    for path in plugins.package_folder("fedaudit.reports.papers").glob("*.py"):
        head, _, shows = plugins.summary(path).partition(": ")
        for name, item in vars(plugins.class_of(path, ITEMS) or object).items():
            if isinstance(item, PaperItem):
                title = f"{head.partition(', ')[0]}, {re.sub(r'(?=[0-9])', ' ', name.title(), count=1)}"
                by_name[f"{path.stem.partition('_')[0]}:{name}"] = dataclasses.replace(
                    item, title=title, module=path.stem, shows=item.shows or shows.rstrip(".")
                )
    return dict(sorted(by_name.items(), key=lambda named: _reading_order(named[0])))


def _reading_order(name: str) -> tuple[str, bool, int, str]:
    """The sorting key of an item's name, such as "dpfpl:table2": paper, tables before figures, number."""
    paper, _, item = name.partition(":")
    number = re.search(r"\d+", item)
    return paper, not item.startswith("table"), int(number[0]) if number else 0, item


def find(name: str) -> PaperItem:
    """The item of that name. InputError, with a list of all names: there is none."""
    if name not in items():
        near = nearest(name, [*items(), *papers(), ALL])
        raise InputError(
            f"--paper {name}: no such table or figure{near}; there are {', '.join(items())}; of all of a paper give "
            f"{', '.join(papers())}, of all papers {ALL}"
        )
    return items()[name]


def papers() -> list[str]:
    """The names of the papers that have items, such as dpfpl."""
    return list(dict.fromkeys(name.partition(":")[0] for name in items()))


def matching(text: str) -> list[str]:
    """The names of the items that `text` selects, in their order: an item, all items of a paper, "all", or several of
    these, separated by commas. InputError: there is nothing of one of the names."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word != ALL and word not in papers():
            find(word)
    return [name for name in items() if {ALL, name, name.partition(":")[0]} & {*words}]
