"""A small run of the command with a plugin, from training to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedaudit.attacks.threats import lacks
from fedaudit.command.cli import read_command
from fedaudit.contracts.audits import SMALL, TEXTS
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.run import run
from fedaudit.trainers.learners import METHODS, facts, private

SIZES = {"texts": TEXTS[2:], "classes": "--train 12 --test 2".split()}  # by kind of records


def words_for(plugin: Plugin[Any]) -> list[str]:
    """The words of a small run that has a plugin in it, without the folder of results."""
    name, own_facts = plugin.name, plugin.facts
    if plugin.kind == "task":
        return [f"--task={name}", "--attack=none" if facts(own_facts.learner).unattacked else "--attack=loss", *SMALL]
    if plugin.kind == "method":
        about, method, more = facts(own_facts.learner), name, ["--attack=loss"]
    elif plugin.kind == "attack":
        method = _attackable(plugin)
        about, more = facts(METHODS[method].facts.learner), [f"--attack={name}"]
        more += ["--shadows=4", "--targets=1"] if own_facts.shadows else []
    else:
        kind = "texts" if "texts" in own_facts.needs else "classes"
        first, second = ("fedavg", "fedper") if kind == "texts" else ("promptfl", "dpfpl")
        several = own_facts.across or "several" in own_facts.needs
        method, more = f"{first},{second}" if several else first, ["--attack=loss", f"--audit={name}"]
        about = facts(METHODS[first].facts.learner)
    noised = any(private(METHODS[one].facts) for one in method.split(","))
    return [f"--method={method}", *SIZES[about.records], *(["--epsilon=none"] if noised else []), *more, *SMALL]


def _attackable(attack: Plugin[Any]) -> str:
    """The first method under whose threat models an attack can run; usual methods come first."""
    able = (name for name, one in METHODS.items() if one.facts.trains and not one.foreign and _runs(attack, one))
    usual = ("promptfl", "fedavg")
    return min(able, key=lambda name: (name not in usual, usual.index(name) if name in usual else 0), default=usual[0])


def _runs(attack: Plugin[Any], method: Plugin[Any]) -> bool:
    learner = facts(method.facts.learner)
    needed = {*attack.facts.needed(learner.records)}
    sights = (threat_model.sees for threat_model in learner.adversaries(method.facts))
    return lacks(attack, learner) is None and any(needed <= {*sees} for sees in sights)


def reaches_the_page(plugin: Plugin[Any], out: Path) -> None:
    """A small run of the command with it trains, attacks and audits, and its results are on the page."""
    outcome = run(read_command([*words_for(plugin), f"--out={out}"]).plan, Progress(quiet=True))
    text = outcome.report.read_text(encoding="utf-8")
    assert json.loads(outcome.report.with_name("findings.json").read_text(encoding="utf-8")), "there are no findings"
    if plugin.kind == "method":
        assert any(f["method"] == plugin.name for f in outcome.findings), "no finding is about it"
    if plugin.kind == "attack":
        assert any(f.get("attack") == plugin.name for f in outcome.findings), "it scored nobody"
    if plugin.kind == "audit" and not plugin.facts.across:
        own_facts = any(f["metric"].partition("/")[0] == plugin.name for f in outcome.findings)
        assert own_facts, "it found nothing in a run with an attack"
        assert plugin.name in text, "the page does not show it"
