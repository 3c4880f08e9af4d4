"""How far attacks got, as scores of variants beside their accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from audits.statistics.stratified import comparable, stratified_auroc_difference
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.record_kinds import CANDIDATES
from fedaudit.terms.threat_models import PROMPT_USER
from reports.evidence import Evidence, Finding
from reports.rows import MethodRow, Score, pooled

Measured = tuple[float, float | None, float | None]  # value and interval


def headline(found: Sequence[MethodRow]) -> str | None:
    """The score whose success is drawn: that of the first attack which reports a success rate over classes, else the
    first headline."""
    tables = [e.tables["classes"] for v in found for e in v.evidence if len(e.tables.get("classes", ()))]
    rated = [str(signal) for table in tables for signal in table.signal]
    first = [f["signal"] for v in found for e in v.evidence for f in e.findings if single(f)]
    return next(iter(rated + first), None)


def signals(found: Sequence[MethodRow]) -> list[str]:
    """The headline of every attack on whoever uses a prompt, in order."""
    findings = (f for v in found for e in v.evidence for f in e.findings)
    return list(dict.fromkeys(f["signal"] for f in findings if single(f) and f["threat_model"] == PROMPT_USER))


def single(f: Finding) -> bool:
    """Whether this is the AUROC of one attack's headline, members against held-out records."""
    return f["metric"] == "auroc" and f["headline"] and not f.get("best_of") and f["nonmembers"] == HELD_OUT


def with_leakage(v: MethodRow, signal: str) -> MethodRow:
    """The variant with how well `signal` tells its members, for whoever uses a prompt: `success` (%) over classes and
    `auroc`."""
    scores = {"success": _pooled(v, _success, signal), "auroc": _pooled(v, _auroc, signal)}
    return replace(v, scores={**v.scores, **{name: score for name, score in scores.items() if score}})


def fall(clear: MethodRow, noised: MethodRow, signal: str) -> Score | None:
    """AUROC of `signal` in `clear` minus that in `noised`, for whoever uses a prompt; None where the two have no seed
    or no records in common.

    Seeds fix clients, candidate records and coins: both trainings had the same members. The interval is therefore that
    of paired scores of the same records, within clients (DeLong, records as units): about these trainings, not about
    others.
    """
    after = {e.seed: e for e in noised.evidence}
    pairs = {e.seed: _difference(e, after[e.seed], signal) for e in clear.evidence if e.seed in after}
    return _of_seeds({seed: one for seed, one in pairs.items() if one is not None})


def _difference(clear: Evidence, noised: Evidence, signal: str) -> Measured | None:
    a, b = (_scored(e, signal) for e in (clear, noised))
    if a is None or b is None:
        return None
    both = a.merge(b, on=["client", "record", "member"], suffixes=("_a", "_b"))
    if not comparable(both.member, both.client.to_numpy()).any():
        return None
    confidence = next(f["confidence"] for f in clear.findings if single(f))
    found = stratified_auroc_difference(
        both.score_a, both.score_b, both.member, both.client.to_numpy(), confidence=confidence
    )
    return found.value, found.low, found.high


def _scored(e: Evidence, signal: str) -> pd.DataFrame | None:
    """Scores of the records that a coin decided about, by client and record."""
    table = e.tables.get("records")
    if table is None or signal not in table:
        return None
    asked = table[(table.threat_model == PROMPT_USER) & table.kind.isin(CANDIDATES) & table[signal].notna()]
    return asked[["client", "record", "member", signal]].rename(columns={signal: "score"})


def _pooled(v: MethodRow, measure: Callable[[Evidence, str], Measured | None], signal: str) -> Score | None:
    return _of_seeds({e.seed: one for e in v.evidence if (one := measure(e, signal)) is not None})


def _of_seeds(found: Mapping[int, Measured]) -> Score | None:
    """None without any."""
    if not found:
        return None
    _, low, high = next(iter(found.values()))
    return pooled({seed: value for seed, (value, _, _) in found.items()}, low, high)


def _success(e: Evidence, signal: str) -> Measured | None:
    """DP-FPL's number (section A.3) in percent: the mean over a client's classes of right guesses, and the mean of
    these over the clients.

    Given the models, clients are independent: the ends of their intervals join by square-and-add (Zou and Donner 2008).
    """
    table = e.tables.get("classes", ())
    if not len(table):
        return None
    rows = table[
        (table.threat_model == PROMPT_USER) & (table.signal == signal) & (table.label == "mean") & table.success.notna()
    ]
    if rows.empty:
        return None
    value, low, high = (100 * rows[name].to_numpy(float) for name in ("success", "low", "high"))
    down, up = (float(np.linalg.norm(reach)) / len(rows) for reach in (value - low, high - value))
    return float(value.mean()), float(value.mean()) - down, float(value.mean()) + up


def _auroc(e: Evidence, signal: str) -> Measured | None:
    found = (
        f
        for f in e.findings
        if f["metric"] == "auroc" and (f["threat_model"], f["signal"]) == (PROMPT_USER, signal) and single(f)
    )
    return next(((f["value"], f["low"], f["high"]) for f in found if f["value"] is not None), None)
