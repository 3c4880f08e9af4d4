"""Success rates and AUROCs of attacks as scores of runs, and their difference between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fedaudit.audits.statistics.stratified import comparable, stratified_auroc_difference
from fedaudit.reports.evidence import Evidence, Finding
from fedaudit.reports.rows import MethodRow, Score, pooled
from fedaudit.reports.verdict_cards import is_headline_auroc
from fedaudit.terms.record_kinds import CANDIDATES
from fedaudit.terms.threat_models import PROMPT_USER

Measured = tuple[float, float | None, float | None]  # value, low and high


def headline_signal(rows: Sequence[MethodRow]) -> str | None:
    """The name of the score (signal) whose success figures draw: the first with success rates by class, else the first
    headline AUROC's; None without either."""
    tables = [e.tables["classes"] for v in rows for e in v.evidence if len(e.tables.get("classes", ()))]
    rated = [str(signal) for table in tables for signal in table.signal]
    first = [f["signal"] for v in rows for e in v.evidence for f in e.findings if is_headline_auroc(f)]
    return next(iter(rated + first), None)


def signals(rows: Sequence[MethodRow]) -> list[str]:
    """The headline signals of all attacks by the prompt-user, in order of appearance."""
    findings = [f for v in rows for e in v.evidence for f in e.findings if is_headline_auroc(f)]
    return list(dict.fromkeys(f["signal"] for f in findings if f["threat_model"] == PROMPT_USER))


def with_leakage(v: MethodRow, signal: str) -> MethodRow:
    """The run with two more scores, where measured, of how well `signal` tells members for the adversary "prompt-user":
    `success` (percent of correct guesses, mean over classes) and `auroc` (0 to 1)."""
    measures = {"success": _success_rate, "auroc": _auroc}
    scores = {name: _score_over_seeds({e.seed: of(e, signal) for e in v.evidence}) for name, of in measures.items()}
    return replace(v, scores={**v.scores, **{name: score for name, score in scores.items() if score}})


def fall(clear: MethodRow, noised: MethodRow, signal: str) -> Score | None:
    """AUROC of `signal` in `clear` minus that in `noised`, for the prompt-user; None if the two have no seed or no
    records in common, or one lacks the signal.

    A seed fixes clients, candidate records and coins, so both trainings had the same members. The interval is that of
    paired scores of the same records within clients (DeLong, records as units). It holds for these trainings only.
    """
    after = {e.seed: e for e in noised.evidence}
    return _score_over_seeds({e.seed: _difference(e, after[e.seed], signal) for e in clear.evidence if e.seed in after})


def _difference(clear: Evidence, noised: Evidence, signal: str) -> Measured | None:
    """AUROC without noise (`clear`) less AUROC with noise (`noised`) of one seed, on the candidates that both scored,
    as (value, low, high); None if either run lacks the signal or nothing can be compared."""
    a, b = (_candidate_scores(e, signal) for e in (clear, noised))
    headline = _headline(clear, signal)
    if a is None or b is None or headline is None:
        return None
    both = a.merge(b, on=["client", "record", "member"], suffixes=("_a", "_b"))
    if not comparable(both.member, both.client.to_numpy()).any():
        return None
    difference = stratified_auroc_difference(
        both.score_a, both.score_b, both.member, both.client.to_numpy(), confidence=headline["confidence"]
    )
    return difference.value, difference.low, difference.high


def _candidate_scores(e: Evidence, signal: str) -> pd.DataFrame | None:
    """The prompt-user's scores of candidate records: client, record, member, score; None without the signal."""
    table = e.tables.get("records")
    if table is None or signal not in table:
        return None
    candidates = table[(table.threat_model == PROMPT_USER) & table.kind.isin(CANDIDATES) & table[signal].notna()]
    return candidates[["client", "record", "member", signal]].rename(columns={signal: "score"})


def _score_over_seeds(by_seed: Mapping[int, Measured | None]) -> Score | None:
    """The score over the seeds that were measured, from (value, low, high) by seed, with the first one's interval; None
    without any."""
    measured = {seed: one for seed, one in by_seed.items() if one is not None}
    if not measured:
        return None
    _, low, high = next(iter(measured.values()))
    return pooled({seed: value for seed, (value, _, _) in measured.items()}, low, high)


def _success_rate(e: Evidence, signal: str) -> Measured | None:
    """DP-FPL's success rate (section A.3) in percent as (value, low, high): correct guesses, mean over a client's
    classes, then over clients; None if it was not measured.

    Clients are independent given the models, so their intervals combine by square-and-add (Zou and Donner 2008).
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
    """The prompt-user's AUROC of `signal` with its interval."""
    headline = _headline(e, signal)
    return None if headline is None else (headline["value"], headline["low"], headline["high"])


def _headline(e: Evidence, signal: str) -> Finding | None:
    """The finding of the prompt-user's AUROC of `signal`; None if it was not measured."""
    measured = (f for f in e.findings if is_headline_auroc(f) and f["value"] is not None)
    return next((f for f in measured if (f["threat_model"], f["signal"]) == (PROMPT_USER, signal)), None)
