"""`--list`, or one list of it as `--list attacks`: methods, attacks, audits, tasks and what else there is to choose
from. Imports nothing heavy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.threats import lacks, refusal
from fedaudit.audits.facts import AUDITS, AuditFacts
from fedaudit.command.config import preset_summaries
from fedaudit.command.window import UNSEEN, WindowColumn, hanging, lines, listed
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.plugins import Plugin, Plugins
from fedaudit.reports import paper_items
from fedaudit.reports.section_files import section_files
from fedaudit.tasks.facts import TASKS
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.learners import METHODS, every_learner, facts

KINDS: dict[str, Plugins[Any]] = {of_kind.kind: of_kind for of_kind in (METHODS, ATTACKS, AUDITS, TASKS)}


def listing(width: int | None = None, part: str | None = None) -> str:
    """The text of `--list`, wrapped to `width` columns if given: a line or more for each method, attack, audit, task,
    preset, table or figure of a paper, section of a report and threat model; of one of `PARTS` only, if given.
    InputError: there is no such part."""
    if part and part not in PARTS:
        raise InputError(f"--list {part}: no such list{nearest(part, PARTS)}; there are {', '.join(PARTS)}")
    return "\n".join(line for name in ([part] if part else PARTS) for line in PARTS[name](width))


def _of_kind(of_kind: Plugins[Any], width: int | None) -> list[str]:
    title = f"{of_kind.kind}s{', those in brackets on request' if of_kind is AUDITS else ''} (--{of_kind.kind}):"
    return [title, *listed({_label(plugin): plugin.summary for plugin in of_kind.values()}, width)]


def _presets(width: int | None) -> list[str]:
    return ["settings to start from (--preset):", *listed(preset_summaries(), width)]


def _papers(width: int | None) -> list[str]:
    summaries = {name: item.summary for name, item in paper_items.items().items()}
    return ["tables and figures of papers (--paper; list, a paper, or all):", *listed(summaries, width)]


def _sections(width: int | None) -> list[str]:
    summaries = {name: plugins.summary(path) for name, path in section_files().items()}
    return ["sections of a report, each where there is something to show:", *listed(summaries, width)]


def _threat_models(width: int | None) -> list[str]:
    sentences: dict[str, str] = {name: f"{SENTENCES[name].summary}{_only(name)}" for name in THREAT_MODELS}
    title = "threat models, what each sees; a report has all that its methods have:"
    return [title, *listed(sentences, width), *matrix(width)]


PARTS: dict[str, Callable[[int | None], list[str]]] = {
    **{f"{kind}s": functools.partial(_of_kind, of_kind) for kind, of_kind in KINDS.items()},
    "presets": _presets,
    "papers": _papers,
    "sections": _sections,
    "threat-models": _threat_models,
}  # the lists of `--list`, by their name behind it


def _label(plugin: Plugin[Any]) -> str:
    """The name of a plugin, in brackets if it runs on request only."""
    on_request = isinstance(plugin.facts, AuditFacts) and plugin.facts.on_request
    return f"[{plugin.name}]" if on_request else plugin.name


def _only(threat_model: str) -> str:
    """The suffix " (of NOUNS only)" for a threat model that some learners lack; "" if all have it."""
    learners = [*map(facts, every_learner())]
    nouns = [learner.noun for learner in learners if threat_model in learner.threat_models]
    if len(nouns) == len(learners):
        return ""
    return f" (of {' and '.join(nouns) or 'methods on secret shares'} only)"


def matrix(width: int | None = None) -> list[str]:
    """Lines of a table of attacks (rows) by threat models: yes where the attack runs, or the number of the reason why
    not; the numbered reasons follow, then attacks that do not work on what is trained."""
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
    notes = [line for why, number in reasons.items() for line in hanging(f"  {number}: ", why, width)]
    return [*hanging("", title, width), *heads, *cells, *notes, *_refusals(width), *_of_rounds(width)]


def _refusals(width: int | None) -> list[str]:
    """Lines on attacks that do not work on what a learner trains (prompts, adapters, ...), with the reason."""
    text = ["attacks that do not work on what is trained:"]
    for trained in map(facts, every_learner()):
        for attack in ATTACKS.values():
            if why := lacks(attack, trained):
                text += hanging(f"  {attack.name:<15}", f"on {trained.noun}, {why}", width)
    return text


def _of_rounds(width: int | None) -> list[str]:
    """Lines on which attacks find all that they need after `--keep-rounds last`, and which do not."""
    needy = {a.name for a in ATTACKS.values() if any(a.facts.every_round(kind) for kind in a.facts.records)}
    content = ", ".join(name for name in ATTACKS if name not in needy)
    return [
        "rounds that an attack needs (--keep-rounds):",
        *hanging("  the last: ", f"{content}, on the released model", width),
        *hanging("  all: ", f"those above as a server, which reads all messages; {', '.join(sorted(needy))}", width),
    ]
