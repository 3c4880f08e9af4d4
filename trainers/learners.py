"""Facts about methods and learners that the command reads before it imports them: the class `Facts` in each file.
Imports nothing heavy."""

import functools
import typing
from collections.abc import Iterable

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugins, facts_of, package_folder
from fedaudit.privacy import settings
from fedaudit.terms.threat_models import ACTIVE_SERVER, SERVER, ThreatModel

USUAL = "lora"  # the learner of a command that names neither a method nor a task


class MethodFacts:
    """Facts about a method, with defaults for what its file does not say."""

    learner: str = "lora"  # the module of trainers/ with the learner that it trains
    title: str = ""  # its name on pages; by default its name on the command line
    trains: bool = True  # whether it trains anything
    private: bool = False  # whether it can be noised although other methods of its learner cannot
    on_shares: bool = False  # whether clients compute together on secret shares: no noise, no client trained alone
    newcomers: bool = False  # whether clients can join after the run (`Method.arrivals`)


METHODS = Plugins("method", "fedaudit.trainers", MethodFacts)


class LearnerFacts:
    """Facts about a learner, in its file of trainers/."""

    title: str  # of its methods, as "LoRA"
    noun: str  # what it trains, as "prompts"
    method: str  # its default, as on the command line; so are task, attack, rounds, clients and per_round
    task: str
    attack: str
    rounds: int
    clients: int
    per_round: int | None  # None: all clients
    threat_models: tuple[ThreatModel, ...]  # of its methods; see also `on_shares`
    backbone: str  # "vlm" or "clip"
    records: str  # "texts", of several tokens each, or "classes", of one token each
    on_shares: tuple[ThreatModel, ...] = ()  # adversaries that replace the server if clients compute on shares
    unattacked: bool = False  # whether runs can be audited without an attack
    alone: tuple[str, ...] = ()  # attacks that exclude each other: the first does all that the others do
    private: bool = False  # whether all of its methods can be noised; else those whose own facts say so
    privacy: str = "Privacy"  # name of the class in `fedaudit.privacy.settings` with its defaults
    shadows: bool = False  # whether shadow models can be trained
    adversary: str = "Adversary"  # name of the class in `attacks.settings` with its defaults
    contexts: bool = False  # whether its methods train the context of class texts, shared or of each class
    gradients: bool = False  # whether attacks can take gradients of single records
    # why uploads are no sums of records' gradients, which attacks that solve for records need; "" if they are
    nonlinear: str = ""
    also: tuple[str, ...] = ()  # further learners whose methods it can train in the same run
    together: bool = (
        False  # whether trainings run in parallel, a worker each; else one by one, their clients in workers
    )

    def adversaries(self, method: MethodFacts) -> tuple[ThreatModel, ...]:
        """The threat models that apply to a method. If its clients compute on secret shares, those of `on_shares` stand
        in the server's place."""
        if not method.on_shares:
            return self.threat_models
        others = (name for name in self.threat_models if name != ACTIVE_SERVER)
        return tuple(one for name in others for one in (self.on_shares if name == SERVER else (name,)))


def every_learner() -> list[str]:
    """Sorted names of the learners that some method trains."""
    return sorted({plugin.facts.learner for plugin in METHODS.values()})


def trained_by(methods: Iterable[MethodFacts]) -> str | None:
    """The learner that can train all of these methods in one run; None if there is none."""
    learners = {method.learner for method in methods}
    return next((one for one in sorted(learners) if learners <= {one, *facts(one).also}), None)


def private(method: MethodFacts) -> bool:
    """Whether a method can be noised."""
    return method.trains and not method.on_shares and (method.private or facts(method.learner).private)


def privacy_of(learner: str) -> type[settings.Privacy]:
    """The class of privacy settings with a learner's defaults."""
    return typing.cast(type[settings.Privacy], getattr(settings, facts(learner).privacy))


@functools.cache
def facts(learner: str) -> LearnerFacts:
    """The facts of the learner in trainers/`learner`.py."""
    path = package_folder("fedaudit.trainers") / f"{learner}.py"
    if not path.is_file():
        raise InputError(f"the learner {learner} of a method or task: there is none of that name")
    return facts_of(path, LearnerFacts)
