"""What a command asks for, and the two keys that name its results. Imports nothing heavy.

The training key (task, backbone, method, parameters, seed, code, library versions) names a transcript; the analysis key adds attack and audit. A new
attack retrains nothing, a new report recomputes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit import plugins
from fedaudit.backbones.clipsource import ClipSource
from fedaudit.backbones.resolve import display_name, weights_hash
from fedaudit.ownrun import OwnRun
from fedaudit.plugins import Plugin
from fedaudit.store import fingerprint, key_of

if TYPE_CHECKING:
    from attacks.settings import Adversary
    from fedaudit.tasks.canaries import Canaries

NUMERIC_LIBRARIES = (
    "dp-accounting", "matplotlib", "numpy", "open_clip_torch", "peft", "pillow", "safetensors", "scikit-learn", "scipy",
    "tokenizers", "torch", "torchvision", "transformers",
)  # fmt: skip
REPORT_LIBRARIES = ("jinja2", "matplotlib", "pandas")


@dataclass(frozen=True)
class Variant:
    """A method, its parameters, and how it is made private if it can be."""

    method: str
    params: Any
    privacy: Any = None

    @property
    def plugin(self) -> Plugin:
        return plugins.plugins("method")[self.method]


@dataclass(frozen=True)
class Plan:
    """One command, checked: which cells to audit and how."""

    methods: Mapping[str, Variant | None]  # by what tables call it; None for somebody's own run
    settings: Any  # the learner's Settings
    task: str
    task_params: Any
    attacks: Mapping[str, Any]  # the parameters of every attack, by its name; empty: utility and privacy are reported
    adversary: Adversary  # whom attacks on prompts attack, and with what
    canaries: Canaries
    audits: Mapping[str, Any]  # the parameters of every audit that applies, by its name
    rounds: int
    clients: int
    per_round: int
    seed: int
    seeds: int
    backbone: Path | ClipSource
    backbone_code: str  # the user's own file for a model that needs one, or empty
    dtype: str
    device: str
    threads: int
    out: Path
    own: OwnRun | None = None  # audited instead of a training of ours

    @property
    def attack(self) -> str | None:
        """The attacks as one word."""
        return ",".join(self.attacks) or None

    @property
    def cells(self) -> list[Cell]:
        """Every method with every seed, independent of each other."""
        return [Cell(self, method, self.seed + i) for method in self.methods for i in range(self.seeds)]

    @property
    def report_folder(self) -> Path:
        key = key_of({"cells": [c.analysis_key for c in self.cells], **report_code()})
        return (
            self.out
            / "reports"
            / f"{_slug('-'.join(self._short_names))[:80]}-{_shown(self.attacks) or self.task}-{key[:8]}"
        )

    @property
    def _short_names(self) -> list[str]:
        """What the report's folder is called by: a sweep by its methods."""
        few = len(self.methods) <= 3
        return list(dict.fromkeys(label if few else label.partition(":")[0] for label in self.methods))

    @property
    def learner(self) -> str:
        """The helper module of trainers/ that holds what the clients of every method here train."""
        return next((v.plugin.learner for v in self.methods.values() if v is not None), None) or "lora"


