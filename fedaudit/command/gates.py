"""Gates for continuous integration: `--fail-if "auroc.low > 0.6"` fails a run when a finding crosses a limit. Imports
nothing heavy.

Syntax: [THREAT-MODEL] METRIC[.low|.high] OPERATOR NUMBER, or [THREAT-MODEL] leak, or doubt (about the recording of a
run), or, for measured epsilons, [THREAT-MODEL] METRIC > provable (or claimed). A gate looks at headline scores against
held-out records of the same clients, at accuracies (percent, `accuracy/local.low < 50`) or at measured epsilons
(`measured > 1`, `measured/gaussian > 1`). It compares the value, or a bound of its interval: `auroc.low > 0.6` fails
only if the leak is shown, `auroc.high > 0.6` also if it cannot be ruled out. Intervals are not corrected for the number
of rows; the verdicts that `leak` uses are. A measured epsilon is itself a lower bound, at 95 %; its comparison with the
provable or claimed one is corrected for all bounds, as in the report. No gate goes by a number that is doubted.
"""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.threats import refusal
from fedaudit.audits.findings import MEASURED, MEASURED_GAUSSIAN, MEASURED_SCORES
from fedaudit.command.argv import number
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.plugins import Plugin
from fedaudit.reports.doubts import stated
from fedaudit.reports.measured import P_VALUES, can_refute, count_testable, refutes, sentence
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.splits import SPLITS
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.terms.verdicts import LEAK, LEAKS
from fedaudit.trainers.learners import facts

MEMBERSHIP = ("auroc", "balanced_accuracy", "tpr@10%", "tpr@1%", "tpr@0.1%")
ACCURACY = tuple(split.metric for split in SPLITS)
BOUNDS = (MEASURED, MEASURED_GAUSSIAN, MEASURED_SCORES)
METRICS = MEMBERSHIP + ACCURACY + BOUNDS
DOUBT = "doubt"
LARGEST = 1e6  # epsilon in a gate
SENTENCES = tuple(P_VALUES)  # words that a measured epsilon may be compared with: provable, claimed
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_GATE = re.compile(
    r"(?:(?P<threat>[a-z-]+)\s+)?(?P<metric>[a-z_/@%0-9.]+?)(?:\.(?P<end>low|high|value))?"
    r"\s*(?P<op>[<>]=?)\s*(?P<limit>\S+)"
)


