"""Reads the flags that choose methods, task, attacks and audits, which must fit together. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.attacks import settings as adversaries
from fedaudit.attacks.facts import ATTACKS, AttackFacts
from fedaudit.attacks.threats import lacks
from fedaudit.audits.facts import AUDITS
from fedaudit.command import sweeps
from fedaudit.command.argv import given_fields
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.pipeline.plan import Plan
from fedaudit.privacy.settings import Privacy
from fedaudit.tasks.facts import TASKS, TaskFacts
from fedaudit.trainers.learners import METHODS, USUAL, LearnerFacts, facts, private, trained_by

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.tasks.canaries import Canaries

Sources = Mapping[str, Sequence[str]]  # words by the name of their source, "" for the command line; later ones win
SEVERAL = "several"  # need of an audit that compares settings: more than one of them
_LACKS = {  # why an audit cannot run, by the need that is not met
    "attacks": "needs an attack, and nothing is attacked; name one with --attack",
    "ledger": "needs a training of ours, and the run in --run was done elsewhere",
    "coins": "needs a run from elsewhere whose coins were flipped before the training (--split)",
    "texts": "needs records that are texts",
    "classes": "needs records that are classes",
    "several": "compares settings, and the run in --run is one",
}


def read_methods(chosen: argparse.Namespace) -> tuple[sweeps.Named, Plugin[TaskFacts], str]:
    """The methods by label, the task, and the learner that all methods share. InputError if they do not fit
    together."""
    task = TASKS.find(chosen.task, flag="--task") if chosen.task else None
    methods = sweeps.named(chosen.method or facts(task.facts.learner if task else USUAL).method)
    learner = trained_by(plugin.facts for plugin, _ in methods.values())
    if learner is None:
        raise InputError(f"--method {chosen.method}: these train different things and cannot share one run")
    if task is None:
        task = TASKS.find(facts(learner).task, flag="--task")
    kind = facts(learner).records
    if facts(task.facts.learner).records != kind:
        fitting = [name for name, p in TASKS.items() if facts(p.facts.learner).records == kind]
        raise InputError(f"--task {task.name}: is not for {', '.join(methods)}, which take {', '.join(fitting)}")
    return methods, task, learner


_RECIPE = ' ("recipe" in run.json tells it)'


def read_attacks(
    text: str | None, learner: str, *, of_own_run: bool = False, shadows: bool = True
) -> list[Plugin[AttackFacts]]:
    """The attacks that --attack names, in that order; for `all` the strongest first; [] for `none`; None: the learner's
    usual one, or if that is `none` and an own run is audited, the first that stands for all. With `shadows`, shadow
    models can be trained. InputError: an attack does not work on what `learner` trains."""
    trained = facts(learner)
    able = {name: p for name, p in ATTACKS.items() if lacks(p, trained) is None}
    fitting = {name: p for name, p in able.items() if shadows or not p.facts.shadows}
    usual = trained.alone[0] if of_own_run and trained.attack == "none" else trained.attack
    words = [word.strip() for word in (text or usual).split(",")]
    if words == ["all"]:
        together = [p for name, p in fitting.items() if name not in trained.alone[1:]]
        return sorted(together, key=lambda p: -p.facts.strength)
    if words == ["none"] and trained.unattacked:
        return []
    valid = [*fitting, "all", *(["none"] if trained.unattacked else [])]
    for word in words:
        if word in valid and word not in fitting:
            raise InputError(f"--attack {text}: {word} stands alone")
        attack = ATTACKS.find(word, flag="--attack")
        if why := lacks(attack, trained):
            raise InputError(
                f"--attack {word}: does not work on {trained.noun}, {why}; valid there: {', '.join(valid)}"
            )
        if attack.name not in fitting:
            raise InputError(
                f"--attack {word}: needs shadow models, which are trained as the target was, and how the run in --run "
                f"was trained is not known{_RECIPE if trained.shadows else ''}; valid there: {', '.join(valid)}"
            )
    if len(set(words)) < len(words):
        raise InputError(f"--attack {text}: name each attack once")
    if len(set(words) & set(trained.alone)) > 1:
        names = " or ".join(trained.alone)
        raise InputError(f"--attack {text}: {names}, not both; {trained.alone[0]} does all that the other does")
    return [fitting[word] for word in words]


def attack_groups(attacks: Sequence[Plugin[AttackFacts]]) -> dict[str, type[DataclassInstance]]:
    """{"attack NAME": its parameter class}."""
    return {f"attack {attack.name}": attack.params for attack in attacks}


def audit_groups(
    text: str | None, attacks: Sequence[Plugin[AttackFacts]], learner: str, *, trained_here: bool, coins: bool = False
) -> dict[str, type[DataclassInstance]]:
    """The audits to run, {"audit NAME": parameter class}: all that can run here and are not on request, and those that
    --audit (`text`) names. Only a training that is done here has a privacy ledger; `coins`: one that was done elsewhere
    has coins. InputError: an audit is named that cannot run."""
    trained = facts(learner)
    met = {
        trained.records,
        *(["attacks"] if attacks else []),
        *(["ledger", SEVERAL] if trained_here else []),
        *(["coins"] * coins),
    }
    able = {name: plugin for name, plugin in AUDITS.items() if met.issuperset(plugin.facts.needs)}
    words = _words(text)
    if words == ["all"]:
        words = list(able)
    for word in words:
        audit = AUDITS.find(word, flag="--audit")
        if missing := sorted({*audit.facts.needs} - met):
            raise InputError(f"--audit {word}: {_LACKS[missing[0]]}; valid here: {', '.join(able)}, all")
    wanted = {name: plugin for name, plugin in able.items() if name in words or not plugin.facts.on_request}
    return {f"audit {name}": plugin.params for name, plugin in wanted.items()}


def _words(text: str | None) -> list[str]:
    """The names in the value of --audit."""
    return [word.strip() for word in text.split(",")] if text else []


def without_comparisons(plan: Plan, text: str | None) -> Plan:
    """The plan; if it has one setting only, without the audits that compare settings. InputError if `text`, the value
    of --audit, names such an audit."""
    lonely = [name for name in plan.across if SEVERAL in AUDITS[name].facts.needs and len(plan.methods) < 2]
    if named := [word for word in _words(text) if word in lonely]:
        raise InputError(
            f"--audit {named[0]}: compares settings, and here is one, {next(iter(plan.methods))}; sweep one "
            "(--epsilon none,0.4,0.1), name several methods, or give --audit and --out alone to compare what is on disk"
        )
    return dataclasses.replace(plan, across={name: p for name, p in plan.across.items() if name not in lonely})


def canaries_class() -> type[Canaries]:
    """The parameter class of canaries."""
    cls: type[Any] = plugins.dataclass_of(plugins.package_folder("fedaudit.tasks") / "canaries.py", "Canaries")
    return cls


def adversary_class(trained: LearnerFacts) -> type[adversaries.Adversary]:
    """The parameter class of the adversary, with the defaults for a learner."""
    cls: type[adversaries.Adversary] = getattr(adversaries, trained.adversary)
    return cls


def check_noise(methods: sweeps.Named, learner: str, sources: Sources) -> None:
    """Raise InputError if a source of options sets a parameter of noise, and some method of the learner, other than
    `methods`, adds noise. Only for `methods` of which none does, which is not checked."""
    of_noise = {"twin", *(field.name for field in dataclasses.fields(Privacy))}
    able = [name for name, p in METHODS.items() if p.facts.learner == learner and private(p.facts)]
    for source, words in sources.items():
        for name in sorted(given_fields(words) & of_noise if able else ()):
            where, flag = f"{source}: " if source else "", f"--{'no-' * (name == 'twin')}{name.replace('_', '-')}"
            raise InputError(
                f"{where}{flag}: {', '.join(methods)} adds no noise; of the {facts(learner).title} methods "
                f"{', '.join(able)} can"
            )
