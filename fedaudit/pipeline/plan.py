"""What a command asks for, and the folders in which its results lie. Imports nothing heavy."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.facts import ATTACKS
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.resolve import display_name, weights_hash
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.store import fingerprint, inside, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.data import ROOT, Data
from trainers.learners import METHODS, LearnerFacts, MethodFacts, facts, trained_by

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from attacks.settings import Adversary
    from audits.findings import Names
    from fedaudit.external.run import OwnRun
    from fedaudit.privacy.settings import Privacy
    from fedaudit.tasks.canaries import Canaries

TARGETS = 2  # clients that are attacked where each takes its own shadow models


@dataclass(frozen=True)
class Variant:
    """A method, its parameters, and how it is made private if it can be."""

    method: str
    params: DataclassInstance
    privacy: Privacy | None = None

    @property
    def plugin(self) -> Plugin[MethodFacts]:
        return METHODS[self.method]


@dataclass(frozen=True, eq=False)
class Plan:
    """One command, checked: which cells to audit and how."""

    methods: Mapping[str, Variant | None]  # by what tables call it; None for somebody's own run
    settings: DataclassInstance  # the learner's Settings
    task: str
    task_params: DataclassInstance | None  # None for somebody's own run
    attacks: Mapping[str, DataclassInstance]  # parameters by name; empty: utility and privacy are reported
    adversary: Adversary  # whom it attacks, and with what
    canaries: Canaries
    audits: Mapping[str, DataclassInstance]  # the parameters of every audit that applies, by its name
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
    newcomers: int = 0  # the last so many clients, which come after the last round
    # the parameters of the audits that compare all of its cells, by name; they belong to the page
    across: Mapping[str, DataclassInstance] = field(default_factory=dict)

    @property
    def attack(self) -> str | None:
        """The attacks as one word."""
        return ",".join(self.attacks) or None

    @property
    def confidence(self) -> float:
        """Of all intervals: a parameter of the membership audit."""
        return float(vars(self.audits["membership"])["confidence"])

    @property
    def canary_holders(self) -> int:
        """The clients that hold canaries are the first ones: those that --targets asks for, or all."""
        return min(self.adversary.targets or self.present, self.present)

    @property
    def inserted(self) -> int | None:
        """How many canaries a coin inserted or left out; None: the run was trained elsewhere, and no coin can be
        flipped any more."""
        return None if self.own else self.canaries.canaries

    @property
    def present(self) -> int:
        """The clients that can take part in a round."""
        return self.clients - self.newcomers

    @property
    def workers(self) -> int:
        """How many processes compute: several would only wait for one GPU."""
        return self.threads if self.device == "cpu" else 1

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """Every method with every seed, independent of each other."""
        return [Cell(self, method, self.seed + i) for method in self.methods for i in range(self.seeds)]

    @functools.cached_property
    def data(self) -> Data:
        """Its federation, and what that is by content."""
        return Data(self)

    @functools.cached_property
    def report_folder(self) -> Path:
        name = f"{_slug('-'.join(self._short_names))[:80]}-{_shown(self.attacks) or self.task}"
        return self.out / "reports" / f"{name}-{key_of(keys.page(self.cells, across=self.across))[:8]}"

    @property
    def _short_names(self) -> list[str]:
        """What the report's folder is called by: a sweep by its methods."""
        few = len(self.methods) <= 3
        return list(dict.fromkeys(label if few else label.partition(":")[0] for label in self.methods))

    @property
    def learner(self) -> str:
        """The helper module of trainers/ that holds what the clients of every method here train."""
        if self.own is not None:
            return self.own.learner
        learner = trained_by(v.plugin.facts for v in self.methods.values() if v is not None)
        assert learner is not None
        return learner

    @property
    def trained(self) -> LearnerFacts:
        """What there is to know of it."""
        return facts(self.learner)


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
            backbone = {
                "name": p.backbone.name, "activation": p.backbone.activation, "sha256": p.backbone.sha256
            }  # fmt: skip
        else:
            backbone = {"name": display_name(p.backbone), "sha256": weights_hash(p.backbone), "dtype": p.dtype}
        if p.backbone_code:
            backbone["code"] = fingerprint([Path(p.backbone_code)], root=Path(p.backbone_code).parent)
        later = {"newcomers": p.newcomers} if p.newcomers else {}
        shared = {
            "backbone": backbone,
            "training": keys.fields(p.settings),
            "schedule": {"rounds": p.rounds, "clients": p.clients, "per_round": p.per_round} | later,
            "seed": self.seed,
            "device": p.device,
        }
        if variant is None:
            assert p.own is not None
            return {"task": {"name": p.task}, "method": {"name": self.method}, "run": {"sha256": p.own.sha256}} | shared
        return {
            "task": {"name": p.task, **self._task_fields},
            "data_seed": p.seed,
            "method": {"name": variant.method, **keys.fields(variant.params)},
            **({"privacy": keys.fields(variant.privacy)} if variant.privacy else {}),
            **({"canaries": keys.fields(p.canaries) | self._holders} if p.canaries.canaries else {}),
        } | shared

    @property
    def _holders(self) -> dict[str, Any]:
        """Of the canaries of the targets: how many clients hold them."""
        return {"holders": self.plan.canary_holders} if self.plan.adversary.targets else {}

    @property
    def _task_fields(self) -> dict[str, Any]:
        """Data count by content: where they lie does not matter."""
        assert self.plan.task_params is not None
        params = keys.fields(self.plan.task_params)
        if (digest := self.plan.data.digest) is None:
            return params
        return {name: value for name, value in params.items() if not name.endswith(ROOT)} | {"data": digest}

    @functools.cached_property
    def training_description(self) -> dict[str, Any]:
        return keys.training(self)

    @functools.cached_property
    def training_key(self) -> str:
        return key_of(self.training_description)

    @functools.cached_property
    def analysis_description(self) -> dict[str, Any]:
        return keys.analysis(self)

    @functools.cached_property
    def analysis_key(self) -> str:
        return key_of(self.analysis_description)

    @functools.cached_property
    def bank_description(self) -> dict[str, Any]:
        return keys.bank(self)

    @property
    def names(self) -> Names:
        """What every finding about this cell is of."""
        return {"run": self.analysis_key, "method": self.method, "task": self.plan.task, "seed": self.seed}

    @property
    def bank_folder(self) -> Path:
        return self.plan.out / "shadows" / f"{_slug(self.method)}-{key_of(self.bank_description)}"

    @property
    def answers_folder(self) -> Path:
        """What was asked of the training's own models, by whomever."""
        return self.plan.out / "answers" / f"{_slug(self.method)}-seed{self.seed}-{key_of(keys.answers(self))}"

    @property
    def bank_answers_folder(self) -> Path:
        """What was asked of the shadow models and of the simulated federations."""
        return self.plan.out / "answers" / f"{_slug(self.method)}-shadows-{key_of(keys.bank_answers(self))}"

    @property
    def training_folder(self) -> Path:
        return self.plan.out / "runs" / f"{_slug(self.method)}-seed{self.seed}-{self.training_key}"

    @property
    def analysis_folder(self) -> Path:
        name = f"{_slug(self.method)}-seed{self.seed}-{_shown(self.plan.attacks) or 'utility'}-{self.analysis_key}"
        return self.plan.out / "analyses" / name

    @property
    def shadow_folders(self) -> list[Path]:
        """The folders on disk that hold what the shadow models of the targets are; cells with more targets share the
        bank."""
        if not self.needs_shadows:
            return []
        own = tuple(f"client-{client:03d}-" for client in self.targets)
        places = (place for place in inside(self.bank_folder) if place.is_dir())
        return sorted(p for p in places if p.name.startswith(own) or not p.name.startswith("client-"))

    @property
    def folders(self) -> list[Path]:
        """The folders on disk that the findings came from."""
        places = (self.training_folder, *self.shadow_folders, self.analysis_folder)
        return [place for place in places if place.is_dir()]

    @property
    def needs_shadows(self) -> bool:
        """Whether shadow models are trained."""
        return any(ATTACKS[name].facts.shadows for name in self.plan.attacks)

    @property
    def targets(self) -> list[int]:
        """The clients that are attacked: the first ones; the partition has given them their records at random."""
        usual = TARGETS if self.needs_shadows else self.plan.present
        return list(range(min(self.plan.adversary.targets or usual, self.plan.present)))

    @property
    def threat_models(self) -> tuple[str, ...]:
        """The adversaries that there are of its method."""
        learner = self.plan.trained
        return learner.adversaries(self.variant.plugin.facts) if self.variant else learner.threat_models

    @property
    def variant(self) -> Variant | None:
        return self.plan.methods[self.method]


def _shown(attacks: Iterable[str]) -> str:
    """Attacks as part of a folder's name."""
    names = list(attacks)
    return "-".join(names) if len(names) <= 3 else f"{len(names)}-attacks"


def _slug(text: str) -> str:
    """A label as part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"
