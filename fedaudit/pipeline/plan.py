"""A checked command as a plan of trainings and audits, and the folders in which their results lie. Imports nothing
heavy."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.resolve import display_name, weights_hash
from fedaudit.machinery import user_files
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.store import inside, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.data import ROOT, Data
from fedaudit.tasks.facts import TASKS
from fedaudit.terms.threat_models import ACTIVE_SERVER
from fedaudit.trainers.learners import METHODS, LearnerFacts, MethodFacts, facts, trained_by

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.attacks.settings import Adversary
    from fedaudit.audits.findings import Names
    from fedaudit.external.run import OwnRun
    from fedaudit.privacy.settings import Privacy
    from fedaudit.tasks.canaries import Canaries

TARGETS = 2  # clients that are attacked by default if shadow models are trained for each


@dataclass(frozen=True)
class Variant:
    """A method with its parameters."""

    method: str
    params: DataclassInstance
    privacy: Privacy | None = None  # how noise is added; None: this method cannot be noised

    @property
    def plugin(self) -> Plugin[MethodFacts]:
        return METHODS[self.method]


@dataclass(frozen=True, eq=False)
class Plan:
    """One command, checked: what to train, attack and audit."""

    # by label in tables; of somebody's own run the method that its files are read by, None for adapters
    methods: Mapping[str, Variant | None]
    settings: DataclassInstance  # the learner's Settings
    task: str
    task_params: DataclassInstance | None  # None for somebody's own run
    attacks: Mapping[str, DataclassInstance]  # parameters by name; empty: only utility and privacy are reported
    adversary: Adversary
    canaries: Canaries
    audits: Mapping[str, DataclassInstance]  # parameters of every audit that applies, by name
    rounds: int
    clients: int
    per_round: int
    seed: int
    seeds: int
    backbone: Path | ClipSource
    backbone_code: str  # the user's own file for a model that needs one, or empty
    dtype: str
    precision: str  # of float32 products: "highest" or "tf32"
    device: str
    threads: int
    gpus: Sequence[str]  # of this machine, as CUDA_VISIBLE_DEVICES names them; empty on a processor
    memory: int  # bytes that a pass of a worker may hold; 0: the learner's default
    out: Path
    keep_rounds: str = "all"  # whose tensors stay on disk in the end: also "last" or "every:N"
    engine: str = "local"  # a module of machinery/engines/
    worker_cpus: float = 1  # of each worker, where the engine finds places for them
    worker_gpus: float = 0
    own: OwnRun | None = None  # audited instead of a training of ours
    accepted_doubts: Sequence[str] = ()  # checks of its recording whose doubts void nothing
    show_records: bool = False  # whether the page shows single records of the user's own files
    newcomers: int = 0  # how many clients, the last ones, join only after the last round
    # parameters of the audits that compare all cells, by name; their results stand on the page only
    across: Mapping[str, DataclassInstance] = field(default_factory=dict)
    words: Sequence[str] = ()  # of the command, for readers

    @property
    def attack(self) -> str | None:
        """The names of the attacks, joined by commas; None without attacks."""
        return ",".join(self.attacks) or None

    @property
    def confidence(self) -> float:
        """Confidence level of all intervals, a parameter of the membership audit."""
        return float(vars(self.audits["membership"])["confidence"])

    @property
    def canary_holders(self) -> int:
        """How many clients hold canaries, the first ones: as many as --targets says, or all."""
        return min(self.adversary.targets or self.present, self.present)

    @property
    def inserted(self) -> int | None:
        """The number of all canaries, also of those that a coin leaves out; None for somebody's own run without coins.
        With coins each of its candidates is one, unless some were made."""
        if self.own is None:
            return self.canaries.canaries
        if self.own.coins is None:
            return None
        return len(self.own.coins.canaries) or sum(len(client.records) for client in self.own.federation.clients)

    @property
    def noised(self) -> bool:
        """Whether a training adds noise, so that a finite epsilon may be claimed or proven; True where somebody else's
        run may have had some."""
        privacies = (variant.privacy for variant in self.methods.values() if variant is not None)
        return self.own is not None or any(one is not None and one.epsilon < math.inf for one in privacies)

    @property
    def present(self) -> int:
        """The number of clients that can take part in rounds: all but newcomers."""
        return self.clients - self.newcomers

    @property
    def workers(self) -> int:
        """The number of worker processes: on GPUs one each, as several on one would wait for each other."""
        return self.threads if self.device == "cpu" or self.worker_gpus else len(self.gpus)

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """Every method with every seed."""
        return [Cell(self, method, self.seed + i) for method in self.methods for i in range(self.seeds)]

    @functools.cached_property
    def data(self) -> Data:
        """The plan's federation before canaries, and its hash."""
        return Data(self)

    @functools.cached_property
    def report_folder(self) -> Path:
        few = len(self.methods) <= 3  # of more methods, their parameters are left out
        labels = dict.fromkeys(label if few else label.partition(":")[0] for label in self.methods)
        name = f"{_slug('-'.join(labels))[:80]}-{_joined(self.attacks) or self.task}"
        about = keys.page(
            self.cells, across=self.across, accepted=self.accepted_doubts,
            show_records=self.own_files and self.show_records,
        )  # fmt: skip
        return self.out / "reports" / f"{name}-{key_of(about)[:8]}"

    @property
    def own_files(self) -> bool:
        """Whether the records are the user's own, which a page that is sent on should not show."""
        return self.own is not None or TASKS[self.task].facts.own_files

    @property
    def learner(self) -> str:
        """The name of the learner, a module of trainers/, that all methods of the plan share."""
        if self.own is not None:
            return self.own.learner
        learner = trained_by(v.plugin.facts for v in self.methods.values() if v is not None)
        assert learner is not None
        return learner

    @property
    def trained(self) -> LearnerFacts:
        """The learner's facts."""
        return facts(self.learner)


