"""Contracts of the file of every plugin, whatever its kind."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.tokens.scores import cell_names
from fedaudit.audits.facts import AUDITS
from fedaudit.command import splitting
from fedaudit.command.flags import Parser, add_backbone, add_choices, add_general_options, add_schedule
from fedaudit.machinery.plugins import Plugin
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.learners import every_learner, facts

Contract = Callable[[Plugin[Any]], None]


def says_what_it_is(plugin: Plugin[Any]) -> None:
    """The docstring begins with a line for --list: a sentence of 20 to 160 characters."""
    assert plugin.summary.endswith("."), f"{plugin.summary!r} does not end with a full stop"
    assert 20 <= len(plugin.summary) <= 160, f"it has {len(plugin.summary)}"


def documents_its_parameters(plugin: Plugin[Any]) -> None:
    """Params is frozen; each of its fields has a default and a help text, and is the same where the file is
    imported."""
    params = plugin.params()
    assert type(params).__dataclass_params__.frozen, "it is not frozen"  # type: ignore[attr-defined]
    for field in dataclasses.fields(params):
        assert isinstance(field.default, bool | int | float | str), f"{field.name} has no default"
        assert field.metadata.get("help"), f"{field.name} has no help"
    executed = importlib.import_module(plugin.module).Params
    assert dataclasses.asdict(params) == dataclasses.asdict(executed()), "executed alone it differs"


def takes_no_flag_of_ours(plugin: Plugin[Any]) -> None:
    """No parameter is called like a flag of the command; two attacks that share one have it alike."""
    parser = Parser(add_help=False)
    add_choices(parser)
    splitting.add_help(parser)
    learner = plugin.facts.learner if plugin.kind in ("method", "task") else every_learner()[0]
    add_schedule(parser, learner)
    add_backbone(parser, learner)
    add_general_options(parser)
    taken = {action.dest for action in parser._actions}
    for field in dataclasses.fields(plugin.params):
        assert field.name not in taken, f"{field.name} is taken"
        for other in ATTACKS.values() if plugin.kind == "attack" else ():
            for theirs in dataclasses.fields(other.params):
                alike = field.default == theirs.default and dict(field.metadata) == dict(theirs.metadata)
                assert theirs.name != field.name or alike, f"{field.name} of {other.name} differs"


def holds_what_its_kind_asks(plugin: Plugin[Any]) -> None:
    """The file has the class or function of its name, with the parameters of its kind, and its facts fit together."""
    thing = plugin.load()
    assert inspect.isclass(thing) or inspect.isfunction(thing), f"{thing!r} is neither"
    check_kind: dict[str, Callable[[Plugin[Any], Any], None]] = {"attack": _attack, "audit": _audit, "task": _task}
    if plugin.kind in check_kind:
        check_kind[plugin.kind](plugin, thing)


def _takes(function: Any, *names: str) -> None:
    parameters = [*inspect.signature(function).parameters]
    assert parameters == [*names], f"it takes {', '.join(parameters)}, and not {', '.join(names)}"


def _audit(plugin: Plugin[Any], thing: Any) -> None:
    _takes(thing, "runs" if plugin.facts.across else "subject", "params")
    across_on_request = plugin.facts.on_request or not plugin.facts.across or "several" in plugin.facts.needs
    assert across_on_request, "an audit of several runs is on request"
    assert not (lacking := {*plugin.facts.after} - {*AUDITS}), f"there is no audit {min(lacking, default='')}"


def _attack(plugin: Plugin[Any], thing: Any) -> None:
    kinds = {facts(learner).records for learner in every_learner()}
    assert {*plugin.facts.records} <= kinds, f"records must be of {', '.join(sorted(kinds))}"
    _takes(plugin.make(plugin.params()).score, "knowledge")
    names = plugin.facts.names()
    assert names, "signals names no score"
    assert all(signal.partition("/")[0] == plugin.name for signal in names), f"a score begins with {plugin.name}"
    needs = {*plugin.facts.needs, *plugin.facts.needs_on_texts}
    able = frozenset().union(*(one.sees for one in THREAT_MODELS))
    assert needs <= able, f"needs are of {', '.join(sorted(able))}"
    declared = {signal for other in ATTACKS.values() for signal in other.facts.names()}
    filled = {signal.format(**vars(plugin.params())) for signal in plugin.facts.headlines("texts")}
    assert filled <= {*cell_names(["caption"]), *declared}, "a headline on texts is no score"


def _task(plugin: Plugin[Any], thing: Any) -> None:
    _takes(thing, "params", "clients", "seed")


CONTRACTS: tuple[Contract, ...] = (
    says_what_it_is,
    documents_its_parameters,
    takes_no_flag_of_ours,
    holds_what_its_kind_asks,
)
