"""Three cards: the epsilon that a method claims, the one that is provable, and the one that attacks measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.reports.formats import epsilon, join_words
from fedaudit.reports.measured import rows
from fedaudit.reports.rows import MethodRow
from fedaudit.terms.sentences import SENTENCES
from fedaudit.trainers.learners import METHODS

EMPTY = "–"
ELSEWHERE = "by the run's own word"
SPLIT = "coins that decide before a training who is a member: --split records.jsonl"
OWN = "own"  # a record of the client that is attacked


def cards(runs: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """A card each for "claimed", "provable" and "measured", with a line per run and value: `run` (its title over the
    first of its lines, None for a single run), `value` and `note`, whom it holds against, or what would fill it."""
    kinds = {"Claimed": _claimed, "Provable": _provable, "Measured": _measured}
    return [
        {"name": name, "lines": [line for v in runs for line in _titled(v, of(v), runs)]} for name, of in kinds.items()
    ]


def _titled(v: MethodRow, lines: Sequence[Mapping[str, str]], runs: Sequence[MethodRow]) -> list[dict[str, Any]]:
    return [{"run": v.title if i == 0 and len(runs) > 1 else None, **line} for i, line in enumerate(lines)]


def _claimed(v: MethodRow) -> list[dict[str, str]]:
    if not v.claims:
        return _in_words(v, "claimed", "state `claim` in run.json")
    if all(c.unclaimed for c in v.claims):
        return [{"value": "none", "note": f"{v.name} promises no differential privacy{_how_to_noise(v)}"}]
    return _by_adversary(v, {c.threat_model: "none" if c.unclaimed else epsilon(c.claimed) for c in _own(v)})


def _provable(v: MethodRow) -> list[dict[str, str]]:
    if not v.claims:
        return _in_words(v, "provable", "state in run.json what is proven")
    values = {c.threat_model: epsilon(c.provable) for c in _own(v)}
    lines = _by_adversary(v, values)
    for line in lines:
        why = next(c.why for c in _own(v) if values[c.threat_model] == line["value"])
        line["note"] = "; ".join(filter(None, (line["note"], why)))
    return lines


def _measured(v: MethodRow) -> list[dict[str, str]]:
    bounds = [row["any"] or row["gaussian"] or row["messages"] for row in rows(v.evidence[0].findings)]
    if not bounds:
        fill = f"{SPLIT} --canaries 100" if not v.claims else "--canaries 100 measures a lower bound"
        return [{"value": EMPTY, "note": f"not measured: {fill}"}]
    most = max(bounds, key=lambda f: f["value"])
    who = SENTENCES[most["threat_model"]].short
    if most["value"] == 0:
        return [{"value": "0", "note": f"nothing was shown, of at most {epsilon(most['ceiling'])} that "
                                       f"{most['canaries']} coins could show: more canaries reach higher"}]  # fmt: skip
    many = f", the largest of {len(bounds)} bounds" if len(bounds) > 1 else ""
    return [{"value": f"≥ {epsilon(most['value'])}", "note": f"shown by {who}{many}, each at 95 %"}]


def _own(v: MethodRow) -> list[Any]:
    return [c for c in v.claims if c.whose == OWN] or list(v.claims)


def _by_adversary(v: MethodRow, values: Mapping[str, str]) -> list[dict[str, str]]:
    """A line per distinct value, and against whom it holds where there are several."""
    same: dict[str, list[str]] = {}
    for threat, value in values.items():
        same.setdefault(value, []).append(threat)
    if len(same) == 1:
        return [{"value": value, "note": ""} for value in same]
    longest = max(same, key=lambda value: len(same[value]))
    return [
        {"value": value, "note": f"against {_names(threats, rest=value == longest)}"}
        for value, threats in sorted(same.items(), key=lambda item: item[0] == longest)
    ]


def _names(threats: Sequence[str], *, rest: bool) -> str:
    """The adversaries in words; several of them, where they are the `rest`, as "everybody else"."""
    return "everybody else" if rest and len(threats) > 1 else join_words([SENTENCES[t].short for t in threats])


def _in_words(v: MethodRow, name: str, fill: str) -> list[dict[str, str]]:
    """The words of a run from elsewhere about itself, or the words that would fill the card."""
    words = dict.fromkeys(f[name] for e in v.evidence[:1] for f in e.findings if f.get(name))
    stated = [text for text in words if text not in ("not stated", "unknown")]
    if stated:
        return [
            {"value": _symbol(text.partition(":")[0]), "note": text.partition(": ")[2] or ELSEWHERE}
            for text in stated[:1]
        ]
    return [{"value": EMPTY, "note": f"not stated: {fill}"}]


def _how_to_noise(v: MethodRow) -> str:
    """A clause on how to train with noise in the place of a method that adds none; empty where it cannot be told."""
    if not v.trained or v.method not in METHODS or math.isfinite(v.epsilon):
        return ""
    facts = METHODS[v.method].facts
    if facts.on_shares:
        return ""
    if facts.private or "privacy" in v.evidence[0].setting:
        return "; --epsilon 1 adds noise"
    private = next(
        (name for name, plugin in METHODS.items() if plugin.facts.learner == facts.learner and plugin.facts.private),
        None,
    )
    return f"; --method {private} --epsilon 1 adds noise" if private else ""


def _symbol(word: str) -> str:
    return "∞" if word == "infinity" else word
