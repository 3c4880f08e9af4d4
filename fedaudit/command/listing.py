"""What there is to choose from: `--list`. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from attacks.facts import ATTACKS
from attacks.threats import lacks, refusal
from audits.facts import AUDITS, AuditFacts
from fedaudit.command.window import UNSEEN, WindowColumn, hanging, lines, listed
from fedaudit.machinery import plugins
from fedaudit.machinery.plugins import Plugin, Plugins
from fedaudit.tasks.facts import TASKS
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import THREAT_MODELS
from reports import paper_items
from reports.places import places
from trainers.learners import METHODS, every_learner, facts

KINDS: dict[str, Plugins[Any]] = {known.kind: known for known in (METHODS, ATTACKS, AUDITS, TASKS)}


def listing(width: int | None = None) -> str:
    """Methods, attacks, audits, tasks, tables and figures of papers, sections of reports and threat models with one
    line each, or more in a window of that width."""
    said = []
    for kind, known in KINDS.items():
        said.append(f"{kind}s{', those in brackets on request' if known is AUDITS else ''} (--{kind}):")
        said += listed({_named(plugin): plugin.summary for plugin in known.values()}, width)
    said.append("tables and figures of papers (--paper; list, a paper, or all):")
    said += listed({name: item.summary for name, item in paper_items.items().items()}, width)
    said.append("sections of a report, each where there is something to show:")
    said += listed({name: plugins.summary(path) for name, path in places().items()}, width)
    said.append("threat models, what each sees; a report has all that its methods have:")
    said += listed({name: f"{SENTENCES[name].summary}{_only(name)}" for name in THREAT_MODELS}, width)
    return "\n".join([*said, *matrix(width)])


def _named(plugin: Plugin[Any]) -> str:
    on_request = isinstance(plugin.facts, AuditFacts) and plugin.facts.on_request
    return f"[{plugin.name}]" if on_request else plugin.name


def _only(threat_model: str) -> str:
    """In brackets, of which methods alone it is an adversary; empty where it is one of all learners'."""
    learners = [*map(facts, every_learner())]
    of = [one.noun for one in learners if threat_model in one.threat_models]
    if len(of) == len(learners):
        return ""
    return f" (of {' and '.join(of) or 'methods on secret shares'} only)"


def matrix(width: int | None = None) -> list[str]:
    """Which attack runs under which threat model, if the method has that adversary, and why not where it does not."""
    title = "attacks under threat models (yes where a method has that adversary, or the number of the reason):"
    reasons: dict[str, int] = {}
    rows = []
    for attack in ATTACKS.values():
        cells = []
        for threat_model in THREAT_MODELS:
            why = (refusal(attack, threat_model) or "yes").removeprefix(f"the threat model {threat_model} ")
            cells.append(why if why == "yes" else str(reasons.setdefault(why, len(reasons) + 1)))
        rows.append([attack.name, *cells])
    columns = [WindowColumn("", max(len(row[0]) for row in rows))]
    columns += [WindowColumn(name, max(map(len, name.split("-"))) + 1) for name in THREAT_MODELS]
    heads, cells = lines(columns, {title: rows}, width or UNSEEN)
    told = [line for why, number in reasons.items() for line in hanging(f"  {number}: ", why, width)]
    return [*hanging("", title, width), *heads, *cells, *told, *unfit(width)]


def unfit(width: int | None = None) -> list[str]:
    """Which attacks do not work on what a learner trains, and why."""
    said = ["attacks that do not work on what is trained:"]
    for trained in map(facts, every_learner()):
        for attack in ATTACKS.values():
            if why := lacks(attack, trained):
                said += hanging(f"  {attack.name:<15}", f"on {trained.noun}, {why}", width)
    return said
