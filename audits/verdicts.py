"""What a comparison comes to: one of three verdicts, and the sentence that says it to readers.

*leak*: the interval is clear of 0.5, and the attack beats every control on the same records. *no leak found*: the
interval covers 0.5. *confounded*: a control itself is off 0.5, or the attack cannot be told from a control, or the
non-members are of another distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from audits.comparisons import Comparison
from audits.statistics.ranking import Interval
from fedaudit.machinery.score_names import name_of

WHO = {
    ("prompt-user", "prompt"): "whoever uses a client's released prompt",
    ("released-model", "final"): "whoever holds the released model",
    ("released-model", "best utility"): "whoever holds the model of the round that served best",
    ("server", "rebuilt"): "the server, from the messages that it receives,",
    ("server", "exact"): "the server, from messages that held a whole model,",
    ("server", "literal"): "the server, rebuilding clients as the paper does,",
    ("server", "newest"): "the server, rebuilding clients from their newest messages,",
    ("server", "server-fill"): "the server, filling what it did not receive with its aggregate,",
    ("owner", "true state"): "the owner of a client's true model (the upper bound)",
}
BLIND = "a classifier that never sees a model"
CONTROL = {  # by unit of the comparison
    "clients": {"base": "the untrained base model", "blind": BLIND},
    "records": {"base": "the same attack on a model that learnt none of them", "blind": BLIND},
}
AGAINST = {
    "held-out": "held-out records of the same clients",
    "novel objects": "records with novel objects",
    "other clients": "other clients' records",
    "left-out canaries": "canaries that a coin left out",
}


def verdict_of(auroc: Interval, off: Sequence[str], differences: Sequence[Interval], *, exchangeable: bool) -> str:
    """One of the three verdicts; where members and non-members are of two distributions, nothing can show a leak."""
    if off:
        return "confounded"
    if covers_half(auroc):
        return "no leak found"
    above = auroc.low > 0.5
    clear = all(d.low > 0 if above else d.high < 0 for d in differences)
    return "leak" if clear and exchangeable else "confounded"


def off_half(control: Interval) -> bool:
    """A control's interval excludes 0.5, or it separates perfectly (with few clients the exact bound is wide) what
    chance hardly would."""
    orders = math.comb(control.members + control.nonmembers, control.members)
    perfect = control.value in (0.0, 1.0) and 2 / orders < 1 - control.confidence
    return not covers_half(control) or perfect


def covers_half(interval: Interval) -> bool:
    return interval.low <= 0.5 <= interval.high


def sentence(
    comparison: Comparison, signal: str, auroc: Interval, verdict: str, off: Sequence[str], best_of: int | None = None
) -> str:
    """The verdict in plain language, with its number."""
    who = WHO[comparison.threat_model, comparison.way]
    best = f", the best of {best_of} attacks (interval corrected for picking it)" if best_of else ""
    number = f"AUROC {auroc.value:.3f} [{auroc.low:.3f}, {auroc.high:.3f}] by {name_of(signal).in_sentences}{best}"
    classes = " within the same classes" if comparison.within is not None else ""
    pair = f"{comparison.population} from {AGAINST[comparison.nonmembers]}{classes}"
    if verdict == "leak":
        reverse = "" if auroc.value > 0.5 else ", in the reverse direction"
        return f"Leak: {who} can tell {pair}{reverse}: {number}."
    if verdict == "no leak found":
        return f"No leak found: {who} could not be shown to tell {pair}: {number}, which covers 0.5."
    if off:
        controls = " and ".join(CONTROL[comparison.unit][name] for name in off)
        return f"Confounded: {controls} already tells {pair} apart; {number} is no evidence of a leak."
    return f"Confounded: {who} scores {number} on {pair}, which cannot be told from a control on the same records."
