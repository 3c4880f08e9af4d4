"""Doubts about a recorded run: the checks that raise them, and the findings that each of them voids. Imports nothing
heavy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedaudit.audits.findings import MEASURED_SCORES, MEASURED_WEIGHT, RECORDING
from fedaudit.terms.threat_models import ACTIVE_SERVER, SERVER
from fedaudit.terms.verdicts import DOUBTED

if TYPE_CHECKING:
    from fedaudit.reports.evidence import Evidence, Finding


@dataclass(frozen=True)
class Doubt:
    """The words for what a failed check of a run puts in doubt, and how far that reaches."""

    words: str  # what is doubted, in a page's first sentence
    voids: str = "the numbers of this run say nothing"

    @property
    def of_messages(self) -> bool:
        """Whether it voids only what rests on messages."""
        return self.voids == MESSAGES


MESSAGES = "what rests on messages says nothing"
CONTROLS = "controls"  # of rows by themselves (`audits.membership`), not of the recording
DOUBTS = {  # those that void most first
    "losses": Doubt("the stated losses are not those of the models"),
    "scale": Doubt("adapters fit better at half their scale"),
    "models": Doubt("the global model does not change"),
    "aggregation": Doubt("global models do not follow from the uploads"),
    "open": Doubt("the last round was not closed"),
    "uploads": Doubt("uploads are not what clients trained", MESSAGES),
    "members": Doubt("messages do not fit their own clients' members", MESSAGES),
    "weights": Doubt("the global model is not the stated mean of the uploads", MESSAGES),
    "rounds": Doubt("models and uploads are of different rounds", MESSAGES),
    CONTROLS: Doubt("members and non-members differ without the model", "scores that no coin decided say nothing"),
}


def with_doubts(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence whose findings name in `doubt` the checks that void them, but for those that are accepted."""
    return [replace(e, findings=_with_doubts(e.findings, e.accepted)) for e in evidence]


def _with_doubts(findings: Sequence[Finding], accepted: Sequence[str]) -> list[Finding]:
    recorded = [f["check"] for f in findings if f["metric"] == RECORDING and f.get("doubt")]
    if not recorded and not any(f.get("doubt") for f in findings):
        return list(findings)
    marked = []
    for f in findings:
        names = _checks(f) if f["metric"] == RECORDING else [*_checks(f), *_voiding(f, recorded)]
        marked.append({**f, "doubt": ", ".join(dict.fromkeys(n for n in names if n not in accepted)) or None})
    return marked


def _checks(f: Mapping[str, Any]) -> list[str]:
    """The checks that a finding's `doubt` names; a table may hold NaN for none."""
    return f["doubt"].split(", ") if isinstance(f.get("doubt"), str) else []


def _voiding(f: Finding, doubts: Iterable[str]) -> list[str]:
    """Those of the `doubts` that void a finding."""
    of_messages = f.get("threat_model") in (SERVER, ACTIVE_SERVER) or f["metric"] in (MEASURED_SCORES, MEASURED_WEIGHT)
    return [name for name in doubts if of_messages or not DOUBTS[name].of_messages]


def verdict_word(f: Finding) -> str:
    """The word that stands for a finding's verdict: "doubted" if a doubt voids it; empty without a verdict."""
    return DOUBTED if _checks(f) else f["verdict"] or ""


def stated(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The sentences of all doubts that are not accepted: those of the recording, and one on controls that are off."""
    doubted = [f for f in findings if _checks(f)]
    off = [f["sentence"] for f in doubted if f["metric"] != RECORDING and CONTROLS in _checks(f) and f["sentence"]]
    return list(dict.fromkeys([*(f["sentence"] for f in doubted if f["metric"] == RECORDING), *off[:1]]))


def headline(findings: Iterable[Mapping[str, Any]]) -> str:
    """A sentence on all doubts that are not accepted; empty without any."""
    names = list(dict.fromkeys(itertools.chain(*map(_checks, findings))))
    if not names:
        return ""
    widest = min((DOUBTS[name].voids for name in names), key=[one.voids for one in DOUBTS.values()].index)
    return f"Doubted: {', and '.join(DOUBTS[name].words for name in names)}; {widest}."
