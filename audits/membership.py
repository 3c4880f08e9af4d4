"""Membership audit: AUROC with an interval that respects clients, the coins' p-value, controls, verdict in plain words.

Every number about an attack stands beside the same number of the public base model and of a blind classifier. Where a
coin of ours decided who is a member, a finding has the raw p-value of the permutation test; its verdict belongs to the
report, which corrects it for all scores of its family. Else verdicts come from the controls (`audits.verdicts`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.audits.blind import FOLDS
from fedaudit.audits.comparisons import Comparison, ScoredRun, comparisons
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import NO_CANARIES, THESE, Claims, Ends, Finding, Names, OfAttack, OfScore, Place
from fedaudit.audits.permutation_test import by_coin, row_of
from fedaudit.audits.settings import Confident
from fedaudit.audits.statistics import ranking, stratified
from fedaudit.audits.statistics.intervals import CONSTANT, Interval, auroc_p_value, cross_fitted, detectable, holm
from fedaudit.audits.statistics.one_run import canary_table
from fedaudit.audits.statistics.thresholds import numbers, thresholded
from fedaudit.audits.subject import Result, Subject
from fedaudit.audits.verdicts import (
    Largest,
    by_controls,
    control_p_value,
    corrected,
    in_blocks,
    least_leak,
    sentence,
    together,
)
from fedaudit.terms.nonmembers import BY_COIN, HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.verdicts import INCONCLUSIVE, LEAKS

# a control with a smaller p-value makes a row without coins *confounded*; there are two controls beside each row
CONTROL_LEVEL = 0.01
DOUBT_LEVEL = 5e-5  # and with one below this the lists of the run are doubted: .0005 for some ten different controls
BESIDE = ("loss",)  # scores that are reported beside an attack's headline ones

CELLS = (
    "threat_model way population nonmembers signal auroc low high z t p p_adjusted family "
    "simultaneous_low simultaneous_high"
).split()

Words = Callable[[str], Claims]  # of a threat model the claimed, provable and measured epsilon, in words


class Facts(AuditFacts):
    needs = ("attacks",)
    after = ("utility", "epsilon", "claim")


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def membership(subject: Subject, params: Params) -> Result:
    """The findings of an attacked training, with the tables `canaries` (the largest epsilon that they could show, see
    `canary_table`; absent without canaries) and `permutations` (a row per exchange of coins: the largest statistic of
    each family of scores). Without an attack there is no more than `canaries`."""
    run, tables = subject.attacked, {}
    if subject.coins:
        tables["canaries"] = canary_table(subject.canary_kind, subject.coins, delta=subject.delta)
    if run is None:
        return Result((), tables)
    tables["permutations"] = by_coin(run).largest
    return Result(findings(run, params, names=subject.names, epsilon=subject.claims), tables)


def findings(run: ScoredRun, params: Params, *, names: Names, epsilon: Words) -> list[Finding]:
    """All findings of an attacked run: for every comparison those of each attack's headline scores and of the plain
    loss and, if there are several attacks, that of the best one, corrected for picking it.

    `names` holds run, method, task and seed; `epsilon` gives the claims about epsilon of a threat model in words.
    """
    all_findings = []
    for comparison in comparisons(run):
        rows: list[Finding] = []
        for attack, signals in run.headlines.items():
            beside = [s for s, of in run.signals.items() if of == attack and s in BESIDE and s not in signals]
            for signal in (s for s in (*signals, *beside) if has_scores(comparison, s)):
                headline = signal in signals and not comparison.descriptive
                shared: OfAttack = {**names, "attack": attack, "headline": headline}
                rows += _rows(run, comparison, signal, shared, params.confidence, epsilon)
        all_findings += rows
        if len(run.headlines) > 1:
            all_findings += _best(run, comparison, rows, names, params.confidence, epsilon)
    return all_findings


def has_scores(c: Comparison, signal: str) -> bool:
    """Whether a comparison has the score `signal`; against records of another distribution, which some attacks leave
    out, also whether one of these has it."""
    if signal not in c.scores or c.nonmembers != NOVEL_OBJECTS:
        return signal in c.scores
    return bool(c.scores[signal][~c.member].notna().any())


def _coin(run: ScoredRun, c: Comparison, signal: str, confidence: float) -> dict[str, Any]:
    """The permutation test of a score, {"z", "t", "p", "part", "family"}, "base_z" of its control (None: not tested),
    and what would be called a leak if this run were the only one of its report, "detectable" and "detectable_named";
    empty if no coins decided the comparison."""
    tests, row = by_coin(run), row_of(c, signal)
    if row not in tests.scores:
        return {}
    test = tests.scores[row]
    needed = least_leak(test.family, together([tests.largest]), level=1 - confidence)
    auroc, named = test.detectable(needed)
    return {
        "z": test.z, "t": test.t, "p": test.p, "part": test.part, "family": test.family, "base_z": tests.base.get(row),
        "detectable": auroc, "detectable_named": named,
    }  # fmt: skip


def measure(comparison: Comparison, values: pd.Series, confidence: float) -> Interval:
    """AUROC of `values` [n], without NaN, on a comparison's records, with its interval over clients or records: pooled
    under a shared model, else the mean over clients' own models."""
    c = comparison
    if c.unit == "records" and c.per_client:
        auroc = stratified.stratified_auroc(values, c.member, c.client, within=c.within, confidence=confidence)
        return dataclasses.replace(auroc, how=f"{auroc.how}, {THESE}")
    if c.unit == "records":
        auroc = ranking.auroc(values, c.member, np.zeros(len(c.member)), confidence=confidence)
        clients = len(np.unique(c.client[c.member]))  # a record of another distribution is of no client
        return dataclasses.replace(auroc, clients=clients, how=f"{auroc.how}, {THESE}")
    if c.per_client:
        return ranking.client_auroc(values, c.member, c.client, confidence=confidence)[0]
    return ranking.auroc(values, c.member, c.client, confidence=confidence)


