"""What thresholds give: balanced accuracy, and the true positive rate at small false positive rates.

A threshold owes nothing to the membership that is asked about: it comes from models that the adversary trained itself,
or else from records that are known to be non-members and, for balanced accuracy, from the other half of the records.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from audits.comparisons import Comparison
from audits.findings import Ends, Finding, OfScore
from audits.statistics import ranking, stratified

FPRS = (0.1, 0.01, 0.001)


def thresholded(c: Comparison, about: OfScore) -> list[Finding]:
    """Balanced accuracy, and TPR at fixed FPRs, by thresholds that owe nothing to these records' membership."""
    signal, confidence = about["signal"], about["confidence"]
    known, records = _known(c, signal), c.unit == "records"
    entries = c.scores[signal], c.member, c.client
    if known is None:
        accuracy = ranking.balanced_accuracy(
            *entries, confidence=confidence, per_client=c.per_client, independent=records
        )
        reference = {name: frame[signal].dropna().to_numpy() for name, frame in c.reference.items()}
    else:
        cuts = {name: ranking.best_threshold(frame[signal], frame.member) for name, frame in known.items()}
        accuracy = stratified.accuracy_at(*entries, cuts, confidence=confidence)
        reference = {name: frame[signal][~frame.member].to_numpy() for name, frame in known.items()}
    rows = [Finding(**about, **numbers(accuracy), metric="balanced_accuracy", interval=accuracy.how)]
    if not any(map(len, reference.values())):
        return rows  # a run without further held-out records has no thresholds
    how = "exact binomial" if records else "over clients"
    how += f"; threshold from {'reference records' if known is None else 'models of the adversary'}"
    for fpr in FPRS:
        found = ranking.tpr_at_fpr(
            *entries,
            fpr,
            reference=reference if c.per_client else reference[""],
            confidence=confidence,
            independent=records,
        )
        rows.append(
            Finding(
                **about,
                **numbers(found),
                metric=f"tpr@{100 * fpr:g}%",
                interval=how,
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
        frame = c.pseudo.get(name)
        if frame is None or signal not in frame:
            return None
        found[name] = frame[frame[signal].notna()].astype({"member": bool})
        if min(found[name].member.sum(), (~found[name].member).sum()) < 2:
            return None
    return found


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x


def numbers(x: ranking.Interval | ranking.TprAtFpr) -> Ends:
    return {"value": _number(x.value), "low": _number(x.low), "high": _number(x.high)}