@dataclass(frozen=True)
class Cell:
    """One training and its audit. The data are drawn from the plan's seed, the training's randomness from this one."""

    plan: Plan
    method: str
    seed: int

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """Everything that the training's numbers depend on but code and versions."""
        p, variant = self.plan, self.variant
        if isinstance(p.backbone, ClipSource):
            backbone = {"name": p.backbone.name, "sha256": p.backbone.sha256}
        else:
            backbone = {"name": display_name(p.backbone), "sha256": weights_hash(p.backbone), "dtype": p.dtype}
        if p.backbone_code:
            backbone["code"] = fingerprint([Path(p.backbone_code)], root=Path(p.backbone_code).parent)
        shared = {
            "backbone": backbone,
            "training": _fields(p.settings),
            "schedule": {"rounds": p.rounds, "clients": p.clients, "per_round": p.per_round},
            "seed": self.seed,
            "device": p.device,
        }
        if variant is None:
            assert p.own is not None
            return {"task": {"name": p.task}, "method": {"name": self.method}, "run": {"sha256": p.own.sha256}} | shared
        return {
            "task": {"name": p.task, **_fields(p.task_params), **_data_files(p.task_params)},
            "data_seed": p.seed,
            "method": {"name": variant.method, **_fields(variant.params)},
            **({"privacy": _fields(variant.privacy)} if variant.privacy else {}),
            **({"canaries": _fields(p.canaries)} if p.canaries.canaries else {}),
        } | shared

    @functools.cached_property
    def training_description(self) -> dict[str, Any]:
        code = [_code("fedaudit.tasks", "*.py"), _code("fedaudit.backbones", "[!p]*.py")]  # not the recipes
        if self.variant is None:
            code += [_code("fedaudit", "own*.py"), _code("trainers", "base.py", "exams.py", "lora.py")]
        else:
            own = f"{self.plan.learner}.py", f"{self.variant.method}.py"
            code.append(_code("trainers", "base.py", "exams.py", "protection.py", *own))
            code += [_code("fedaudit.privacy", "*.py")] if self.variant.privacy else []
        return {"setting": self.setting, "code": code, "versions": versions(NUMERIC_LIBRARIES)}

    @property
    def training_key(self) -> str:
        return key_of(self.training_description)

    @functools.cached_property
    def analysis_description(self) -> dict[str, Any]:
        return {
            "training": self.training_key,
            "attack": {name: _fields(params) for name, params in self.plan.attacks.items()},
            **(
                {"adversary": _fields(self.plan.adversary)}
                if self.plan.learner == "prompts" and self.plan.attacks
                else {}
            ),
            "audit": {name: _fields(params) for name, params in self.plan.audits.items()},
            "code": [_code("attacks", "*.py"), _code("audits", "*.py")],
        }

    @property
    def analysis_key(self) -> str:
        return key_of(self.analysis_description)

    @functools.cached_property
    def bank_description(self) -> dict[str, Any]:
        """What shadow models depend on: the recipe of the training, not its seed; that is the adversary's own."""
        own = self.training_description
        whose = {"training": self.training_key} if self.plan.adversary.trajectory == "observed" else {}
        return (
            own
            | whose
            | {
                "setting": {name: value for name, value in self.setting.items() if name != "seed"},
                "shadows": {
                    n: v for n, v in _fields(self.plan.adversary).items() if n.startswith("shadow") or n == "trajectory"
                },
                "code": [*own["code"], _code("attacks", "bank.py")],
            }
        )

    @property
    def bank_folder(self) -> Path:
        return self.plan.out / "shadows" / f"{_slug(self.method)}-{key_of(self.bank_description)}"

    @property
    def training_folder(self) -> Path:
        return self.plan.out / "runs" / f"{_slug(self.method)}-seed{self.seed}-{self.training_key}"

    @property
    def analysis_folder(self) -> Path:
        name = f"{_slug(self.method)}-seed{self.seed}-{_shown(self.plan.attacks) or 'utility'}-{self.analysis_key}"
        return self.plan.out / "analyses" / name

    @property
    def variant(self) -> Variant | None:
        return self.plan.methods[self.method]


def report_code() -> dict[str, Any]:
    """What a report's pages depend on beside their evidence."""
    return {"code": _code("reports", "*.py", "*.html", "papers/*.*"), "versions": versions(REPORT_LIBRARIES)}


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Installed versions; a build's local suffix (+cpu) is dropped."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in libraries}


_LISTS = (
    "*.json",
    "*.parquet",
    "*.txt",
    "*.csv",
    "*.mat",
    "*_batch*",
    "train",
    "test",
)  # what lists records, not pictures


def _shown(attacks: Iterable[str]) -> str:
    """Attacks as part of a folder's name."""
    names = list(attacks)
    return "-".join(names) if len(names) <= 3 else f"{len(names)}-attacks"


def _slug(text: str) -> str:
    """A label as part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


def _data_files(params: Any) -> dict[str, Any]:
    """For each folder of data that a task reads (a field `..._root`): a key over names, sizes and times of the files that list records."""
    found = {}
    for field in dataclasses.fields(params):
        root = getattr(params, field.name)
        if field.name.endswith("_root") and root:
            files = [f for pattern in _LISTS for depth in ("", "*/", "*/*/") for f in Path(root).glob(depth + pattern)]
            stats = {
                f.relative_to(root).as_posix(): [f.stat().st_size, f.stat().st_mtime_ns] for f in files if f.is_file()
            }
            found[field.name] = key_of(stats)
    return found


def _fields(params: Any) -> dict[str, Any]:
    """The fields of a dataclass in JSON's types: an infinite order becomes "inf"."""
    plain = dataclasses.asdict(params)
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


@functools.cache
def _code(package: str, *patterns: str) -> str:
    """Fingerprint of a package's source files, as they were when the process first asked."""
    root = plugins.package_folder(package)
    return fingerprint([path for pattern in patterns for path in root.glob(pattern)], root=root)
