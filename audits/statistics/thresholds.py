"""What thresholds give: balanced accuracy, and the true positive rate at small false positive rates.

A threshold owes nothing to the membership that is asked about. For a false positive rate it comes from the attacked
model's own scores of records that are known to be non-members, where there are enough of them, and otherwise from
models that the adversary trained itself, whose scores are those of other models; for balanced accuracy, which needs
members too, from the latter, or else from the other half of the records.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from audits.comparisons import Comparison
from audits.findings import Ends, Finding, OfScore
from audits.statistics.classification import TprAtFpr, accuracy_at, balanced_accuracy, best_threshold, tpr_at_fpr
from audits.statistics.intervals import Interval

FPRS = (0.1, 0.01, 0.001)
# Known non-members above the threshold: with n of them the expected rate is (floor(fpr n) + 1) / (n + 1), so that from
# n = ENOUGH / fpr on it is at most a quarter above the nominal one.
ENOUGH = 4


def thresholded(c: Comparison, about: OfScore) -> list[Finding]:
    """Balanced accuracy, and TPR at fixed FPRs, by thresholds that owe nothing to these records' membership."""
    signal, confidence = about["signal"], about["confidence"]
    known, records = _known(c, signal), c.unit == "records"
    entries = c.scores[signal], c.member, c.client
    if known is None:
        accuracy = balanced_accuracy(*entries, confidence=confidence, per_client=c.per_client, independent=records)
        of_models = {}
    else:
        cuts = {name: best_threshold(frame[signal], frame.member) for name, frame in known.items()}
        accuracy = accuracy_at(*entries, cuts, confidence=confidence)
        of_models = {name: frame[signal][~frame.member].to_numpy() for name, frame in known.items()}
    reference = {name: frame[signal].dropna().to_numpy() for name, frame in c.reference.items()}
    rows = [Finding(**about, **numbers(accuracy), metric="balanced_accuracy", interval=accuracy.how)]
    for fpr in FPRS:
        enough = bool(reference) and min(map(len, reference.values())) * fpr >= ENOUGH
        others, whose = of_models, "models of the adversary"
        if enough or not of_models:
            others, whose = reference, "reference records"
        if not any(map(len, others.values())):
            continue  # a run without further held-out records has no thresholds
        found = tpr_at_fpr(
            *entries,
            fpr,
            reference=others if c.per_client else others[""],
            confidence=confidence,
            independent=records,
        )
        rows.append(
            Finding(
                **about,
                **numbers(found),
                metric=f"tpr@{100 * fpr:g}%",
                interval=f"{'exact binomial' if records else 'over clients'}; threshold from {whose}",
                status=found.status,
                realised_fpr=_number(found.realised_fpr),
                realised_low=_number(found.realised_low),
                realised_high=_number(found.realised_high),
            )
        )
    return rows


def _known(c: Comparison, signal: str) -> dict[str, pd.DataFrame] | None:
    """By client a score under models whose members the adversary knows; None unless every client has two of both
    kinds."""
    found = {}
    for name in np.unique(c.client).tolist():
        frame = c.shadow_targets.get(name)
        if frame is None or signal not in frame:
            return None
        found[name] = frame[frame[signal].notna()].astype({"member": bool})
        if min(found[name].member.sum(), (~found[name].member).sum()) < 2:
            return None
    return found


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x


def numbers(x: Interval | TprAtFpr) -> Ends:
    return {"value": _number(x.value), "low": _number(x.low), "high": _number(x.high)}
