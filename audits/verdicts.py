"""What a row comes to: one of four words, the sentence that says it to readers, and the alarm of a control that is off.

Where a coin of ours decided who is a member (`Comparison.coin`) the permutation test says it all: *leak* where the
p-value, corrected for all scores of its family in a report, is at most 1 - confidence (*leak, score reversed* below the
centre), else *no leak found*. A control that is off there is luck or a fault, and gives a sentence beside the verdict.

Where none did (another distribution, a training done elsewhere), a row is compared with its controls: *confounded* if a
control itself is off 0.5, or if members and non-members are of two distributions, of which a model learns more than its
members; *leak* if its interval is clear of 0.5 and it beats every control on the same records; *inconclusive* if it is
clear of 0.5 and so many records cannot tell it from a control; *no leak found* if the interval covers 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attacks.score_names import name_of
from audits.findings import THESE
from audits.statistics.permutation import p_value
from audits.statistics.ranking import Interval, auroc_p_value
from fedaudit.terms.nonmembers import NONMEMBERS
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.term import find
from fedaudit.terms.verdicts import CONFOUNDED, INCONCLUSIVE, LEAK, LEAKS, NO_LEAK_FOUND, REVERSED, Verdict

# Of the chance that any score which leaks nothing is called a leak. The two families have other scores, and 5 % each
# would be up to 10 % for a page.
SHARES = {"primary": 0.8, "secondary": 0.2}
CONTROL_LEVEL = 0.01  # of all controls of a report, half for the base models and half for the blind classifiers

Largest = Mapping[str, npt.NDArray[np.float64]]  # by family the largest statistics under every exchange of coins

BLIND = "a classifier that never sees a model"
CONTROL = {"base": "the same attack on a model that learnt none of them", "blind": BLIND}


def by_the_coin(z: float, p_adjusted: float, *, level: float) -> Verdict:
    """The verdict where our coins decided: of a statistic z and its p-value, corrected for its family."""
    if p_adjusted > level:
        return NO_LEAK_FOUND
    return LEAK if z > 0 else REVERSED


def by_controls(auroc: Interval, off: Sequence[str], differences: Sequence[Interval], *, exchangeable: bool) -> Verdict:
    """The verdict where no coin of ours decided: of an AUROC, the controls that are off 0.5, and the differences to all
    controls that there are; `exchangeable` if members and non-members are not of two distributions."""
    if off:
        return CONFOUNDED
    if covers_half(auroc):
        return NO_LEAK_FOUND
    if not exchangeable:
        return CONFOUNDED
    above = auroc.low > 0.5
    if not differences or not all(d.low > 0 if above else d.high < 0 for d in differences):
        return INCONCLUSIVE
    return LEAK if above else REVERSED


def control_p_value(control: Interval) -> float:
    """Two-sided p-value of a control's AUROC being 0.5. One that separates perfectly has that of its order among all
    orders of the records, since with few clients the exact bound is wide."""
    p = auroc_p_value(control)
    if control.value in (0.0, 1.0):
        return min(p, 2 / math.comb(control.members + control.nonmembers, control.members))
    return p


def covers_half(interval: Interval) -> bool:
    return interval.low <= 0.5 <= interval.high


def judged(findings: Sequence[Mapping[str, Any]], largest: Largest, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """The findings of all runs of a report with the words that are the report's: corrected p-values, verdicts and
    sentences of rows that coins decided, and alarms of their controls. `sizes` is the number of scores in each family.
    Others are returned as they are."""
    coins = [f for f in findings if f.get("z") is not None]
    blind = len({_blind(f) for f in coins if f["blind_p"] is not None})
    found = []
    for f in findings:
        if f.get("z") is None:
            found.append(dict(f))
            continue
        p = float(corrected(f["z"], f["family"], largest))
        verdict = by_the_coin(f["z"], p, level=1 - f["confidence"])
        alarm = _alarm(f, off_by_the_coin(f, largest, blind))
        row = {**f, "p_adjusted": p, "family_n": sizes[f["family"]], "verdict": verdict, "alarm": alarm}
        found.append(row | {"sentence": sentence(row, verdict)})
    return found


def together(largest: Sequence[pd.DataFrame]) -> Largest:
    """By family the largest statistics of all runs of a report under every exchange of coins [1 + exchanges], from
    those of each (`audits.permutation_test`). Each run exchanged its own coins; runs of one seed have the same."""
    tables = [table for table in largest if len(table)]
    return {name: np.max([table[name] for table in tables], axis=0) for name in (tables[0] if tables else ())}


def corrected(z: npt.ArrayLike, family: str, largest: Largest) -> npt.NDArray[np.float64]:
    """P-values of statistics z (of any shape), corrected for all scores of their family (Westfall and Young 1993,
    single step) and for there being two families: of pages on which some scores leak nothing, at most 5 % call any of
    these a leak."""
    return np.minimum(1.0, p_value(z, largest[family]) / SHARES[family])


def off_by_the_coin(f: Mapping[str, Any], largest: Largest, blind: int) -> dict[str, float]:
    """The controls of a row that are off, with their p-values, corrected for all controls of a report: the base models
    by their largest statistic, `blind` measurements of blind classifiers by their number, each kind for the other."""
    p = {}
    if f["base_z"] is not None:
        p["base"] = 2 * float(p_value(f["base_z"], largest["controls"]))
    if f["blind_p"] is not None:
        p["blind"] = 2 * blind * f["blind_p"]
    return {name: value for name, value in p.items() if value <= CONTROL_LEVEL}


def _blind(f: Mapping[str, Any]) -> tuple[Any, ...]:
    """A measurement of the blind classifier, which the rows of a comparison share, and the methods of a seed."""
    return f["seed"], f["nonmembers"], f["blind_value"], f["blind_p"]


def _alarm(f: Mapping[str, Any], off: Mapping[str, float]) -> str | None:
    if not off:
        return None
    found = [f"{CONTROL[name]} has AUROC {f[f'{name}_value']:.3f} (corrected p {p:.2g})" for name, p in off.items()]
    pair = f"on {f['population']} and {_words(f)}"
    return f"Control off: check the pipeline; {' and '.join(found)} {pair}. Coins made them alike: luck or a fault."


def _words(f: Mapping[str, Any]) -> str:
    """A row's non-members."""
    return find(NONMEMBERS, f["nonmembers"], "nonmembers").words


