"""Two trainings on the same records and coins: their scores side by side, and the differences of what these tell.

A difference of AUROCs is DeLong's paired one, clustered by client as the AUROCs are (`audits.membership.difference`).
TPRs at an FPR and numbers of named records are shares of the same members (`audits.statistics.paired`): whom of them
either score calls, above thresholds from reference records, or among as many highest scores.

Coins cannot be exchanged here, as the permutation test does for one method: that asks whether *nothing* leaks, and two
methods that leak alike are no such case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import FEW, Comparison
from fedaudit.audits.findings import THESE
from fedaudit.audits.membership import difference, measure
from fedaudit.audits.run_comparison import AuditedRun
from fedaudit.audits.statistics.arrays import Floats
from fedaudit.audits.statistics.classification import threshold
from fedaudit.audits.statistics.highest import shares, within
from fedaudit.audits.statistics.paired import Student, rate_difference
from fedaudit.terms.populations import OWN_MEMBERS
from fedaudit.terms.record_kinds import CANDIDATES, REFERENCE

A, B = "a", "b"
Finding = Mapping[str, Any]
Ends = Callable[[float], tuple[float, float]]


@dataclass(frozen=True)
class OnShared:
    """A quantity of two trainings on the same records, and `ends`, which gives (low, high) of the interval of `b` less
    `a` at a confidence."""

    a: float
    b: float
    ends: Ends


@dataclass(frozen=True, eq=False)
class Shared:
    """The candidates and reference records that two trainings scored, under the same names."""

    candidates: Comparison  # with the scores "a" and "b"
    reference: pd.DataFrame  # client, a, b

    @property
    def counts(self) -> dict[str, int]:
        """Members, non-members and clients."""
        c = self.candidates
        return {
            "members": int(c.member.sum()),
            "nonmembers_n": int((~c.member).sum()),
            "clients": len(np.unique(c.client[c.member])),
        }

    def auroc(self) -> OnShared:
        """AUROCs."""
        c = self.candidates
        a, b = (measure(c, c.scores[name], 0.95).value for name in (A, B))
        return OnShared(a, b, self._auroc_ends())

    def _auroc_ends(self) -> Ends:
        """Intervals of the difference of AUROCs."""
        c = self.candidates
        d = difference(c, c.scores[B], c.scores[A], 0.95)
        if d.se > 0:
            return Student(d.value, d.value, d.se, d.dof).ends

        def ends(level: float) -> tuple[float, float]:
            exact = difference(c, c.scores[B], c.scores[A], level)
            return exact.low, exact.high

        return ends

    def tpr(self, fpr: float) -> OnShared:
        """Shares of members above the threshold that this share of the reference records exceeds."""
        return self._of_members(self._above(A, fpr), self._above(B, fpr))

    def named(self, records: int) -> OnShared:
        """Numbers of members among so many highest scores: within clients, where each has a model of its own. Equal
        scores at the border share the places that are left."""
        c = self.candidates
        values = c.scores[[A, B]].to_numpy()
        values = within(values, c.client) if c.per_client else values
        a, b = shares(values, [records])[:, 0]
        return self._of_members(a, b, scale=int(c.member.sum()))

    def _of_members(self, a: Floats, b: Floats, scale: float = 1.0) -> OnShared:
        """The means over members of `a` [n] and `b` [n], between 0 and 1, times `scale`."""
        m = self.candidates.member
        unit = np.arange(m.sum()) if self.candidates.unit == "records" else self.candidates.client[m]

        d = rate_difference(b[m], a[m], unit)

        def ends(level: float) -> tuple[float, float]:
            low, high = d.ends(level)
            return scale * low, scale * high

        return OnShared(scale * float(a[m].mean()), scale * float(b[m].mean()), ends)

    def _above(self, name: str, fpr: float) -> Floats:
        """1 where a candidate's score [n] is above the threshold: its client's, where each has its own model."""
        c, values = self.candidates, self.candidates.scores[name].to_numpy()
        if not c.per_client:
            return (values > threshold(self.reference[name].to_numpy(), fpr)).astype(np.float64)
        cuts = {client: threshold(part[name].to_numpy(), fpr) for client, part in self.reference.groupby("client")}
        return (values > np.array([cuts[client] for client in c.client])).astype(np.float64)


def shared_records(runs: Sequence[AuditedRun], findings: Sequence[Finding]) -> Shared | str:
    """The records that two runs share, with the scores of a finding of each; or, in words, why there are none that can
    be compared pair by pair."""
    first, second = findings
    if first["population"] != second["population"]:
        return "one adversary has a model of each client, the other one model of all"
    if any("records" not in run.tables for run in runs):
        return "the scores of their records are not on disk"
    if runs[0].setting.get("data_seed") != runs[1].setting.get("data_seed"):
        return "their records and coins were drawn with different seeds"
    tables = [_scores(run, f, name) for run, f, name in zip(runs, findings, (A, B), strict=True)]
    both = tables[0].merge(tables[1], on=["client", "record"], suffixes=("", "_b"))
    if not len(both):
        return "they have no scored records in common"
    if (both.member != both.member_b).any() or (both.kind != both.kind_b).any():
        return "their coins fell differently"
    candidates, reference = both[both.kind.isin(CANDIDATES)], both[both.kind == REFERENCE]
    comparison = _comparison(candidates.reset_index(drop=True), first, second)
    if not comparison.measurable:
        return "they have too few scored records in common"
    return Shared(comparison, reference)


def _scores(run: AuditedRun, f: Finding, name: str) -> pd.DataFrame:
    """Client, record, kind, member, and as `name` the score of a finding, of all records that have it."""
    table = run.tables["records"]
    rows = table[(table.threat_model == f["threat_model"]) & (table.way == f["way"])]
    scored = rows[["client", "record", "kind", "member", f["signal"]]].rename(columns={f["signal"]: name})
    return scored.dropna(subset=[name]).astype({"member": bool})


def _comparison(rows: pd.DataFrame, first: Finding, second: Finding) -> Comparison:
    few = rows.client.nunique() <= FEW or any(THESE in f["interval"] for f in (first, second))
    return Comparison(
        threat_model=first["threat_model"],
        way=first["way"],
        round=0,
        population=first["population"],
        nonmembers=first["nonmembers"],
        per_client=first["population"] == OWN_MEMBERS,
        client=rows.client.to_numpy(dtype=str),
        record=rows.record.to_numpy(dtype=str),
        member=rows.member.to_numpy(dtype=bool),
        scores=rows[[A, B]],
        base=pd.DataFrame(),
        blind=np.empty(0),
        reference={},
        unit="records" if few else "clients",
    )