@dataclass(frozen=True)
class Gate:
    """A parsed gate. `end` says what is compared: "value", "low" or "high"; `threat_model` None means all."""

    text: str
    threat_model: str | None
    metric: str
    end: str
    operator: str
    limit: float | str  # a word of SENTENCES
    source: str  # how messages begin: the flag, or file and line

    def check(
        self, learner: str, attacks: Sequence[Plugin[AttackFacts]], canaries: int | None, noised: bool = True
    ) -> None:
        """Raise InputError if no run of these attacks can answer the gate. `canaries` is their number, None if unknown,
        as for external runs, which were trained without our canaries; `noised` says whether any training adds noise."""
        why = None
        if self.metric == DOUBT:
            return
        if self.metric in BOUNDS and canaries is None:
            why = "the run in --run was trained elsewhere, without coins (--split)"
        elif self.metric in BOUNDS and not canaries:
            why = "there are no canaries; add --canaries"
        elif self.metric in BOUNDS and isinstance(self.limit, str) and not noised:
            why = f"no training adds noise, so that no finite epsilon is {self.limit}; add --epsilon"
        elif self.metric in ACCURACY and facts(learner).records != "classes":
            why = f"{facts(learner).noun} have no accuracy here"
        elif self.metric not in ACCURACY and not attacks:
            why = "nothing is attacked; add --attack"
        elif self.threat_model and self.threat_model not in (valid := facts(learner).threat_models):
            why = f"{self.threat_model} sees nothing here; there are {', '.join(valid)}"
        elif self.threat_model and (
            refused := [refusal(attack, self.threat_model, facts(learner)) for attack in attacks]
        ):
            why = refused[0] if all(refused) else None
        if why:
            raise InputError(f"{self.source}: nothing in this run can answer it ({why})")

    def crossed(self, findings: Sequence[dict[str, Any]]) -> list[str]:
        """A sentence for each finding that crosses the gate (meets its condition); [] if none does. InputError: no
        finding can answer it."""
        if self.metric == DOUBT:
            return [f"{self.text}: {sentence}" for sentence in stated(findings)]
        rows = [f for f in findings if f["metric"] == self._metric and self._looks_at(f)]
        self._require_no_doubt(rows, findings)
        if self.metric == LEAK:
            return self._leaks(rows)
        if isinstance(self.limit, str):
            return self._above(self.limit, rows, among=count_testable(findings))
        answers = [f for f in rows if f[self.end] is not None]
        if not answers:
            why = rows[0].get("status", "it has no interval") if rows else "there is no such row"
            raise InputError(f"{self.source}: nothing in this run can answer it ({why})")
        compare = OPERATORS[self.operator]
        return [self._sentence(f) for f in answers if compare(f[self.end], self.limit)]

    def _above(self, kind: str, rows: Sequence[dict[str, Any]], among: int) -> list[str]:
        """A sentence for each bound in `rows` that refutes the epsilon of a `kind`, "provable" or "claimed". `among` is
        the number of bounds to correct for. InputError: there is no bound, or no finite epsilon."""
        compared = [f for f in rows if f[P_VALUES[kind]] is not None]
        if not any(can_refute(f, kind) for f in compared):
            why = f"no finite epsilon is {kind} of the relation that is measured" if rows else "there is no such row"
            if compared:
                most = max(f["ceiling"] for f in compared)
                why = (
                    f"if every guess were right, epsilon would be {most:.3g}, and {compared[0][kind]} is {kind}; more "
                    "canaries show more"
                )
            raise InputError(f"{self.source}: nothing in this run can answer it ({why})")
        return [f"{self.text}: {sentence(f, kind, among)}" for f in rows if refutes(f, kind, among)]

    @property
    def _metric(self) -> str:
        """The metric of the findings that it looks at."""
        return "auroc" if self.metric == LEAK else self.metric

    def _require_no_doubt(self, rows: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]]) -> None:
        """InputError if a doubt about the recording voids a number that the gate looks at, crossed or not."""
        voided = [f for f in rows if f.get("doubt") and f["value"] is not None]
        if voided:
            names = ",".join(dict.fromkeys(name for f in voided for name in f["doubt"].split(", ")))
            raise InputError(
                f"{self.source}: no gate goes by a number that is doubted ({self._sentence(voided[0])}). "
                f"{' '.join(stated(findings)) or voided[0]['sentence']} If you know better: --accept-doubts {names}"
            )

    def _leaks(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """A sentence for each of these AUROCs whose verdict is a leak, in either direction. InputError: none has a
        verdict."""
        judged = [f for f in rows if f["verdict"] is not None]
        if not judged:
            why = rows[0]["status"] if rows else "there is no such row"
            raise InputError(f"{self.source}: nothing in this run can answer it ({why})")
        return [self._sentence(f) for f in judged if f["verdict"] in LEAKS]

    def _looks_at(self, f: dict[str, Any]) -> bool:
        """Whether the gate is about a finding, whose metric is known to be the gate's: always about accuracies; about
        others of its threat model (None: any), and of AUROCs and the like only headline scores against held-out
        records."""
        if self.metric in ACCURACY:
            return True
        if self.metric in BOUNDS:
            return self.threat_model in (None, f["threat_model"])
        return f["headline"] and f["nonmembers"] == HELD_OUT and self.threat_model in (None, f["threat_model"])

    def _sentence(self, f: dict[str, Any]) -> str:
        """A sentence on a finding that crosses the gate: the gate's text, the run, and the number with its interval."""
        digits = 1 if self.metric in ACCURACY else 3
        where = f"{f['method']} (seed {f['seed']})"
        if self.metric in BOUNDS:
            return f"{self.text}: {where}: {f['sentence']}"
        if self.metric not in ACCURACY:
            where += f", {f['threat_model']}, {f['way']}, {f['population']}, {f['signal']}"
        verdict = f", {f['verdict']}" if f.get("verdict") else ""
        bounds = "" if f["low"] is None else f" [{f['low']:.{digits}f}, {f['high']:.{digits}f}]"
        return f"{self.text}: {where}: {f['metric']} {f['value']:.{digits}f}{bounds}{verdict}"


def parse(text: str, source: str = "") -> Gate:
    """The gate that a text such as "server auroc.low > 0.6" or "leak" states. Messages begin with `source`, by default
    the flag. InputError: the text is no gate."""
    source = source or f"--fail-if {text!r}"
    *before, last = text.split() or [""]
    if text.strip() == DOUBT:
        return Gate(DOUBT, None, DOUBT, "value", "", 0.0, source)
    if last == LEAK and len(before) < 2:
        return Gate(text.strip(), _threat(source, before[0] if before else None), LEAK, "value", "", 0.0, source)
    match = _GATE.fullmatch(text.strip())
    form = (
        "it reads [THREAT-MODEL] METRIC[.low|.high] > NUMBER, as in 'auroc.low > 0.6' or 'server auroc > 0.7', or "
        "[THREAT-MODEL] leak, or doubt"
    )
    if match is None:
        raise InputError(f"{source}: not understood; {form}")
    metric, threat = match["metric"], match["threat"]
    if metric not in METRICS:
        raise InputError(f"{source}: no metric {metric}{nearest(metric, METRICS)}; there are {', '.join(METRICS)}")
    _threat(source, threat)
    if threat and metric in ACCURACY:
        raise InputError(f"{source}: {metric} is of no threat model; leave out {threat}")
    if metric in BOUNDS and match["end"]:
        raise InputError(f"{source}: {metric} is a lower bound by itself; leave out .{match['end']}")
    if match["limit"] in SENTENCES:
        if metric not in BOUNDS or match["op"] != ">":
            raise InputError(f"{source}: only {', '.join(BOUNDS)} can be > {match['limit']}")
        return Gate(text.strip(), threat, metric, "value", match["op"], match["limit"], source)
    try:
        limit = number(match["limit"])
    except argparse.ArgumentTypeError:
        raise InputError(f"{source}: {match['limit']} is no number; {form}") from None
    top = 100 if metric in ACCURACY else LARGEST if metric in BOUNDS else 1  # accuracies are percent
    if not 0 <= limit <= top:
        raise InputError(f"{source}: the limit {match['limit']} must lie between 0 and {top:.0f}")
    return Gate(text.strip(), threat, metric, match["end"] or "value", match["op"], limit, source)


def _threat(source: str, name: str | None) -> str | None:
    """Return `name`. InputError if it is given and no threat model has this name."""
    if name and name not in THREAT_MODELS:
        raise InputError(
            f"{source}: no threat model {name}{nearest(name, THREAT_MODELS)}; there are {', '.join(THREAT_MODELS)}"
        )
    return name
