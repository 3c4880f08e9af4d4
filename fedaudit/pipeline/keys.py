"""The keys that name what is on disk: of a training, of shadow models, of an analysis, of a page.

Each is a hash over everything that its numbers come from: settings, data by content, library versions, and the code
that is reached from where the work begins (`fedaudit.machinery.closure`). A new attack retrains nothing, a new report
recomputes nothing, and no change of code leaves a stale page.
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
from fedaudit.machinery.store import key_of
from reports.section_files import section_files

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.pipeline.plan import Cell

NUMERIC_LIBRARIES = (
    "dp-accounting", "matplotlib", "numpy", "open_clip_torch", "peft", "pillow", "pyarrow", "safetensors",
    "scikit-learn",
    "scipy", "tokenizers", "torch", "torchvision", "transformers",
)  # fmt: skip
ANALYSIS_LIBRARIES = ("pandas",)
REPORT_LIBRARIES = ("jinja2", "matplotlib", "pandas")


def training(cell: Cell) -> dict[str, Any]:
    """What a training depends on; of somebody's own run, what its transcript does."""
    return {"setting": cell.setting, "code": _code(training_modules(cell)), "versions": versions(NUMERIC_LIBRARIES)}


def training_modules(cell: Cell) -> tuple[str, ...]:
    """Where training begins: the loop, what the clients train, the method and the task."""
    if cell.variant is None:
        return "fedaudit.pipeline.trainings", f"trainers.{cell.plan.learner}", "fedaudit.external.run"
    return (
        "fedaudit.pipeline.trainings",
        f"trainers.{cell.plan.learner}",
        f"trainers.{cell.variant.method}",
        f"fedaudit.tasks.{cell.plan.task}",
    )


def bank(cell: Cell) -> dict[str, Any]:
    """What shadow models depend on: the recipe of the training, not its seed; that is the adversary's own.

    Where only some clients take part in a round, they do so as in that training.
    """
    adversary, some = fields(cell.plan.adversary), cell.plan.per_round < cell.plan.clients
    observed = {"training": cell.training_key} if adversary["trajectory"] == "observed" else {}
    return {
        "setting": {name: value for name, value in cell.setting.items() if name != "seed"},
        "shadows": {n: v for n, v in adversary.items() if n.startswith("shadow") or n == "trajectory"},
        "code": _code(bank_modules(cell)),
        "versions": versions(NUMERIC_LIBRARIES),
        **({"public_seed": cell.seed} if some else {}),
    } | observed


def bank_modules(cell: Cell) -> tuple[str, ...]:
    """Where the training of shadow models begins."""
    return *training_modules(cell), "fedaudit.pipeline.shadow_trainings", "attacks.settings"


ASKING = "fedaudit.pipeline.asking"


def answers(cell: Cell) -> dict[str, Any]:
    """What the answers of the models of a training depend on: not on who asks, nor what for."""
    return {"training": cell.training_key, "code": _code((*training_modules(cell), ASKING))}


def bank_answers(cell: Cell) -> dict[str, Any]:
    """The same of shadow models."""
    return {"bank": key_of(cell.bank_description), "code": _code((*bank_modules(cell), ASKING))}


def analysis(cell: Cell) -> dict[str, Any]:
    """What findings depend on beside the training."""
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
    """Where attacks and audits begin."""
    attacks = (f"attacks.{name}" for name in cell.plan.attacks)
    audits = (f"audits.{name}" for name in cell.plan.audits)
    return *training_modules(cell), "fedaudit.pipeline.analysis", *attacks, *audits


Across = Mapping[str, "DataclassInstance"]  # parameters of audits that compare runs, by their names


REPORT, PAPER, COMPARISON = (f"fedaudit.pipeline.{name}" for name in ("compute", "papers", "runs_on_disk"))  # writers


def page(cells: Sequence[Cell], *, figure: str = "", across: Across = MappingProxyType({})) -> dict[str, Any]:
    """What a report depends on, or the page of a paper's figure that a module of reports/papers/ draws."""
    runs = [cell.analysis_key for cell in cells]
    return page_of(runs, PAPER if figure else REPORT, figure=figure, across=across)


def page_of(
    runs: Sequence[str], writer: str, *, figure: str = "", across: Across = MappingProxyType({})
) -> dict[str, Any]:
    """The same of runs by the keys of their analyses, and of the module that writes the page."""
    from fedaudit import __version__

    asked = {"across": {name: fields(params) for name, params in across.items()}} if across else {}
    return {
        "cells": list(runs),
        "code": _code(page_modules(writer, figure, across), templates(figure)),
        "versions": versions(REPORT_LIBRARIES) | {"fedaudit": __version__},
    } | asked


def page_modules(writer: str = REPORT, figure: str = "", across: Iterable[str] = ()) -> tuple[str, ...]:
    """Where the writing of a page begins."""
    parts = (f"reports.sections.{name}" for name in section_files())
    audits = (f"audits.{name}" for name in across)
    return writer, *parts, *audits, *((f"reports.papers.{figure}",) if figure else ())


def templates(figure: str = "") -> dict[str, Path]:
    """What a page is filled into, and the printed numbers beside ours: files of reports/ that are no code, by name."""
    reports = source_file("reports")
    assert reports is not None
    patterns = ("*.html", "papers/*.csv", *(("papers/*.html",) if figure else ()))
    found = (path for pattern in patterns for path in reports.parent.glob(pattern))
    return {f"reports/{path.relative_to(reports.parent).as_posix()}": path for path in found}


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Installed versions; a build's local suffix (+cpu) is dropped."""
    return {name: _version(name) for name in libraries}


@functools.cache
def _version(library: str) -> str:
    return importlib.metadata.version(library).partition("+")[0]


def fields(params: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass in JSON's types: an infinite order becomes "inf"."""
    plain = dataclasses.asdict(params)
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def _code(modules: Sequence[str], beside: Mapping[str, Path] = MappingProxyType({})) -> str:
    """Fingerprint of the files that modules reach, and of what lies beside them."""
    return key_of({name: _sha256(path) for name, path in {**closure(*modules), **beside}.items()})


@functools.cache
def _sha256(path: Path) -> str:
    """The content of a source file as it was when the process first asked."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
