"""Membership audit: AUROC with an interval that respects clients, three controls, and a verdict in plain language.

Every number about an attack stands beside the same number of the public base model and of a blind classifier. Verdicts:
*leak* (the interval is clear of 0.5, and the attack beats both controls on the same records), *no leak found* (the
interval covers 0.5), *confounded* (a control itself is off 0.5, or the attack cannot be told from a control).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from audits.blind import FOLDS
from audits.comparisons import COIN, Attacked, Comparison, comparisons
from audits.findings import Finding
from audits.statistics import ranking, stratified
from audits.statistics.one_run import canary_table
from audits.statistics.ranking import Interval
from audits.statistics.thresholds import numbers, thresholded
from audits.subject import Result, Subject
from audits.verdicts import off_half, sentence, verdict_of

NEEDS = ("attacks",)
AFTER = ("utility", "epsilon")

CONTROL_CONFIDENCE = 0.99  # a control is called off 0.5 at this level: two controls stand beside every row
LOSS = "loss/caption"
STRONGEST = "loss-base/caption"
BESIDE = (LOSS,)  # scores that stand beside an attack's headline ones
UNMEASURED = "not measured: needs canaries"

CELLS = (
    "threat_model way population nonmembers signal auroc low high p p_adjusted simultaneous_low simultaneous_high"
).split()

Words = Callable[[str], Mapping[str, str]]  # threat model to what is claimed and provable (and measured)


@dataclass(frozen=True)
class Params:
    confidence: float = field(default=0.95, metadata={"help": "of all intervals"})

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence <= 0.9999:
            raise ValueError(f"confidence must lie between 0.5 and 0.9999, not {self.confidence}")


def membership(subject: Subject, params: Params) -> Result:
    """The findings of a training under attack, and what its canaries could show at most."""
    run, tables = subject.attacked, {}
    if subject.coins:
        tables["canaries"] = canary_table(subject.canary_kind, subject.coins, delta=subject.delta)
    found = findings(run, params, names=subject.names, epsilon=subject.claims) if run else []
    return Result(found, tables)


def findings(run: Attacked, params: Params, *, names: Mapping[str, Any], epsilon: Words) -> list[Finding]:
    """All findings of an attacked run: every attack's headline scores and, corrected for picking it, the best of
    several attacks.

    `names` holds run, method, task and seed, `epsilon` what is claimed and provable in words.
    """
    found = []
    for comparison in comparisons(run):
        rows: list[Finding] = []
        for attack, signals in run.headlines.items():
            beside = [s for s, of in run.signals.items() if of == attack and s in BESIDE and s not in signals]
            for signal in (s for s in (*signals, *beside) if s in comparison.scores):
                shared = {**names, "attack": attack, "headline": signal in signals}
                rows += _rows(comparison, signal, shared, params.confidence, epsilon)
        found += rows
        if len(run.headlines) > 1:
            found += _best(comparison, rows, names, params.confidence, epsilon)
    return found


def measure(comparison: Comparison, values: Any, confidence: float) -> Interval:
    """AUROC of `values` on a comparison's records: pooled for one model, the mean over clients for one model each."""
    c = comparison
    if c.unit == "records":
        return stratified.stratified_auroc(values, c.member, c.client, within=c.within, confidence=confidence)
    if c.per_client:
        return ranking.client_auroc(values, c.member, c.client, confidence=confidence)[0]
    return ranking.auroc(values, c.member, c.client, confidence=confidence)


def _beats(comparison: Comparison, values: Any, control: Any, confidence: float) -> Interval:
    c = comparison
    if c.unit == "records":
        return stratified.stratified_auroc_difference(
            values, control, c.member, c.client, within=c.within, confidence=confidence
        )
    compare = ranking.client_auroc_difference if c.per_client else ranking.auroc_difference
    return compare(values, control, c.member, c.client, confidence=confidence)


def _control(name: str, c: Comparison, scores: Any, confidence: float) -> Interval:
    """A control's AUROC; the blind classifier was cross-fitted."""
    found = measure(c, scores, confidence)
    return ranking.cross_fitted(found, FOLDS) if name == "blind" else found


def _beyond(name: str, signal: str, c: Comparison, scores: Any, confidence: float) -> Interval:
    """By how much an attack beats a control on the same records."""
    found = _beats(c, c.scores[signal], scores, confidence)
    return ranking.cross_fitted(found, FOLDS, control=measure(c, scores, confidence)) if name == "blind" else found


def simultaneous(confidence: float, comparisons: int) -> float:
    """Confidence of each of several intervals that hold all at once (Bonferroni): whichever is picked, it is
    covered."""
    return 1 - (1 - confidence) / comparisons


def _rows(
    comparison: Comparison, signal: str, shared: dict[str, Any], confidence: float, epsilon: Words
) -> list[Finding]:
    """The AUROC, and where a coin made the non-members what thresholds give, of the records that have a score."""
    c = comparison.having(comparison.scores[signal])
    if not c.measurable:
        return [_not_measurable(c, shared | {"signal": signal, "confidence": confidence}, epsilon)]
    auroc = measure(c, c.scores[signal], confidence)
    about = _about(c, signal, shared, auroc, confidence)
    rows = [_auroc(c, about, auroc, epsilon)]
    return rows + thresholded(c, about) if c.nonmembers in COIN else rows