def difference(comparison: Comparison, values: pd.Series, control: pd.Series, confidence: float) -> Interval:
    """AUROC of `values` [n] less that of `control` [n] on a comparison's records, with its interval; pooled or averaged
    as in `measure`."""
    c = comparison
    if c.unit == "records" and c.per_client:
        return stratified.stratified_auroc_difference(
            values, control, c.member, c.client, within=c.within, confidence=confidence
        )
    if c.unit == "records":
        return ranking.auroc_difference(values, control, c.member, np.zeros(len(c.member)), confidence=confidence)
    compare = ranking.client_auroc_difference if c.per_client else ranking.auroc_difference
    return compare(values, control, c.member, c.client, confidence=confidence)


def _control(name: str, c: Comparison, scores: pd.Series, confidence: float) -> Interval:
    """AUROC of the control `name`; wider for the blind classifier, which was cross-fitted."""
    auroc = measure(c, scores, confidence)
    return cross_fitted(auroc, FOLDS) if name == "blind" else auroc


def _beyond(name: str, signal: str, c: Comparison, scores: pd.Series, confidence: float) -> Interval:
    """AUROC of an attack less that of the control `name`, whose scores are `scores`, on the same records."""
    gain = difference(c, c.scores[signal], scores, confidence)
    return cross_fitted(gain, FOLDS, control=measure(c, scores, confidence)) if name == "blind" else gain


def simultaneous(confidence: float, comparisons: int) -> float:
    """Confidence that each of several intervals must have so that all of them hold at once (Bonferroni)."""
    return 1 - (1 - confidence) / comparisons


def _rows(
    run: ScoredRun, comparison: Comparison, signal: str, shared: OfAttack, confidence: float, epsilon: Words
) -> list[Finding]:
    """The findings about one score on a comparison: its AUROC and, if a coin chose the non-members, balanced accuracy
    and TPRs. One finding without a value if too few records have the score. `shared` are the fields of all findings of
    the attack."""
    c = comparison.with_values(comparison.scores[signal])
    if not c.measurable:
        return [_not_measurable(c, signal, shared, confidence, epsilon)]
    auroc = measure(c, c.scores[signal], confidence)
    about = _about(c, signal, shared, auroc, confidence)
    rows = [_auroc(run, c, about, auroc, epsilon)]
    return rows + thresholded(c, about) if c.nonmembers in BY_COIN else rows


