"""What there is to choose from: `--list`. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping

from attacks.threats import SUMMARIES, THREAT_MODELS, refusal
from fedaudit.machinery import plugins
from fedaudit.machinery.plugins import Plugin
from fedaudit.pipeline import papers
from reports.places import places
from trainers.learners import every_learner, facts


def listing() -> str:
    """Methods, attacks, audits, tasks, tables and figures of papers, sections of reports and threat models with one
    line each."""
    lines = []
    for kind, title in (("method", "methods"), ("attack", "attacks"), ("audit", "audits"), ("task", "tasks")):
        lines.append(f"{title} (--{kind}):" if kind != "audit" else f"{title}, those in brackets on request (--audit):")
        lines += _rows({_named(plugin): plugin.summary for plugin in plugins.plugins(kind).values()})
    lines.append("tables and figures of papers (--paper; list, a paper, or all):")
    lines += _rows({name: item.summary for name, item in papers.items().items()})
    lines.append("sections of a report, each where there is something to show:")
    lines += _rows({name: plugins.summary(path) for name, path in places().items()})
    lines.append("threat models, what each sees; a report has all that its methods have:")
    lines += _rows({name: f"{SUMMARIES[name]}{_only(name)}" for name in THREAT_MODELS})
    return "\n".join([*lines, *matrix()])


def _named(plugin: Plugin) -> str:
    return f"[{plugin.name}]" if plugin.kind == "audit" and plugin.on_request else plugin.name


def _rows(named: Mapping[str, str]) -> list[str]:
    width = max(map(len, named)) + 2
    return [f"  {name:<{width}}{summary}" for name, summary in named.items()]


def _only(threat_model: str) -> str:
    """In brackets, of which methods alone it is an adversary; empty where it is one of all learners'."""
    learners = [*map(facts, every_learner())]
    of = [one.noun for one in learners if threat_model in one.threat_models]
    if len(of) == len(learners):
        return ""
    return f" (of {' and '.join(of) or 'methods on secret shares'} only)"


def matrix() -> list[str]:
    """Which attack runs under which threat model, if the method has that adversary, and why not where it does not."""
    attacks = plugins.plugins("attack").values()
    lines = ["attacks under threat models (yes where a method has that adversary, or the number of the reason):"]
    lines.append(f"  {'':<15}" + "".join(f"{name:<19}" for name in THREAT_MODELS))
    reasons: dict[str, int] = {}
    for attack in attacks:
        cells = []
        for threat_model in THREAT_MODELS:
            why = (refusal(attack, threat_model) or "yes").removeprefix(f"the threat model {threat_model} ")
            cells.append(why if why == "yes" else str(reasons.setdefault(why, len(reasons) + 1)))
        lines.append(f"  {attack.name:<15}" + "".join(f"{cell:<19}" for cell in cells))
    return [*lines, *(f"  {number}: {why}" for why, number in reasons.items()), *unfit()]


def unfit() -> list[str]:
    """Which attacks do not work on what a learner trains, and why."""
    lines = ["attacks that do not work on what is trained:"]
    for trained in map(facts, every_learner()):
        for attack in plugins.plugins("attack").values():
            if why := trained.lacks(attack):
                lines.append(f"  {attack.name:<15}on {trained.noun}, {why}")
    return lines