def _best(
    comparison: Comparison, rows: Sequence[Finding], names: Mapping[str, Any], confidence: float, epsilon: Words
) -> list[Finding]:
    """Of several attacks on a comparison the one with the highest AUROC, by an interval that holds for all of them at
    once."""
    rows = [f for f in rows if f.headline and f.metric == "auroc"]
    values = [-1.0 if f.value is None else f.value for f in rows]
    if not rows:
        return []
    top, of = rows[int(np.argmax(values))], sum(value >= 0 for value in values)
    if of < 2:
        return []
    c = comparison.having(comparison.scores[top.signal])
    auroc = measure(c, c.scores[top.signal], simultaneous(confidence, of))
    shared = {**names, "attack": top.attack, "headline": False}
    about = _about(c, top.signal, shared, auroc, confidence)
    return [_auroc(c, about, auroc, epsilon, best_of=of)]


def _about(c: Comparison, signal: str, shared: dict[str, Any], auroc: Interval, confidence: float) -> dict[str, Any]:
    """What all findings about a score on a comparison have in common."""
    clients = auroc.clients if c.unit == "records" else len(set(c.client[c.member]))
    sizes = {"members": auroc.members, "nonmembers_n": auroc.nonmembers, "clients": clients}
    return shared | _place(c) | {"signal": signal, "confidence": confidence} | sizes


def _not_measurable(c: Comparison, shared: dict[str, Any], epsilon: Words) -> Finding:
    """Too few records of a kind have the score."""
    members, others = int(c.member.sum()), int((~c.member).sum())
    return Finding(
        **shared,
        **_place(c),
        **_claims(epsilon, c.threat_model),
        metric="auroc",
        value=None,
        low=None,
        high=None,
        members=members,
        nonmembers_n=others,
        clients=len(set(c.client[c.member])),
        interval="none",
        status=f"not measurable ({min(members, others)})",
    )


def _auroc(
    c: Comparison, about: dict[str, Any], auroc: Interval, epsilon: Words, best_of: int | None = None
) -> Finding:
    """An AUROC with its controls and verdict."""
    signal, confidence, clients = about["signal"], about["confidence"], about["clients"]
    controls = _controls(c, signal)
    shown = {name: _control(name, *control, confidence) for name, control in controls.items()}
    off = [name for name, control in controls.items() if off_half(_control(name, *control, CONTROL_CONFIDENCE))]
    differences = [_beyond(name, signal, *control, auroc.confidence) for name, control in controls.items()]
    verdict = verdict_of(auroc, off, differences, exchangeable=c.exchangeable)
    strata = 1 if c.unit == "records" else clients
    return Finding(
        **about,
        **numbers(auroc),
        **_claims(epsilon, c.threat_model),
        metric="auroc",
        interval=auroc.how + (f", simultaneous over {best_of} attacks (Bonferroni)" if best_of else ""),
        **{f"{name}_{end}": getattr(i, end) for name, i in shown.items() for end in ("value", "low", "high")},
        base_note=None if "base" in controls else _why_no_base(c.base[signal]),
        detectable=ranking.detectable(auroc.members, auroc.nonmembers, strata, confidence=auroc.confidence),
        verdict=verdict,
        sentence=sentence(c, signal, auroc, verdict, off, best_of),
        best_of=best_of,
    )


def _controls(c: Comparison, signal: str) -> dict[str, tuple[Comparison, Any]]:
    """By name the records on which a control can be measured beside the attack, and its scores of them."""
    found: dict[str, tuple[Comparison, Any]] = {}
    if (on := c.having(c.blind)).measurable:
        found["blind"] = on, on.blind
    if c.base[signal].nunique() > 1 and (on := c.having(c.base[signal])).measurable:
        found["base"] = on, on.base[signal]
    return found


def _why_no_base(base: pd.Series) -> str:
    return "n/a: constant on the base" if base.nunique() == 1 else "n/a: not measurable on the base"


def _claims(epsilon: Words, threat_model: str) -> dict[str, Any]:
    return {"measured": UNMEASURED, **epsilon(threat_model)}


def cells(run: Attacked, confidence: float) -> pd.DataFrame:
    """AUROC of every score in every row, with intervals that hold for all of a row at once, and p-values corrected for
    their number (Holm); NaN: not measurable."""
    found = []
    for c in comparisons(run):
        signals = [s for s in c.scores if pd.api.types.is_numeric_dtype(c.scores[s])]
        row = _cells(c, signals, confidence)
        level = simultaneous(confidence, max(1, len(row)))
        for cell in row:
            scored = c.having(c.scores[cell["signal"]])
            i = measure(scored, scored.scores[cell["signal"]], level)
            cell |= {"simultaneous_low": i.low, "simultaneous_high": i.high}
        found += row + [_place(c) | {"signal": s} for s in signals if s not in {cell["signal"] for cell in row}]
    return pd.DataFrame(found, columns=CELLS)


def _cells(c: Comparison, signals: Sequence[str], confidence: float) -> list[dict[str, Any]]:
    scored = {signal: c.having(c.scores[signal]) for signal in signals}
    found = {s: measure(on, on.scores[s], confidence) for s, on in scored.items() if on.measurable}
    p = [ranking.auroc_p_value(interval) for interval in found.values()]
    return [
        _place(c) | {"signal": signal, "auroc": i.value, "low": i.low, "high": i.high, "p": raw, "p_adjusted": adjusted}
        for (signal, i), raw, adjusted in zip(found.items(), p, ranking.holm(p), strict=True)
    ]


def _place(c: Comparison) -> dict[str, Any]:
    return {name: getattr(c, name) for name in ("threat_model", "way", "population", "nonmembers")}
