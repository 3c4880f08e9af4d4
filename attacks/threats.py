"""For which attacks it is enough what an adversary sees. Imports nothing heavy.

Every adversary knows the public things: the frozen backbone, the method with its parameters, the start, the classes,
records of the clients' distributions. Shadow models need no more than that. What an attack needs beyond is in its file
(the literal `NEEDS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaudit.terms.sentences import SAID
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import THREAT_MODELS
from trainers.learners import LearnerFacts, every_learner, facts

if TYPE_CHECKING:
    from fedaudit.machinery.plugins import Plugin


class LacksCapability(PermissionError):
    """An attack asked its view for something that the threat model does not give."""

    def __init__(self, threat_model: str, capability: str) -> None:
        able = ", ".join(one for one in THREAT_MODELS if capability in one.sees)
        super().__init__(f"the threat model {threat_model} does not see {capability} (these do: {able})")


def require(threat_model: str, capability: str) -> None:
    """LacksCapability unless the threat model gives it. ValueError: no such threat model."""
    if capability not in find(THREAT_MODELS, threat_model, "threat model").sees:
        raise LacksCapability(threat_model, capability)


def refusal(attack: Plugin, threat_model: str, *learners: LearnerFacts) -> str | None:
    """Why an attack cannot run under a threat model against what these train (none: everything that it fits); None if
    it can."""
    able = [one for one in learners or map(facts, every_learner()) if one.fits(attack)]
    if able and all(threat_model not in (*learner.threat_models, *learner.on_shares) for learner in able):
        return f"{able[0].title} methods {SAID[threat_model].lacks}"
    try:
        for capability in attack.needs:
            require(threat_model, capability)
    except LacksCapability as lack:
        return str(lack)
    return None
