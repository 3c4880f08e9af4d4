"""Descriptions of everything that results depend on; their hashes name the folders on disk.

A description holds settings, data by content, library versions, and a hash of all code that the modules doing the work
import (`fedaudit.machinery.closure`). So a new attack retrains nothing, a new report recomputes nothing, and after a
change of code no stale result is shown.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.closure import closure, source_file
from fedaudit.machinery.places import module_of
from fedaudit.machinery.store import key_of
from fedaudit.reports.section_files import section_files

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.pipeline.plan import Cell

NUMERIC_LIBRARIES = (
    "dp-accounting", "matplotlib", "numpy", "open_clip_torch", "peft", "pillow", "pyarrow", "safetensors",
    "scikit-learn", "scipy", "tokenizers", "torch", "torchvision", "transformers",
)  # fmt: skip
ANALYSIS_LIBRARIES = ("pandas",)
REPORT_LIBRARIES = ("jinja2", "matplotlib", "pandas")


def training(cell: Cell) -> dict[str, Any]:
    """Describe all that a training (or the transcript of somebody's own run) depends on, as a dict whose hash names its
    folder: keys setting, code, versions."""
    return {"setting": cell.setting, "code": _code(training_modules(cell)), "versions": versions(NUMERIC_LIBRARIES)}


def training_modules(cell: Cell) -> tuple[str, ...]:
    """Dotted names of the modules whose code, with all that they import, makes a training: loop, learner, method,
    task."""
    loop = "fedaudit.pipeline.trainings", f"fedaudit.trainers.{cell.plan.learner}"
    if not cell.trained_here:
        rule = (module_of("trainers", cell.variant.method),) if cell.variant else ()
        return *loop, *rule, "fedaudit.external.reading", "fedaudit.external.single"
    assert cell.variant is not None
    return *loop, module_of("trainers", cell.variant.method), module_of("tasks", cell.plan.task)


def bank(cell: Cell) -> dict[str, Any]:
    """Describe all that a cell's shadow models depend on, as a dict whose hash names their folder: the training's
    recipe without its seed, as the adversary has its own. The seed counts where only some clients take part in a round,
    as shadows copy the training's cohorts; all of the training counts where its recorded messages are used."""
    adversary, some = fields(cell.plan.adversary), cell.plan.per_round < cell.plan.clients
    return {
        "setting": {name: value for name, value in cell.setting.items() if name != "seed"},
        "shadows": {n: v for n, v in adversary.items() if n.startswith("shadow") or n == "trajectory"},
        "code": _code(bank_modules(cell)),
        "versions": versions(NUMERIC_LIBRARIES),
        **({"public_seed": cell.seed} if some else {}),
        **({"training": cell.training_key} if adversary["trajectory"] == "observed" else {}),
    }


def bank_modules(cell: Cell) -> tuple[str, ...]:
    """Modules whose code makes shadow models."""
    return *training_modules(cell), "fedaudit.pipeline.shadow_trainings", "fedaudit.attacks.settings"


QUESTIONS = "fedaudit.pipeline.questions"


def answers(cell: Cell) -> dict[str, Any]:
    """Describe all that the stored outputs of a training's models depend on, as a dict whose hash names their folder;
    no adversary and no attack is part of it."""
    return {"training": cell.training_key, "code": _code((*training_modules(cell), QUESTIONS))}


def bank_answers(cell: Cell) -> dict[str, Any]:
    """Describe all that the stored outputs of a cell's shadow models depend on, as a dict whose hash names their
    folder."""
    return {"bank": key_of(cell.bank_description), "code": _code((*bank_modules(cell), QUESTIONS))}


def analysis(cell: Cell) -> dict[str, Any]:
    """Describe all that a cell's findings depend on, as a dict whose hash names their folder: the training's key,
    parameters and order of the attacks, parameters of the audits, code and versions, and the adversary where attacks
    have shadow models."""
    plan = cell.plan
    adversary = {"adversary": fields(plan.adversary)} if plan.trained.shadows and plan.attacks else {}
    return {
        "training": cell.training_key,
        "attack": {name: fields(params) for name, params in plan.attacks.items()},
        "attacks": list(plan.attacks),  # their order names the primary scores
        **adversary,
        "audit": {name: fields(params) for name, params in plan.audits.items()},
        "code": _code(analysis_modules(cell)),
        "versions": versions(ANALYSIS_LIBRARIES),
    }


def analysis_modules(cell: Cell) -> tuple[str, ...]:
    """Dotted names of the modules whose code makes findings: training, attacks and audits."""
    attacks = (module_of("attacks", name) for name in cell.plan.attacks)
    audits = (module_of("audits", name) for name in cell.plan.audits)
    return *training_modules(cell), "fedaudit.pipeline.analysis", *attacks, *audits


Across = Mapping[str, "DataclassInstance"]  # parameters of audits that compare runs, by their names
NO_AUDITS: Across = MappingProxyType({})

# the modules that write pages
REPORT, PAPER, COMPARISON, TWO_REPORTS = (
    f"fedaudit.pipeline.{name}" for name in ("compute", "papers", "runs_on_disk", "two_reports")
)


def page(
    cells: Sequence[Cell], *, figure: str = "", across: Across = NO_AUDITS, accepted: Sequence[str] = (),
    show_records: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Describe all that a page depends on, as a dict whose hash names its folder: the report of some cells or, with
    `figure` (a module of reports/papers/), a paper's figure drawn from them. `across`: parameters of audits that
    compare runs, by name, `accepted`: checks of a recording whose doubts void nothing, `show_records`: whether single
    records of the user's own files are shown."""
    runs = [cell.analysis_key for cell in cells]
    about = page_of(runs, PAPER if figure else REPORT, figure=figure, across=across)
    about |= {"records": "shown"} if show_records else {}
    return about | ({"accepted": sorted(accepted)} if accepted else {})


def page_of(runs: Sequence[str], writer: str, *, figure: str = "", across: Across = NO_AUDITS) -> dict[str, Any]:
    """Describe all that a page of `runs` (keys of their analyses), which the module `writer` writes, depends on, as a
    dict whose hash names its folder."""
    from fedaudit import __version__

    comparing = {"across": {name: fields(params) for name, params in across.items()}} if across else {}
    return {
        "cells": list(runs),
        "code": _code(page_modules(writer, figure, across), templates(figure)),
        "versions": versions(REPORT_LIBRARIES) | {"fedaudit": __version__},
    } | comparing


def page_modules(writer: str = REPORT, figure: str = "", across: Iterable[str] = ()) -> tuple[str, ...]:
    """Dotted names of the modules whose code writes a page: the `writer`, all sections, audits that compare runs, a
    paper's figure."""
    parts = (f"fedaudit.reports.sections.{name}" for name in section_files())
    audits = (module_of("audits", name) for name in across)
    return writer, *parts, *audits, *((f"fedaudit.reports.papers.{figure}",) if figure else ())


def templates(figure: str = "") -> dict[str, Path]:
    """Files of reports/ that a page is made of and that are no code, by name: HTML templates, papers' printed
    numbers."""
    reports = source_file("fedaudit.reports")
    assert reports is not None
    patterns = ("*.html", "papers/*.csv", *(("papers/*.html",) if figure else ()))
    paths = (path for pattern in patterns for path in reports.parent.glob(pattern))
    return {f"fedaudit/reports/{path.relative_to(reports.parent).as_posix()}": path for path in paths}


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Installed versions by library, without a build's local suffix (such as +cpu)."""
    return {name: _version(name) for name in libraries}


@functools.cache
def _version(library: str) -> str:
    return importlib.metadata.version(library).partition("+")[0]


def fields(params: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass as JSON takes them: inf and nan become strings."""
    plain = dataclasses.asdict(params)
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def _code(modules: Sequence[str], beside: Mapping[str, Path] = MappingProxyType({})) -> str:
    """A hash of all files that the modules import, directly or not, and of the files `beside`."""
    return key_of({name: _sha256(path) for name, path in {**closure(*modules), **beside}.items()})


@functools.cache
def _sha256(path: Path) -> str:
    """The hash of a file's content when this process first read it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
