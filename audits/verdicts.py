"""Verdicts about AUROCs: one of five words, its sentence for readers, and the alarm of a control that is off.

Where our coins decided who is a member (`Comparison.coin`), the permutation test decides: *leak* if the p-value,
corrected for all scores of its family in a report, is at most 1 - confidence (*leak, score reversed* if the statistic t
is negative: the ranking as a whole, turned round). *Inconclusive* is a score that was named beforehand (`BEFOREHAND`)
and nearly leaks: the p-value corrected within its own family is so small, but not at that family's share of the error,
or its AUROC is beyond what would have been detected. All else is *no leak found*. A control that is off there is luck
or a fault, and gives a sentence beside the verdict.

Where no coins did (another distribution, a run trained elsewhere), a row is compared with its controls: *confounded* if
a control itself is off 0.5, or if members and non-members are of two distributions, of which a model learns more than
its members; *leak* if its interval is clear of 0.5 and it beats every control on the same records, also if records
depend on each other in blocks (`in_blocks`); *inconclusive* if it is clear of 0.5 and so many records cannot tell it
from a control, or would not if they depend; *no leak found* if the interval covers 0.5.

A score that is the same for all records of a comparison can show no leak, whatever there is: *inconclusive*, unless a
control is off.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedaudit.attacks.score_names import name_of
from fedaudit.audits.findings import BEFOREHAND, THESE, WHOLE_RANKING
from fedaudit.audits.statistics.intervals import CONSTANT, Interval, auroc_p_value
from fedaudit.audits.statistics.permutation import critical, p_value
from fedaudit.terms.nonmembers import HELD_OUT, NONMEMBERS
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.term import find
from fedaudit.terms.verdicts import CONFOUNDED, INCONCLUSIVE, LEAK, LEAKS, NO_LEAK_FOUND, REVERSED, Verdict

# Each family's share of the chance of 5 % that any score which leaks nothing is called a leak: 5 % for each family
# would be up to 15 % for a page. One score has half for itself: the coins of eight records tell one score of eight from
# luck hardly, and one score alone well.
SHARES = {"named": 0.5, "primary": 0.4, "secondary": 0.1}
CONTROL_LEVEL = 0.01  # of all controls of a report, half for the base models and half for the blind classifiers

ENOUGH = 8  # named records that can be told from luck in one score of eight: 8 / 2 ** 8 is below 5 %
FEW_NAMED = (
    "A client here has few members. Nobody could find fewer than five named records by one score alone, or fewer than"
    " eight by one of eight scores: coins fall so by luck."
)

BLOCK = 10  # records that may depend on each other where no coin decided, and clients are too few to be the units

CALIBRATED = "loss/base"  # the score that members of a trained model are sure to have lower, if any

Largest = Mapping[str, npt.NDArray[np.float64]]  # by family, the largest statistics [1 + exchanges]

BLIND = "a classifier that never sees a model"
CONTROL = {"base": "the same attack on a model that learnt none of them", "blind": BLIND}


def by_the_coin(t: float, p_adjusted: float, *, level: float, close: bool = False) -> Verdict:
    """The verdict where our coins decided: a leak (reversed if the statistic t is negative) if the p-value corrected
    for its family is at most `level`, such as 0.05; inconclusive if it is `close` to that."""
    if p_adjusted > level:
        return INCONCLUSIVE if close else NO_LEAK_FOUND
    return LEAK if t > 0 else REVERSED


def _close(f: Mapping[str, Any], largest: Largest, *, level: float) -> bool:
    """Whether a finding that was named beforehand nearly leaks: within its own family p is at most `level`, or its
    AUROC is beyond what would have been detected."""
    if f["family"] not in BEFOREHAND:
        return False
    beyond = f["detectable"] is not None and 0.5 + abs(f["value"] - 0.5) > f["detectable"]
    return beyond or float(p_value(f["t"], largest[f["family"]])) <= level


def by_controls(auroc: Interval, off: Sequence[str], differences: Sequence[Interval], *, exchangeable: bool) -> Verdict:
    """The verdict where no coins decided, from an AUROC, the names of controls that are `off` 0.5, and the AUROC's
    differences to all controls. `exchangeable`: members and non-members are of one distribution.

    Confounded if a control is off, or if they are not exchangeable and the AUROC is clear of 0.5; else a leak, or the
    reverse, only if the AUROC beats every control clearly; inconclusive without controls.
    """
    if off:
        return CONFOUNDED
    if auroc.how.startswith(CONSTANT):
        return INCONCLUSIVE
    if auroc.low <= 0.5 <= auroc.high:
        return NO_LEAK_FOUND
    if not exchangeable:
        return CONFOUNDED
    above = auroc.low > 0.5
    if not differences or not all(d.low > 0 if above else d.high < 0 for d in differences):
        return INCONCLUSIVE
    return LEAK if above else REVERSED


def in_blocks(interval: Interval) -> Interval:
    """The interval if its records were independent in blocks of `BLOCK` only; as it is where clients are its units."""
    if interval.dof is not None:
        return interval
    value, wider = interval.value, math.sqrt(BLOCK)
    ends = value - wider * (value - interval.low), value + wider * (interval.high - value)
    return dataclasses.replace(interval, low=ends[0], high=ends[1])


def control_p_value(control: Interval) -> float:
    """Two-sided p-value of a control's AUROC being 0.5; of an AUROC of 0 or 1 at most the p-value of such an order
    among all orders of the records, since with few clients the exact bound is wide."""
    p = auroc_p_value(control)
    if control.value in (0.0, 1.0):
        return min(p, 2 / math.comb(control.members + control.nonmembers, control.members))
    return p


def judged(findings: Sequence[Mapping[str, Any]], largest: Largest, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """The findings of all runs of a report, in order. Those that coins decided get p_adjusted, family_n (scores in
    their family), verdict, sentence and alarm; the others are copied. `largest` is from `together`, `sizes` the number
    of scores in each family."""
    coins = [f for f in findings if f.get("z") is not None]
    blind = len({_blind(f) for f in coins if f["blind_p"] is not None})
    rows = []
    for f in findings:
        if f.get("z") is None:
            rows.append(dict(f))
            continue
        p = float(corrected(f["t"], f["family"], largest))
        constant, level = f["interval"].startswith(CONSTANT), 1 - f["confidence"]
        close = constant or _close(f, largest, level=level)
        verdict = by_the_coin(f["t"], p, level=level, close=close)
        alarm = _alarm(f, off_by_the_coin(f, largest, blind))
        row = {**f, "p_adjusted": p, "family_n": sizes[f["family"]], "verdict": verdict, "alarm": alarm}
        rows.append(row | {"sentence": sentence(row, verdict)})
    return rows


def together(largest: Sequence[pd.DataFrame]) -> Largest:
    """By family, the largest statistics of all runs of a report under every exchange of coins [1 + exchanges], from the
    table of each run (`audits.permutation_test.ByCoin.largest`); empty if no table has rows. Runs of one seed have the
    same coins and exchanges."""
    tables = [table for table in largest if len(table)]
    return {name: np.max([table[name] for table in tables], axis=0) for name in (tables[0] if tables else ())}


def corrected(t: npt.ArrayLike, family: str, largest: Largest) -> npt.NDArray[np.float64]:
    """P-values of statistics t (any shape), corrected for all scores of their family (Westfall and Young 1993, single
    step) and for there being three families: at most 5 % of pages call a score a leak that leaks nothing."""
    return np.minimum(1.0, p_value(t, largest[family]) / SHARES[family])


def least_leak(family: str, largest: Largest, *, level: float) -> float:
    """The value that a statistic t of a family must exceed to be called a leak at `level`."""
    return critical(largest[family], SHARES[family] * level)


def off_by_the_coin(f: Mapping[str, Any], largest: Largest, blind: int) -> dict[str, float]:
    """The controls of a finding that are off, {"base" or "blind": p-value}, corrected for all controls of a report:
    base models by their largest statistic, blind classifiers by the number `blind` of their measurements, and both
    doubled for there being two kinds. {} if none is off."""
    p = {}
    if f["base_z"] is not None:
        p["base"] = 2 * float(p_value(f["base_z"], largest["controls"]))
    if f["blind_p"] is not None:
        p["blind"] = 2 * blind * f["blind_p"]
    return {name: value for name, value in p.items() if value <= CONTROL_LEVEL}


def _blind(f: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key of a blind classifier's measurement: equal for all findings on a comparison, and all methods of a seed."""
    return f["seed"], f["nonmembers"], f["blind_value"], f["blind_p"]


