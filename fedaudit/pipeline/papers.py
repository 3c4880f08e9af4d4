"""A paper's figure over several tasks from one command: `--paper dpfpl:figure3`. Imports nothing heavy.

A figure is a file of reports/papers/ with the literals `PRESET` and `TASKS`, what each of its panels is called and the
words that ask for it, and a function `build(evidence, write)`. Its key is its name: dpfpl_figure3.py is dpfpl:figure3.
One that is computed from nothing that was trained has no task, and no preset.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.plan import Plan

if TYPE_CHECKING:
    from reports.report import Evidence


@dataclass(frozen=True)
class Figure:
    """A figure: its module, and what each of its panels' tasks is called, with the words that ask for it."""

    module: str
    summary: str
    preset: str | None
    tasks: Mapping[str, Sequence[str]]


@functools.cache
def figures() -> dict[str, Figure]:
    """Every figure by its key."""
    found = {}
    for path in sorted(plugins.package_folder("reports.papers").glob("*.py")):
        if (tasks := plugins.literal(path, "TASKS")) is not None:
            figure = Figure(path.stem, plugins.summary(path), plugins.literal(path, "PRESET"), tasks)
            found[path.stem.replace("_", ":", 1)] = figure
    return found


def find(name: str) -> Figure:
    """The figure of that name. InputError names those that there are."""
    if name not in figures():
        raise InputError(f"--paper {name}: no such figure{nearest(name, figures())}; there are {', '.join(figures())}")
    return figures()[name]


def draw(name: str, plans: Mapping[str, Plan], out: Path, progress: Progress) -> Path:
    """Run the plans of a figure, one per task, and write its page under `out`; returns where that is."""
    from fedaudit.pipeline.page import read_evidence
    from fedaudit.pipeline.run import run

    reports = {}
    for task, plan in plans.items():
        progress.say(f"{name}, {task}")
        reports[task] = run(plan, progress).report
    evidence: dict[str, list[Evidence]] = {t: [read_evidence(cell) for cell in p.cells] for t, p in plans.items()}
    key = key_of(keys.page([cell for plan in plans.values() for cell in plan.cells], figure=find(name).module))
    folder = claim(out / "papers" / f"{name.replace(':', '-')}-{key[:8]}")
    with folder.lock(progress.say):
        importlib.import_module(f"reports.papers.{find(name).module}").build(evidence, folder.write)
    return folder.path / "index.html"
