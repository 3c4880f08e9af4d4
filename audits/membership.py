"""Membership audit: AUROC with an interval that respects clients, three controls, and a verdict in plain language.

Every number about an attack stands beside the same number of the public base model and of a blind classifier. Verdicts: *leak* (the
interval is clear of 0.5, and the attack beats both controls on the same records), *no leak found* (the interval covers 0.5), *confounded*
(a control itself is off 0.5, or the attack cannot be told from a control).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from audits import ranking
from audits.base import Finding
from audits.comparisons import Attacked, Comparison, comparisons
from audits.ranking import Interval

FPRS = (0.1, 0.01, 0.001)
CONTROL_CONFIDENCE = 0.99  # a control is called off 0.5 at this level: two controls stand beside every row
LOSS = "loss/caption"
STRONGEST = "loss-base/caption"


@dataclass(frozen=True)
class Params:
    confidence: float = field(default=0.95, metadata={"help": "of all intervals"})

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence must lie between 0.5 and 1, not {self.confidence}")


def headline_signals(attack_signal: str) -> tuple[str, str]:
    """The two scores that were fixed before looking: the attack's own and the strongest sibling."""
    return attack_signal, STRONGEST


def membership(
    run: Attacked, params: Params, *, attack_signal: str, names: dict[str, Any], epsilon: Mapping[str, str]
) -> list[Finding]:
    """All findings of an attacked run; `names` holds method, attack, task and seed, `epsilon` what is claimed and provable in words."""
    found = []
    for comparison in comparisons(run):
        for signal in dict.fromkeys((*headline_signals(attack_signal), LOSS)):
            shared = names | {
                "threat_model": comparison.threat_model,
                "way": comparison.way,
                "population": comparison.population,
                "nonmembers": comparison.nonmembers,
                "signal": signal,
                "headline": signal in headline_signals(attack_signal),
                "confidence": params.confidence,
            }
            found += _rows(comparison, signal, shared, params.confidence, epsilon)
    return found


def measure(comparison: Comparison, values: Any, confidence: float) -> Interval:
    """AUROC of `values` on a comparison's records: pooled for one model, the mean over clients for one model each."""
    if comparison.per_client:
        return ranking.client_auroc(values, comparison.member, comparison.client, confidence=confidence)[0]
    return ranking.auroc(values, comparison.member, comparison.client, confidence=confidence)


def _beats(comparison: Comparison, values: Any, control: Any, confidence: float) -> Interval:
    compare = ranking.client_auroc_difference if comparison.per_client else ranking.auroc_difference
    return compare(values, control, comparison.member, comparison.client, confidence=confidence)


def _rows(
    comparison: Comparison, signal: str, shared: dict[str, Any], confidence: float, epsilon: Mapping[str, str]
) -> list[Finding]:
    values, base_values = comparison.scores[signal], comparison.base[signal]
    auroc = measure(comparison, values, confidence)
    constant = base_values.nunique() == 1
    controls = {"blind": comparison.blind} | ({} if constant else {"base": base_values})
    shown = {name: measure(comparison, control, confidence) for name, control in controls.items()}
    off = [name for name, c in controls.items() if _off_half(measure(comparison, c, CONTROL_CONFIDENCE))]
    differences = [_beats(comparison, values, control, confidence) for control in controls.values()]
    verdict = _verdict(auroc, off, differences, exchangeable=comparison.nonmembers == "held-out")
    counts: dict[str, Any] = {
        "members": auroc.members,
        "nonmembers_n": auroc.nonmembers,
        "clients": _clients(comparison),
    }
    rows = [
        Finding(
            **shared,
            **counts,
            **_numbers(auroc),
            metric="auroc",
            interval=auroc.how,
            **{f"{name}_{end}": getattr(i, end) for name, i in shown.items() for end in ("value", "low", "high")},
            base_note="n/a: constant on the base" if constant else None,
            detectable=ranking.detectable(auroc.members, auroc.nonmembers, counts["clients"], confidence=confidence),
            verdict=verdict,
            sentence=_sentence(comparison, signal, auroc, verdict, off),
            claimed=epsilon["claimed"],
            provable=epsilon["provable"],
            measured="not measured: needs canaries",
        )
    ]
    if comparison.nonmembers == "held-out":
        rows += _thresholded(comparison, signal, shared, counts, confidence)
    return rows