def _best(
    run: ScoredRun, comparison: Comparison, rows: Sequence[Finding], names: Names, confidence: float, epsilon: Words
) -> list[Finding]:
    """The AUROC of the best of several attacks on a comparison, in a list; empty if fewer than two are measurable.

    The best has the highest AUROC, with an interval that holds for all of them at once; where coins decided, the
    smallest corrected p-value, which allows for picking it.
    """
    rows = [f for f in rows if f.headline and f.metric == "auroc" and f.value is not None]
    if len(rows) < 2:
        return []
    top = max(rows, key=functools.partial(_strength, together([by_coin(run).largest])))
    c = comparison.with_values(comparison.scores[top.signal])
    auroc = measure(c, c.scores[top.signal], simultaneous(confidence, len(rows)))
    shared: OfAttack = {**names, "attack": top.attack, "headline": False}
    about = _about(c, top.signal, shared, auroc, confidence)
    return [_auroc(run, c, about, auroc, epsilon, best_of=len(rows))]


def _strength(largest: Largest, f: Finding) -> tuple[float, ...]:
    """Sort key of an AUROC: the best attack has the largest."""
    if f.t is None or f.family is None:
        return (f.value or 0.0,)
    return -float(corrected(f.t, f.family, largest)), abs(f.t)


def _about(c: Comparison, signal: str, shared: OfAttack, auroc: Interval | None, confidence: float) -> OfScore:
    """The fields that all findings about a score on a comparison repeat, the fields `shared` of its attack among them;
    `auroc` None: it cannot be measured."""
    clients = auroc.clients if auroc and c.unit == "records" else len(set(c.client[c.member]))
    members, others = (auroc.members, auroc.nonmembers) if auroc else (int(c.member.sum()), int((~c.member).sum()))
    about: OfScore = {**shared, **_place(c), "signal": signal, "confidence": confidence, "members": members,
                      "nonmembers_n": others, "clients": clients}  # fmt: skip
    return about


def _not_measurable(c: Comparison, signal: str, shared: OfAttack, confidence: float, epsilon: Words) -> Finding:
    """The finding without a value: too few members or non-members have the score."""
    about = _about(c, signal, shared, None, confidence)
    nothing: Ends = {"value": None, "low": None, "high": None}
    status = f"not measurable ({min(about['members'], about['nonmembers_n'])})"
    claims = _claims(epsilon, c.threat_model)
    return Finding(**about, **claims, **nothing, metric="auroc", interval="none", status=status)


def _auroc(
    run: ScoredRun, c: Comparison, about: OfScore, auroc: Interval, epsilon: Words, best_of: int | None = None
) -> Finding:
    """The finding of an AUROC with its controls, and with its verdict if no coins decided the comparison."""
    signal, confidence, clients = about["signal"], about["confidence"], about["clients"]
    controls = _controls(c, signal)
    control_aurocs = {name: _control(name, *control, confidence) for name, control in controls.items()}
    p = {name: control_p_value(i) for name, i in control_aurocs.items()}
    strata = 1 if c.unit == "records" else clients
    least = detectable(auroc.members, auroc.nonmembers, strata, confidence=auroc.confidence)
    tested: dict[str, Any] = {"detectable": least} | _coin(run, c, signal, confidence)
    if auroc.how.startswith(CONSTANT):
        tested |= {"detectable": None, "detectable_named": None}
    finding = Finding(
        **about,
        **numbers(auroc),
        **_claims(epsilon, c.threat_model),
        metric="auroc",
        interval=auroc.how + (f", simultaneous over {best_of} attacks (Bonferroni)" if best_of else ""),
        **{f"{name}_{end}": getattr(i, end) for name, i in control_aurocs.items() for end in ("value", "low", "high")},
        base_note=_about_base(c, signal, controls),
        blind_p=p.get("blind"),
        **tested,
        best_of=best_of,
    )
    if c.coin or c.descriptive:
        return finding
    off = [name for name, value in p.items() if value < CONTROL_LEVEL]
    gains = {name: _beyond(name, signal, *control, auroc.confidence) for name, control in controls.items()}
    verdict = by_controls(auroc, off, [*gains.values()], exchangeable=c.exchangeable)
    wider = by_controls(in_blocks(auroc), off, [*map(in_blocks, gains.values())], exchangeable=c.exchangeable)
    if dependent := verdict in LEAKS and wider not in LEAKS:
        verdict = INCONCLUSIVE
    nearest = min(gains.items(), key=lambda gain: abs(gain[1].value), default=None)
    text = sentence(vars(finding), verdict, within=c.within is not None, off=off, unclear=nearest, dependent=dependent)
    # held-out records without coins are those that a run from elsewhere lists: nothing else vouches for the lists
    sure = c.nonmembers == HELD_OUT and any(value < DOUBT_LEVEL for value in p.values())
    return dataclasses.replace(finding, verdict=verdict, sentence=text, doubt="controls" if sure else None)


