"""What an audit is given, and what it returns: an audit is a function of (Subject, its Params)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from audits.comparisons import ScoredRun
from audits.findings import Claims, Names, OfRun
from audits.measured import words
from fedaudit.privacy.settings import Privacy
from trainers.base import Method
from trainers.transcript import Transcript


@dataclass(frozen=True)
class Result:
    """What an audit says: findings, the tables behind them by name, and what else it keeps, by name, in JSON's
    types."""

    findings: Sequence[OfRun] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A finished training, and what the audits said of it that come before this one (`Facts.after`)."""

    transcript: Transcript
    method: Method[Any] | None  # None: it was trained elsewhere
    privacy: Privacy | None  # None: its method has no noise to ask for
    threat_models: Sequence[str]  # the adversaries that there are
    names: Names  # run, method, task and seed, which every finding repeats
    attacked: ScoredRun | None  # None: nothing was, or no attack could run
    # the canaries of each client under attack, and whether each was inserted
    canaries: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    canary_kind: str = ""
    said: Claims | None = None  # claimed and provable of a training done elsewhere, in words
    newcomers: pd.DataFrame | None = None  # accuracy by start, when, test and client; None: nobody came after the run
    before: Mapping[str, Result] = field(default_factory=dict)  # by audit

    @property
    def coins(self) -> list[bool]:
        """Of the canaries of the clients under attack: whether each was inserted."""
        return [used for own in self.canaries.values() for used in own.values()]

    @property
    def delta(self) -> float:
        """Of what is claimed; 0 where nothing is."""
        return self.privacy.delta if self.privacy else 0.0

    def claims(self, threat_model: str) -> Claims:
        """What is claimed, proven and measured about a client's own record, in words; of a training done elsewhere what
        its folder says."""
        if self.said is not None:
            return self.said
        done = self.before["epsilon"]
        found = in_words(done.tables["privacy"], threat_model)
        return {**found, "measured": words(done.findings, threat_model)} if self.canaries else found


def in_words(privacy: pd.DataFrame, threat_model: str) -> Claims:
    """What the table of the epsilon audit says of a client's own record."""
    row = privacy[privacy.whose == "own"].set_index("threat_model").loc[threat_model]
    proven = f"{row.provable:.3g}" if row.provable < float("inf") else f"infinity: {row.why}"
    return {"claimed": f"{row.claimed:g}" if row.claimed < float("inf") else "none", "provable": proven}
