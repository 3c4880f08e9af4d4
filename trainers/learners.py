"""What the command must know of methods and learners before it imports them: the class `Facts` in their files. Imports
nothing heavy."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable

from fedaudit.machinery.plugins import Plugins, facts_of, package_folder
from fedaudit.privacy import settings
from fedaudit.terms.threat_models import SERVER, ThreatModel

USUAL = "lora"  # where a command names neither a method nor a task


class MethodFacts:
    """What holds of a method whose file says nothing else."""

    learner: str = "lora"
    """The module of trainers/ that holds what it trains."""
    title: str = ""
    """What readers call it; by default its key."""
    trains: bool = True
    """Whether it trains anything at all."""
    private: bool = False
    """Whether it can be noised where its learner's others cannot."""
    on_shares: bool = False
    """Whether its clients compute together on secret shares: it takes no noise, and no client can be trained alone."""
    newcomers: bool = False
    """Whether it says how a client comes to a run that is over."""


METHODS = Plugins("method", "trainers", MethodFacts)


class LearnerFacts:
    """What a file of trainers/ says of what it trains."""

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
    private: bool = False  # all of its methods can be noised, not only those that say it themselves
    privacy: str = "Privacy"  # how: the class of `fedaudit.privacy.settings` whose defaults are usual for it
    shadows: bool = False  # shadow models can be trained
    adversary: str = "Adversary"  # by whom: the class of `attacks.settings` whose defaults are usual for it
    gradients: bool = False  # of single records can be taken, as attacks on messages and by norms do
    # why messages are no sums of records' gradients, as attacks that solve them need; "" where they are
    nonlinear: str = ""
    also: tuple[str, ...] = ()  # further learners whose methods it trains, beside its own in one run
    together: bool = False  # trainings run side by side, a worker each; else one by one, their clients in workers

    def adversaries(self, method: MethodFacts) -> tuple[ThreatModel, ...]:
        """The threat models of a method: a server that decodes what clients compute on shares receives no upload."""
        if not method.on_shares:
            return self.threat_models
        return tuple(own for name in self.threat_models for own in (self.on_shares if name == SERVER else (name,)))


def every_learner() -> list[str]:
    """The learners that methods train."""
    return sorted({plugin.facts.learner for plugin in METHODS.values()})


def trained_by(methods: Iterable[MethodFacts]) -> str | None:
    """The one learner that trains all of these methods; None if there is none."""
    wanted = {method.learner for method in methods}
    return next((one for one in sorted(wanted) if wanted <= {one, *facts(one).also}), None)


def private(method: MethodFacts) -> bool:
    """Whether a method can be noised."""
    return method.trains and not method.on_shares and (method.private or facts(method.learner).private)


def privacy_of(learner: str) -> type[settings.Privacy]:
    """How a learner's methods are noised, with its usual values as defaults."""
    return typing.cast(type[settings.Privacy], getattr(settings, facts(learner).privacy))


@functools.cache
def facts(learner: str) -> LearnerFacts:
    """Of the learner in trainers/`learner`.py."""
    return facts_of(package_folder("trainers") / f"{learner}.py", LearnerFacts)