def _controls(c: Comparison, signal: str) -> dict[str, tuple[Comparison, pd.Series]]:
    """Each control of an attack that can be measured, {"blind" or "base": (the records with scores of both, the
    control's scores of them)}. "blind" never sees a model, "base" is the model before training."""
    controls: dict[str, tuple[Comparison, pd.Series]] = {}
    if (on := c.with_values(c.blind)).measurable:
        controls["blind"] = on, on.blind
    on = c.with_values(c.base[signal])
    if signal in c.before_first_round:  # this control is one model per client, whatever is attacked
        on = dataclasses.replace(on, per_client=True)
    if on.base[signal].nunique() > 1 and on.measurable:
        controls["base"] = on, on.base[signal]
    return controls


def _about_base(c: Comparison, signal: str, controls: dict[str, tuple[Comparison, pd.Series]]) -> str | None:
    """A note on the control of a score by the base model (before training): what replaces it, or why there is none;
    None: it is used as it is."""
    if signal in c.before_first_round and "base" in controls:
        clients = len(np.unique(controls["base"][0].client))
        return f"the released model before each of {clients} of {len(np.unique(c.client))} clients first took part"
    if "base" in controls:
        return None
    if signal in c.before_first_round:
        return "n/a: constant on the base, not measurable on earlier models"
    if c.base[signal].nunique() != 1:
        return "n/a: not measurable on the base"
    return "n/a: constant on the base" + (", where all these clients began" if c.nonmembers in BY_COIN else "")


def _claims(epsilon: Words, threat_model: str) -> Claims:
    """The claims about epsilon in words, of which `measured` is always there."""
    return {"measured": NO_CANARIES, **epsilon(threat_model)}


def cells(run: ScoredRun, confidence: float) -> pd.DataFrame:
    """AUROC of every score on every comparison that has verdicts, a row each; NaN: not measurable.

    Beside the names, the columns are auroc, low, high; z, t, p, p_adjusted and family of the test; and simultaneous_low
    and simultaneous_high, which hold for all scores of a comparison at once. Where coins decided, z, t and p are the
    permutation test's, and p_adjusted is empty until the report; elsewhere p follows from the interval, and p_adjusted
    corrects it for the scores of the comparison (Holm).
    """
    table = []
    for c in (c for c in comparisons(run) if not c.descriptive):
        signals = [s for s in c.scores if pd.api.types.is_numeric_dtype(c.scores[s]) and has_scores(c, s)]
        row = _cells(run, c, signals, confidence)
        measured = {cell["signal"] for cell in row}
        table += row + [_unmeasurable(run, c, signal) for signal in signals if signal not in measured]
    return pd.DataFrame(table, columns=CELLS)


def _cells(run: ScoredRun, c: Comparison, signals: Sequence[str], confidence: float) -> list[dict[str, Any]]:
    """A row of the table `cells` for each measurable score of a comparison, as a dict."""
    scored = {signal: c.with_values(c.scores[signal]) for signal in signals}
    aurocs = {s: measure(on, on.scores[s], confidence) for s, on in scored.items() if on.measurable}
    coins = by_coin(run).scores
    p = [auroc_p_value(interval) for interval in aurocs.values()]
    tests = [
        dataclasses.asdict(coins[row_of(c, signal)]) if c.coin else {"p": raw, "p_adjusted": adjusted}
        for signal, raw, adjusted in zip(aurocs, p, holm(p), strict=True)
    ]
    level = simultaneous(confidence, max(1, len(aurocs)))
    return [
        _place(c)
        | {"signal": signal, "auroc": i.value, "low": i.low, "high": i.high}
        | test
        | dict(zip(("simultaneous_low", "simultaneous_high"), i.at(level), strict=True))
        for (signal, i), test in zip(aurocs.items(), tests, strict=True)
    ]


def _unmeasurable(run: ScoredRun, c: Comparison, signal: str) -> dict[str, Any]:
    """A row of `cells` without numbers. Where coins decided it keeps its family, among whose statistics it counts."""
    test = by_coin(run).scores.get(row_of(c, signal))
    return _place(c) | {"signal": signal, "family": test.family if test else None}


def _place(c: Comparison) -> Place:
    """The fields that name a comparison."""
    return {
        "threat_model": c.threat_model, "way": c.way, "population": c.population, "nonmembers": c.nonmembers
    }  # fmt: skip
