"""Findings at thresholds: balanced accuracy, and the true positive rate at small false positive rates.

A threshold never depends on the membership of the records that it is used on. For a false positive rate it comes from
the attacked model's scores of reference records, which are known non-members, if there are enough of them; otherwise
from the scores by models that the adversary trained itself. For balanced accuracy, which needs members too, it comes
from the latter, or else from the other half of the records.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import Comparison
from fedaudit.audits.findings import Ends, Finding, OfScore
from fedaudit.audits.statistics.classification import (
    TprAtFpr,
    accuracy_at,
    balanced_accuracy,
    best_threshold,
    tpr_at_fpr,
)
from fedaudit.audits.statistics.intervals import Interval

FPRS = (0.1, 0.01, 0.001)
# Least number of reference records above a threshold: with n records the expected FPR is (floor(fpr n) + 1) / (n + 1),
# which from n = ENOUGH / fpr on is at most a quarter above the nominal one.
ENOUGH = 4


def thresholded(c: Comparison, about: OfScore) -> list[Finding]:
    """The findings of balanced accuracy and of TPR at each FPR of FPRS for the score in `about`, whose fields all
    repeat; no TPR if no scores of other non-members can set its threshold."""
    signal, confidence = about["signal"], about["confidence"]
    targets, records = _shadow_targets(c, signal), c.unit == "records"
    entries = c.scores[signal], c.member, c.client
    if targets is None:
        accuracy = balanced_accuracy(*entries, confidence=confidence, per_client=c.per_client, independent=records)
        of_models = {}
    else:
        cuts = {name: best_threshold(frame[signal], frame.member) for name, frame in targets.items()}
        accuracy = accuracy_at(*entries, cuts, confidence=confidence)
        of_models = {name: frame[signal][~frame.member].to_numpy() for name, frame in targets.items()}
    reference = {name: frame[signal].dropna().to_numpy() for name, frame in c.reference.items()}
    rows = [Finding(**about, **numbers(accuracy), metric="balanced_accuracy", interval=accuracy.how)]
    for fpr in FPRS:
        enough = bool(reference) and min(map(len, reference.values())) * fpr >= ENOUGH
        others, source = of_models, "models of the adversary"
        if enough or not of_models:
            others, source = reference, "reference records"
        if not any(map(len, others.values())):
            continue  # a run without further held-out records has no thresholds
        rate = tpr_at_fpr(
            *entries, fpr, reference=others if c.per_client else others[""], confidence=confidence, independent=records
        )
        rows.append(
            Finding(
                **about,
                **numbers(rate),
                metric=f"tpr@{100 * fpr:g}%",
                interval=f"{'exact binomial' if records else 'over clients'}; threshold from {source}",
                status=rate.status,
                realised_fpr=_number(rate.realised_fpr),
                realised_low=_number(rate.realised_low),
                realised_high=_number(rate.realised_high),
            )
        )
    return rows


def _shadow_targets(c: Comparison, signal: str) -> dict[str, pd.DataFrame] | None:
    """By client, the rows of `Comparison.shadow_targets`, scored by the adversary's own models, that have this score;
    None unless every client has two members and two non-members of these models."""
    scored = {}
    for name in np.unique(c.client).tolist():
        frame = c.shadow_targets.get(name)
        if frame is None or signal not in frame:
            return None
        scored[name] = frame[frame[signal].notna()].astype({"member": bool})
        if min(scored[name].member.sum(), (~scored[name].member).sum()) < 2:
            return None
    return scored


def _number(x: float) -> float | None:
    """The number, or None for NaN."""
    return None if math.isnan(x) else x


def numbers(x: Interval | TprAtFpr) -> Ends:
    """The value and the ends of a result as fields of a finding; None for NaN."""
    return {"value": _number(x.value), "low": _number(x.low), "high": _number(x.high)}