def among(f: Mapping[str, Any]) -> str:
    """What a corrected p-value is corrected for: "among 948 secondary scores"."""
    return f"among {f['family_n']:,} {f['family']} score{'' if f['family_n'] == 1 else 's'}"


def sentence(
    f: Mapping[str, Any],
    verdict: str,
    *,
    within: bool = False,
    off: Sequence[str] = (),
    unclear: tuple[str, Interval] | None = None,
) -> str:
    """The verdict in plain language, with its numbers: of a finding's fields, whether only equal classes were compared,
    the controls that are off, and the difference to one that the attack cannot be told from."""
    who = SENTENCES[f["threat_model"]].who[f["way"]]
    these = " for these clients" if THESE in f["interval"] else ""
    number = f"AUROC {f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]{these} by {name_of(f['signal']).in_sentences}"
    if f["best_of"]:
        number += f", the best of {f['best_of']} attacks (interval corrected for picking it)"
    if f["p_adjusted"] is not None:
        number += f", p {f['p']:.2g} alone, {f['p_adjusted']:.2g} {among(f)}"
    pair = f"{f['population']} from {_words(f)}{' within the same classes' if within else ''}"
    if verdict in LEAKS:
        return f"{verdict.capitalize()}: {who} can tell {pair}: {number}."
    if verdict == NO_LEAK_FOUND:
        half = "" if f["p_adjusted"] is not None else ", which covers 0.5"
        return f"No leak found: {who} could not be shown to tell {pair}: {number}{half}."
    if off:
        controls = " and ".join(CONTROL[name] for name in off)
        return f"Confounded: {controls} already tells {pair} apart; {number} is no evidence of a leak."
    if verdict == CONFOUNDED:
        return f"Confounded: {number} on {pair}; these differ in more than membership, so it is no evidence of a leak."
    clear = f"Inconclusive: {who} scores {number} on {pair}, clear of 0.5, but "
    if unclear is None:
        return f"{clear}there is no control to compare it with."
    name, d = unclear
    records = f["members"] + f["nonmembers_n"]
    return (
        f"{clear}{records} records cannot tell it from {CONTROL[name]}: difference {d.value:.3f} "
        f"[{d.low:.3f}, {d.high:.3f}]."
    )
