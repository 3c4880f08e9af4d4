"""The picture of a table of a paper: the findings that its page is made of, kept, and the page made of them anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from docs.pictures.picture import HERE, Picture
from fedaudit.command import paper
from fedaudit.command.cli import read_command
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline import papers
from fedaudit.pipeline.page import read_evidence, setting_of
from fedaudit.pipeline.plan import Plan
from fedaudit.reports import paper_items
from fedaudit.reports.report import Evidence, flatten_setting

EVIDENCE = "evidence.json"


@dataclass(frozen=True)
class TablePicture(Picture):
    """Of a table that findings alone make: `command` is `--paper` and its name."""

    @property
    def item(self) -> str:
        """The name of the table, as dp2fl:table1."""
        return self.command[1]

    def plans(self, *more: str) -> Mapping[str, Plan]:
        """By task what the command runs, on whatever machine, with `more` words behind it."""
        words = [*self.command, "--device", "cpu", *more]
        asked = paper.read(words, lambda own, scale: read_command(own, scale).plan)
        assert asked is not None
        plans = asked.items[self.item]
        assert not isinstance(plans, InputError)
        return plans

    def page(self) -> bytes:
        """The page of the findings, by the code as it is now. InputError if that code needs others."""
        files: dict[str, bytes] = {}
        try:
            paper_items.find(self.item).build(self._kept(), files.__setitem__)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.kept.path}: no page can be made of it any more ({error})") from error
        return files["index.html"]

    def record(self, out: Path, progress: Progress) -> None:
        """Run the command as far as its results are not in `out`, and keep the findings that its page is made of."""
        plans = self.plans("--out", str(out))
        papers.draw(self.item, plans, out, progress)
        found = {
            task: [asdict(replace(read_evidence(cell), tables={})) for cell in plan.cells]
            for task, plan in plans.items()
        }
        Folder(self.kept.path).write_json(EVIDENCE, found)

    def moves(self) -> list[str]:
        """The settings that the command has now, where they are not those of the findings."""
        found, known = [], self._kept()
        for task, plan in self.plans().items():
            if len(known.get(task, [])) != len(plan.cells):
                return [f"{task}: not all of its runs are kept"]
            for cell, kept in zip(plan.cells, known[task], strict=True):
                now = flatten_setting(setting_of(cell))
                before = flatten_setting({name: kept.setting.get(name, {}) for name in setting_of(cell)})
                found += [
                    f"{cell.method}: {name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
                    for name in before | now
                    if before.get(name) != now.get(name)
                ]
        return list(dict.fromkeys(found))

    def _kept(self) -> dict[str, list[Evidence]]:
        found = self.kept.read_json(EVIDENCE)
        return {task: [Evidence(**cell) for cell in cells] for task, cells in found.items()}


TABLES = (TablePicture("paper-table", ("--paper", "dp2fl:table1"), height=1360, home=HERE),)