@dataclass(frozen=True)
class Cell:
    """One training and its audit: a method and a seed of a plan."""

    plan: Plan
    method: str  # a key of `Plan.methods`
    seed: int  # of the training; data are drawn from the plan's seed

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """Everything that a training's numbers depend on, except code and versions: nested dicts for JSON."""
        p, variant, model = self.plan, self.variant, self.plan.backbone
        if isinstance(model, ClipSource):
            backbone = {"name": model.name, "activation": model.activation, "sha256": model.sha256}
        else:
            backbone = {"name": display_name(model), "sha256": weights_hash(model), "dtype": p.dtype}
        if p.backbone_code:
            backbone["code"] = key_of({Path(p.backbone_code).name: user_files.sha256(Path(p.backbone_code))})
        later = {"newcomers": p.newcomers} if p.newcomers else {}
        shared = {
            "backbone": backbone,
            "training": keys.fields(p.settings),
            "schedule": {"rounds": p.rounds, "clients": p.clients, "per_round": p.per_round} | later,
            "seed": self.seed,
            "device": p.device,
            **({"precision": p.precision} if p.precision != "highest" else {}),
            **({"memory": p.memory} if p.memory else {}),  # sums are added in other parts, which round otherwise
        }
        if p.own is not None:
            about = {"task": {"name": p.task}, "method": {"name": self.method}, "run": {"sha256": p.own.sha256}}
            if untold := p.own.trained.untold:  # defaults of ours say nothing about it
                shared |= {"training": {"recipe": untold}}
            return about | shared
        assert variant is not None
        holders = {"holders": p.canary_holders} if p.adversary.targets else {}
        return {
            "task": {"name": p.task, **self._task_fields},
            "data_seed": p.seed,
            "method": {"name": variant.method, **keys.fields(variant.params)},
            **({"privacy": keys.fields(variant.privacy)} if variant.privacy else {}),
            **({"canaries": keys.fields(p.canaries) | holders} if p.canaries.canaries else {}),
        } | shared

    @property
    def _task_fields(self) -> dict[str, Any]:
        """The task's parameters; folders of data are replaced by a hash of the data."""
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
        """The columns that all findings of this cell share, with their values: run, method, task, seed."""
        return {"run": self.analysis_key, "method": self.method, "task": self.plan.task, "seed": self.seed}

    @property
    def bank_folder(self) -> Path:
        return self.plan.out / "shadows" / f"{_slug(self.method)}-{key_of(self.bank_description)}"

    @property
    def answers_folder(self) -> Path:
        """The folder of the answers of the training's own models, shared by all adversaries and attacks."""
        return self.plan.out / "answers" / f"{_slug(self.method)}-seed{self.seed}-{key_of(keys.answers(self))}"

    @property
    def bank_answers_folder(self) -> Path:
        """The folder of the answers of shadow models and simulated federations."""
        return self.plan.out / "answers" / f"{_slug(self.method)}-shadows-{key_of(keys.bank_answers(self))}"

    @property
    def training_folder(self) -> Path:
        return self.plan.out / "runs" / f"{_slug(self.method)}-seed{self.seed}-{self.training_key}"

    @property
    def analysis_folder(self) -> Path:
        name = f"{_slug(self.method)}-seed{self.seed}-{_joined(self.plan.attacks) or 'utility'}-{self.analysis_key}"
        return self.plan.out / "analyses" / name

    @property
    def shadow_folders(self) -> list[Path]:
        """The existing folders with shadow models of the cell's targets, sorted; `bank_folder` may hold those of more
        clients. [] if its attacks need none."""
        if not self.needs_shadows:
            return []
        of_targets = tuple(f"client-{client:03d}-" for client in self.targets)
        folders = (folder for folder in inside(self.bank_folder) if folder.is_dir())
        return sorted(f for f in folders if f.name.startswith(of_targets) or not f.name.startswith("client-"))

    @property
    def folders(self) -> list[Path]:
        """The existing folders that the findings depend on: training, shadow models, analysis."""
        folders = (self.training_folder, *self.shadow_folders, self.analysis_folder)
        return [folder for folder in folders if folder.is_dir()]

    @property
    def needs_shadows(self) -> bool:
        """Whether an attack of the plan uses shadow models."""
        return any(ATTACKS[name].facts.shadows for name in self.plan.attacks)

    @property
    def targets(self) -> list[int]:
        """The attacked clients: the first ones, as records are dealt at random. By default `TARGETS` with
        shadow models, else all."""
        usual = TARGETS if self.needs_shadows else self.plan.present
        return list(range(min(self.plan.adversary.targets or usual, self.plan.present)))

    @property
    def threat_models(self) -> tuple[str, ...]:
        """The adversaries that can attack the cell's method."""
        learner = self.plan.trained
        names = learner.adversaries(self.variant.plugin.facts) if self.variant else learner.threat_models
        acts = any("probes" in ATTACKS[name].facts.needs for name in self.plan.attacks)
        return tuple(name for name in names if name != ACTIVE_SERVER or acts)

    @property
    def trained_here(self) -> bool:
        return self.plan.own is None

    @property
    def coined(self) -> bool:
        """Whether a fair coin per record decided who is a member: ours, or one of `--split` before the training."""
        return self.plan.own is None or self.plan.own.coins is not None

    @property
    def variant(self) -> Variant | None:
        return self.plan.methods[self.method]


def _joined(attacks: Iterable[str]) -> str:
    """Attacks as part of a folder's name: their names, or their number if there are more than three."""
    names = list(attacks)
    return "-".join(names) if len(names) <= 3 else f"{len(names)}-attacks"


def _slug(text: str) -> str:
    """A label as part of a folder's name: other characters than letters, digits and _.+- become hyphens."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"