def _alarm(f: Mapping[str, Any], off: Mapping[str, float]) -> str | None:
    """The sentence that warns of the controls of a finding that are `off`, with their AUROCs and p-values; None: none
    is."""
    if not off:
        return None
    controls = [f"{CONTROL[name]} has AUROC {f[f'{name}_value']:.3f} (corrected p {p:.2g})" for name, p in off.items()]
    pair = f"on {f['population']} and {_words(f)}"
    return f"Control off: check the pipeline; {' and '.join(controls)} {pair}. Coins made them alike: luck or a fault."


def _words(f: Mapping[str, Any]) -> str:
    """A finding's non-members in words."""
    return find(NONMEMBERS, f["nonmembers"], "nonmembers").words


def among(f: Mapping[str, Any]) -> str:
    """The scores that a p-value is corrected for, such as "among 948 secondary scores"."""
    return f"among {f['family_n']:,} {f['family']} score{'' if f['family_n'] == 1 else 's'}"


def few_members(f: Mapping[str, Any]) -> bool:
    """Whether coins decided a finding and its clients have few members: fewer each than must be named to be found."""
    return f.get("t") is not None and f["members"] < ENOUGH * f["clients"]


def could_be_shown(f: Mapping[str, Any]) -> str:
    """The leaks that a finding which coins decided would have shown, in words."""
    named = "" if f["detectable_named"] is None else f", or {f['detectable_named']} records that are named,"
    return f"an AUROC of {f['detectable']:.2f}{named} would have been shown with a power of 80 %"


