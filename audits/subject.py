"""The input and the result of an audit, a function of (Subject, its Params); `audits.facts` says how to write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedaudit.audits.comparisons import ScoredRun
from fedaudit.audits.findings import Claims, Names, OfRun
from fedaudit.audits.measured import words
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Method
from fedaudit.trainers.transcript import Transcript

ADD_OR_REMOVE = "add or remove"  # the relation of a run from elsewhere: who was left out by a coin was absent
DELTA = 1e-5  # of bounds on epsilon beside which such a run claims none
COMPARABLE = (ADD_OR_REMOVE, "zero-out")  # relations of claims that its bounds are compared with


@dataclass(frozen=True)
class Result:
    """The result that your audit returns. All three parts may be empty.

    `findings` become rows of findings.json and of the page: one for each number, below `audits.findings.OfRun`.
    `tables` by name are the data behind them, for sections of the page. `kept` by name goes to disk as JSON files.
    """

    findings: Sequence[OfRun] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A finished training as your audit gets it, with the results of the audits that you name in `Facts.after`.

    You find the attacks' scores with the truth in `attacked` (compare them by `audits.comparisons.comparisons`), every
    round's messages and models in `transcript`, other audits' results in `before`. Findings take `**subject.names`.
    """

    transcript: Transcript
    method: Method[Any] | None  # None: the run was trained elsewhere
    privacy: Privacy | None  # None: the method takes no epsilon
    threat_models: Sequence[str]  # the adversaries of this run
    names: Names  # run, method, task and seed
    attacked: ScoredRun | None  # None: there was no attack, or none could run
    # by client under attack its canaries, and whether each was trained on
    canaries: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    canary_kind: str = ""
    said: Claims | None = None  # of a run trained elsewhere: its claims as its folder states them
    # of a run trained elsewhere with coins: an epsilon with delta, unit and neighbours, {} if it claims none
    claim: Mapping[str, Any] | None = None
    # accuracy by start, when, test and client; None: no client joined after the run
    newcomers: pd.DataFrame | None = None
    before: Mapping[str, Result] = field(default_factory=dict)  # by the name of the audit

    @property
    def coins(self) -> list[bool]:
        """For each canary of the clients under attack, whether it was trained on."""
        return [inserted for canaries in self.canaries.values() for inserted in canaries.values()]

    @property
    def epsilon(self) -> float:
        """The epsilon that the noise was chosen for; infinity: there is none."""
        return self.privacy.epsilon if self.privacy else float("inf")

    @property
    def delta(self) -> float:
        """The delta of the claimed guarantee; if nothing is claimed 0, or of a run from elsewhere with coins DELTA."""
        if self.claim is not None:
            return float(self.claim.get("delta", DELTA))
        return self.privacy.delta if self.privacy else 0.0

    def claims(self, threat_model: str) -> Claims:
        """The claimed, provable and measured epsilon for a client's own record against an adversary, in words. Needs
        the result of the epsilon audit, except for a run trained elsewhere."""
        if self.said is not None:
            if (result := self.before.get("claim")) is None:
                return self.said
            neighbours = (self.claim or {}).get("neighbours", ADD_OR_REMOVE)
            other = "" if neighbours in COMPARABLE else f" (of {ADD_OR_REMOVE}: no check of a claim of {neighbours})"
            return {**self.said, "measured": words(result.findings, threat_model) + other}
        result = self.before["epsilon"]
        claims = in_words(result.tables["privacy"], threat_model)
        return {**claims, "measured": words(result.findings, threat_model)} if self.canaries else claims


def in_words(privacy: pd.DataFrame, threat_model: str) -> Claims:
    """The claimed and provable epsilon for a client's own record in words, from the epsilon audit's table `privacy`."""
    row = privacy[privacy.whose == "own"].set_index("threat_model").loc[threat_model]
    proven = f"{row.provable:.3g}" if row.provable < float("inf") else f"infinity: {row.why}"
    return {"claimed": f"{row.claimed:g}" if row.claimed < float("inf") else "none", "provable": proven}
