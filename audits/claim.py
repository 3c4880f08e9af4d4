"""Claim audit: the epsilon that a run from elsewhere claims, beside what the coins of its records show.

Every candidate was trained on or left out by a fair coin before the training (docs/guides/coins.md, *Coins before
training*), so that guesses about it bound epsilon from below (`audits.measured`): guesses about the canaries, if some
were made, else about all candidates. A record whose coin left it out was absent, so that a client's number of records
depends on the coins: the relation measured is "add or remove". A claim is compared if it is of this relation or of
"zero-out", which differs by that number only. A claim for whole clients covers each record of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import MeasuredEpsilon
from fedaudit.audits.measured import Hypothesis, bounds
from fedaudit.audits.subject import COMPARABLE, Result, Subject


class Facts(AuditFacts):
    needs = ("attacks", "coins")


@dataclass(frozen=True)
class Params:
    """The claim audit has no parameters of its own."""


def claim(subject: Subject, params: Params) -> Result:
    """Findings of lower bounds on epsilon, one per adversary that guesses, each with the probability of its guesses if
    the claim is true."""
    if subject.attacked is None or subject.claim is None:
        return Result()
    claimed = subject.claim.get("epsilon") if subject.claim.get("neighbours") in COMPARABLE else None
    hypothesis = Hypothesis() if claimed is None else Hypothesis(claimed=float(claimed))
    hypotheses = dict.fromkeys(subject.threat_models, hypothesis)
    lower_bounds = bounds(
        subject.attacked, subject.canaries, names=subject.names, delta=subject.delta, hypotheses=hypotheses,
        guessed_about="candidates" if subject.canary_kind == "natural" else "canaries",  # natural ones are as others
    )  # fmt: skip
    # nobody knows what noise ran
    return Result([replace(f, provable=None) if isinstance(f, MeasuredEpsilon) else f for f in lower_bounds])
