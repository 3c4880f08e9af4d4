"""A paper's figure over several tasks from one command: `--paper dpfpl:figure3`. Imports nothing heavy.

Each entry names the commands whose audits the figure is made of, and the module of reports/papers/ that draws it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.plan import Plan


@dataclass(frozen=True)
class Figure:
    """A figure: what each of its panels' tasks is called, with the words that ask for it."""

    module: str
    preset: str
    tasks: Mapping[str, Sequence[str]]


FIGURES = {
    "dpfpl:figure3": Figure(
        "dpfpl_figure3",
        "dpfpl-figure3",
        {
            "symbols in relief": ("--task=glyphs", "--domain=relief"),
        },
    )
}


def find(name: str) -> Figure:
    """The figure of that name. InputError names those that there are."""
    if name not in FIGURES:
        raise InputError(f"--paper {name}: no such figure{nearest(name, FIGURES)}; there are {', '.join(FIGURES)}")
    return FIGURES[name]


def draw(name: str, plans: Mapping[str, Plan], progress: Progress) -> Path:
    """Run the plans of a figure, one per task, and write its page; returns where that is."""
    from fedaudit.pipeline.page import read_evidence
    from fedaudit.pipeline.run import run

    reports = {}
    for task, plan in plans.items():
        progress.say(f"{name}, {task}")
        reports[task] = run(plan, progress).report
    evidence: dict[str, Any] = {task: [read_evidence(cell) for cell in plan.cells] for task, plan in plans.items()}
    key = key_of(keys.page([cell for plan in plans.values() for cell in plan.cells], figure=find(name).module))
    out = next(iter(plans.values())).out
    folder = claim(out / "papers" / f"{name.replace(':', '-')}-{key[:8]}")
    with folder.lock(progress.say):
        importlib.import_module(f"reports.papers.{find(name).module}").build(evidence, folder.write)
    return folder.path / "index.html"