def _thresholded(
    comparison: Comparison, signal: str, shared: dict[str, Any], counts: dict[str, Any], confidence: float
) -> list[Finding]:
    """Balanced accuracy, and TPR at fixed FPRs with thresholds from further held-out records."""
    values, member, client = comparison.scores[signal], comparison.member, comparison.client
    accuracy = ranking.balanced_accuracy(
        values, member, client, confidence=confidence, per_client=comparison.per_client
    )
    rows = [Finding(**shared, **counts, **_numbers(accuracy), metric="balanced_accuracy", interval=accuracy.how)]
    reference = {name: frame[signal].to_numpy() for name, frame in comparison.reference.items()}
    if not any(map(len, reference.values())):
        return rows  # a run without further held-out records has no thresholds
    for fpr in FPRS:
        found = ranking.tpr_at_fpr(
            values,
            member,
            client,
            fpr,
            reference=reference if comparison.per_client else reference[""],
            confidence=confidence,
        )
        rows.append(
            Finding(
                **shared,
                **counts,
                **_numbers(found),
                metric=f"tpr@{100 * fpr:g}%",
                interval="over clients; threshold from reference records",
                status=found.status,
                realised_fpr=_number(found.realised_fpr),
                realised_low=_number(found.realised_low),
                realised_high=_number(found.realised_high),
            )
        )
    return rows


def _verdict(auroc: Interval, off: Sequence[str], differences: Sequence[Interval], *, exchangeable: bool) -> str:
    """One of the three verdicts; where members and non-members are of two distributions, nothing can show a leak."""
    if off:
        return "confounded"
    if _covers_half(auroc):
        return "no leak found"
    above = auroc.low > 0.5
    clear = all(d.low > 0 if above else d.high < 0 for d in differences)
    return "leak" if clear and exchangeable else "confounded"


def _off_half(control: Interval) -> bool:
    """A control's interval excludes 0.5, or it separates perfectly (with few clients the exact bound is wide)."""
    return not _covers_half(control) or control.value in (0.0, 1.0)


def _covers_half(interval: Interval) -> bool:
    return interval.low <= 0.5 <= interval.high


WHO = {
    ("released-model", "final"): "whoever holds the released model",
    ("server", "exact"): "the server, from messages that held a whole model,",
    ("server", "literal"): "the server, rebuilding clients as the paper does,",
    ("server", "newest"): "the server, rebuilding clients from their newest messages,",
    ("server", "server-fill"): "the server, filling what it did not receive with its aggregate,",
    ("owner", "true state"): "the owner of a client's true model (the upper bound)",
}
CONTROL = {"base": "the untrained base model", "blind": "a classifier that never sees a model"}


def _sentence(comparison: Comparison, signal: str, auroc: Interval, verdict: str, off: Sequence[str]) -> str:
    """The verdict in plain language, with its number."""
    who = WHO[comparison.threat_model, comparison.way]
    number = f"AUROC {auroc.value:.3f} [{auroc.low:.3f}, {auroc.high:.3f}] by {in_words(signal)}"
    against = (
        "held-out records of the same clients" if comparison.nonmembers == "held-out" else "records with novel objects"
    )
    pair = f"{comparison.population} from {against}"
    if verdict == "leak":
        reverse = "" if auroc.value > 0.5 else ", in the reverse direction"
        return f"Leak: {who} can tell {pair}{reverse}: {number}."
    if verdict == "no leak found":
        return f"No leak found: {who} could not be shown to tell {pair}: {number}, which covers 0.5."
    if off:
        return f"Confounded: {' and '.join(CONTROL[name] for name in off)} already tells {pair} apart; {number} is no evidence of a leak."
    return f"Confounded: {who} scores {number} on {pair}, which cannot be told from a control on the same records."


def in_words(signal: str) -> str:
    """A signal's name for readers."""
    kind, *rest = signal.split("/")
    if kind == "renyi":
        order, k, part = rest
        return f"MaxRényi-{k}% of order {order} on the {part}"
    names = {"loss": "caption loss", "loss-base": "caption loss calibrated by the base model"}
    return names.get(kind, signal)


def _clients(comparison: Comparison) -> int:
    return len(set(comparison.client[comparison.member]))


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x


def _numbers(x: Interval | ranking.TprAtFpr) -> dict[str, Any]:
    return {name: _number(getattr(x, name)) for name in ("value", "low", "high")}


def cells(run: Attacked, confidence: float) -> pd.DataFrame:
    """AUROC of every signal in every held-out row, with p-values corrected for the number of cells in the row (Holm)."""
    rows = []
    for comparison in comparisons(run):
        if comparison.nonmembers != "held-out":
            continue
        where = {name: getattr(comparison, name) for name in ("threat_model", "way", "population", "nonmembers")}
        found = {
            signal: measure(comparison, comparison.scores[signal], confidence)
            for signal in comparison.scores
            if "/" in signal
        }
        p = [ranking.auroc_p_value(interval) for interval in found.values()]
        for (signal, i), raw, adjusted in zip(found.items(), p, ranking.holm(p), strict=True):
            rows.append(
                where
                | {"signal": signal, "auroc": i.value, "low": i.low, "high": i.high, "p": raw, "p_adjusted": adjusted}
            )
    return pd.DataFrame(rows)
