"""What the command must know of a learner before it imports it: the class `Facts` in the learner's file. Imports
nothing heavy."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass

from fedaudit.machinery import plugins
from fedaudit.machinery.plugins import Plugin
from fedaudit.privacy import settings
from fedaudit.terms.threat_models import SERVER, ThreatModel

USUAL = "lora"  # where a command names neither a method nor a task


@dataclass(frozen=True)
class LearnerFacts:
    """What a file of trainers/ says of what it trains; every field of its `Facts` has a default, which is what
    holds."""

    title: str  # of its methods: "LoRA"
    noun: str  # what it trains: "prompts"
    method: str  # the usual one, as on the command line; so are task and attack
    task: str
    attack: str
    rounds: int
    clients: int
    per_round: int | None  # None: all
    threat_models: tuple[ThreatModel, ...]  # those of its methods, but for what `on_shares` says
    backbone: str  # "vlm" or "clip"
    records: str  # what its records are: "texts", several tokens each, or "classes", one token each
    on_shares: tuple[ThreatModel, ...] = ()  # the adversaries in the server's place where clients compute on shares
    unattacked: bool = False  # can be audited without an attack
    alone: tuple[str, ...] = ()  # attacks of which a run takes one: the first does all that the others do
    private: bool = False  # all of its methods can be noised, not only those whose files say PRIVATE
    privacy: str = "Privacy"  # how: the class of `fedaudit.privacy.settings` whose defaults are usual for it
    shadows: bool = False  # shadow models can be trained
    adversary: str = "Adversary"  # by whom: the class of `attacks.settings` whose defaults are usual for it
    gradients: bool = False  # of single records can be taken, as attacks on messages and by norms do
    # why messages are no sums of records' gradients, as attacks that solve them need; "" where they are
    nonlinear: str = ""
    also: tuple[str, ...] = ()  # further learners whose methods it trains, beside its own in one run
    together: bool = False  # trainings run side by side, a worker each; else one by one, their clients in workers

    def adversaries(self, method: Plugin) -> tuple[ThreatModel, ...]:
        """The threat models of a method: a server that decodes what clients compute on shares receives no upload."""
        if not method.on_shares:
            return self.threat_models
        return tuple(own for name in self.threat_models for own in (self.on_shares if name == SERVER else (name,)))

    def fits(self, attack: Plugin) -> bool:
        """Whether an attack can work on it."""
        return self.lacks(attack) is None

    def lacks(self, attack: Plugin) -> str | None:
        """Why an attack cannot work on it; None if it can."""
        if attack.mixtures and self.nonlinear:
            return self.nonlinear
        if self.records not in attack.records:
            return f"whose records are {self.records}"
        if attack.shadows and not self.shadows:
            return "of which no shadow models can be trained"
        if (attack.gradients or attack.vectors or attack.needs) and not self.gradients:
            return "of which gradients of single records are not taken"
        return None


def every_learner() -> list[str]:
    """The learners that methods train."""
    return sorted({plugin.learner for plugin in plugins.plugins("method").values()})


def trained_by(methods: Iterable[Plugin]) -> str | None:
    """The one learner that trains all of these methods; None if there is none."""
    wanted = {method.learner for method in methods}
    return next((one for one in sorted(wanted) if wanted <= {one, *facts(one).also}), None)


def private(method: Plugin) -> bool:
    """Whether a method can be noised."""
    return method.trains and not method.on_shares and (method.private or facts(method.learner).private)


def privacy_of(learner: str) -> type[settings.Privacy]:
    """How a learner's methods are noised, with its usual values as defaults."""
    return typing.cast(type[settings.Privacy], getattr(settings, facts(learner).privacy))


def facts(learner: str) -> LearnerFacts:
    """Of the learner in trainers/`learner`.py."""
    folder = plugins.package_folder("trainers")
    return typing.cast(LearnerFacts, plugins.dataclass_of(folder / f"{learner}.py", "Facts")())