def _by_luck(f: Mapping[str, Any]) -> str:
    """A clause on how many of several scores of a finding's family have so small a p-value alone by luck, if it is
    small."""
    if f["p"] > 1 - f["confidence"] or f["family_n"] == 1:
        return ""
    return f", of which by luck about {f['p'] * f['family_n']:.2g} have so small a p alone"


def sentence(
    f: Mapping[str, Any],
    verdict: str,
    *,
    within: bool = False,
    off: Sequence[str] = (),
    unclear: tuple[str, Interval] | None = None,
    dependent: bool = False,
) -> str:
    """The verdict on a finding `f` in plain language, with its numbers. `within`: only records of equal classes were
    compared; `off`: names of controls that are off; `unclear`: a control that it does not clearly beat, with the
    difference; `dependent`: it would be a leak if records did not depend on each other."""
    who = SENTENCES[f["threat_model"]].who[f["way"]]
    these = " for these clients" if THESE in f["interval"] else ""
    alone = " for this row alone" if f["p_adjusted"] is not None and f["family"] != "named" else ""
    number = f"AUROC {f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]{these}{alone}"
    number += f" by {name_of(f['signal']).in_sentences}"
    if f["best_of"]:
        number += f", the best of {f['best_of']} attacks (interval corrected for picking it)"
    if f["p_adjusted"] is not None:
        number += f", p {f['p']:.2g} alone, {f['p_adjusted']:.2g} {among(f)}"
        number += f"; {f['part']}" if verdict in LEAKS and f["part"] != WHOLE_RANKING else ""
    pair = f"{f['population']} from {_words(f)}{' within the same classes' if within else ''}"
    if verdict in LEAKS:
        # without coins, held-out records are those that a run from elsewhere lists
        listed = verdict == REVERSED and f["p_adjusted"] is None and f["nonmembers"] == HELD_OUT
        ask = " Were the lists of members and non-members exchanged?" if listed and f["signal"] == CALIBRATED else ""
        return f"{verdict.capitalize()}: {who} can tell {pair}: {number}.{ask}"
    if f["interval"].startswith(CONSTANT) and not off:
        score = name_of(f["signal"]).in_sentences
        return f"Inconclusive: {who} cannot tell {pair} by {score}, which is the same for all of these records."
    if verdict == NO_LEAK_FOUND:
        half = ", which covers 0.5" if f["p_adjusted"] is None else f"{_by_luck(f)}; {could_be_shown(f)}"
        return f"No leak found: {who} could not be shown to tell {pair}: {number}{half}."
    if verdict == INCONCLUSIVE and f["p_adjusted"] is not None:
        return f"Inconclusive: {who} may tell {pair}: {number}{_by_luck(f)}; more records would decide."
    if off:
        controls = " and ".join(CONTROL[name] for name in off)
        return f"Confounded: {controls} already tells {pair} apart; {number} is no evidence of a leak."
    if verdict == CONFOUNDED:
        return f"Confounded: {number} on {pair}; these differ in more than membership, so it is no evidence of a leak."
    clear = f"Inconclusive: {who} scores {number} on {pair}, clear of 0.5, but "
    if dependent:
        return f"{clear}not if records depend on each other in blocks of {BLOCK}: no coin decided who is a member."
    if unclear is None:
        return f"{clear}there is no control to compare it with."
    name, d = unclear
    records = f["members"] + f["nonmembers_n"]
    return (
        f"{clear}{records} records cannot tell it from {CONTROL[name]}: difference {d.value:.3f} "
        f"[{d.low:.3f}, {d.high:.3f}]."
    )
