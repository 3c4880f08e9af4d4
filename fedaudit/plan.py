"""What a command asks for, and the two keys that name its results. Imports nothing heavy.

The training key (task, backbone, method, parameters, seed, code, library versions) names a transcript; the analysis key adds attack and audit. A new
attack retrains nothing, a new report recomputes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import plugins
from fedaudit.plugins import Plugin
from fedaudit.store import fingerprint, key_of

NUMERIC_LIBRARIES = ("numpy", "peft", "safetensors", "scikit-learn", "scipy", "tokenizers", "torch", "transformers")
REPORT_LIBRARIES = ("jinja2", "matplotlib", "pandas")


@dataclass(frozen=True)
class Plan:
    """One command, checked: which cells to audit and how."""

    methods: Mapping[str, Any]  # name to its Params
    settings: Any  # the learner's Settings
    task: str
    task_params: Any
    attack: str
    attack_params: Any
    audit_params: Any
    rounds: int
    clients: int
    per_round: int
    seed: int
    seeds: int
    backbone: Path
    device: str
    threads: int
    out: Path

    @property
    def cells(self) -> list[Cell]:
        """Every method with every seed, independent of each other."""
        return [Cell(self, method, self.seed + i) for method in self.methods for i in range(self.seeds)]

    @property
    def report_folder(self) -> Path:
        code = _code("reports", "*.py", "*.html")
        key = key_of(
            {"cells": [c.analysis_key for c in self.cells], "code": code, "versions": versions(REPORT_LIBRARIES)}
        )
        return self.out / "reports" / f"{'-'.join(self.methods)}-{self.attack}-{key[:8]}"


@dataclass(frozen=True)
class Cell:
    """One training and its audit. The data are drawn from the plan's seed, the training's randomness from this one."""

    plan: Plan
    method: str
    seed: int

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """Everything that the training's numbers depend on but code and versions."""
        p = self.plan
        return {
            "task": {"name": p.task, **_fields(p.task_params)},
            "data_seed": p.seed,
            "backbone": {"name": p.backbone.name, "sha256": backbone_hash(p.backbone)},
            "method": {"name": self.method, **_fields(p.methods[self.method])},
            "training": _fields(p.settings),
            "schedule": {"rounds": p.rounds, "clients": p.clients, "per_round": p.per_round},
            "seed": self.seed,
            "device": p.device,
        }

    @functools.cached_property
    def training_description(self) -> dict[str, Any]:
        code = [
            _code("trainers", "base.py", f"{self.plugin.learner}.py", f"{self.method}.py"),
            _code("fedaudit.tasks", "*.py"),
            _code("fedaudit.backbones", "vlm.py"),
        ]
        return {"setting": self.setting, "code": code, "versions": versions(NUMERIC_LIBRARIES)}

    @property
    def training_key(self) -> str:
        return key_of(self.training_description)

    @functools.cached_property
    def analysis_description(self) -> dict[str, Any]:
        return {
            "training": self.training_key,
            "attack": {"name": self.plan.attack, **_fields(self.plan.attack_params)},
            "audit": _fields(self.plan.audit_params),
            "code": [_code("attacks", "*.py"), _code("audits", "*.py")],
        }

    @property
    def analysis_key(self) -> str:
        return key_of(self.analysis_description)

    @property
    def training_folder(self) -> Path:
        return self.plan.out / "runs" / f"{self.method}-seed{self.seed}-{self.training_key}"

    @property
    def analysis_folder(self) -> Path:
        return self.plan.out / "analyses" / f"{self.method}-seed{self.seed}-{self.plan.attack}-{self.analysis_key}"

    @property
    def plugin(self) -> Plugin:
        return plugins.plugins("method")[self.method]


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Installed versions; a build's local suffix (+cpu) is dropped."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in libraries}


@functools.cache
def backbone_hash(path: Path) -> str:
    """SHA-256 over a model folder's weights and configuration."""
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*.json")]):
        if file.name != "training.json":  # how it was made does not change what it is
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _fields(params: Any) -> dict[str, Any]:
    """The fields of a dataclass in JSON's types: an infinite order becomes "inf"."""
    plain = dataclasses.asdict(params)
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


@functools.cache
def _code(package: str, *patterns: str) -> str:
    """Fingerprint of a package's source files, as they were when the process first asked."""
    root = plugins.package_folder(package)
    return fingerprint([path for pattern in patterns for path in root.glob(pattern)], root=root)
