"""Says whose a flag is that is out of place: "--rank is of --method dpfpl or fedpgp". Imports nothing heavy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits.facts import AUDITS
from fedaudit.command import flags, splitting
from fedaudit.command.choices import adversary_class
from fedaudit.machinery import plugins
from fedaudit.privacy.settings import Privacy
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.learners import METHODS, every_learner, facts

FEW = 4  # names of one kind that a sentence lists


def owners(flag: str) -> str:
    """The owners of a flag in words, such as "--method dpfpl or --attack lira, shadow"; "" if it is nobody's."""
    name = flag[2:].removeprefix("no-").replace("-", "_")
    return " or ".join(_owners(name))


def is_of_attacks(flag: str) -> bool:
    """Whether an attack, or the adversary of attacks on some learner, has the parameter of a flag such as "--k"."""
    name = flag[2:].removeprefix("no-").replace("-", "_")
    classes = [plugin.params for plugin in ATTACKS.values()]
    classes += [adversary_class(facts(learner)) for learner in every_learner()]
    return any(name in _fields(params) for params in classes)


def _owners(name: str) -> Iterator[str]:
    """Yield each kind of owner of the parameter `name`, in words."""
    for kind in (METHODS, ATTACKS, AUDITS, TASKS):
        having = [plugin.name for plugin in kind.values() if name in _fields(plugin.params)]
        if having:
            more = f" and {len(having) - FEW} more" if len(having) > FEW else ""
            yield f"--{kind.kind} {', '.join(having[:FEW])}{more}"
    of_learners = [facts(learner).title for learner in every_learner() if name in _of_learner(learner)]
    if of_learners:
        yield f"{' and '.join(of_learners)} methods"
    if name in _fields(Privacy) | {"twin"}:
        yield "methods that add noise"
    if any(name in _fields(adversary_class(facts(learner))) for learner in every_learner()):
        yield "an --attack on prompts"
    for chosen, add in (("--run", flags.add_own_run), ("--split", splitting.add_split)):
        if name in flags.dests(add):
            yield chosen


def _of_learner(learner: str) -> set[str]:
    """Names of the parameters that come with what a method trains: its settings, and its frozen model."""
    settings = plugins.dataclass_of(plugins.package_folder("fedaudit.trainers") / f"{learner}.py", "Settings")
    return _fields(settings) | flags.dests(lambda parser: flags.add_backbone(parser, learner))


def _fields(params: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(params)}
