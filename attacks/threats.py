"""Threat models: what each adversary sees, and which attacks that is enough for. Imports nothing heavy.

Every adversary knows the public things: the frozen backbone, the method with its parameters, the start, the classes,
records of the clients' distributions. Shadow models need no more than that. What an attack needs beyond is in its file
(`Facts.needs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attacks.facts import AttackFacts
from trainers.learners import LearnerFacts, every_learner, facts

if TYPE_CHECKING:
    from fedaudit.machinery.plugins import Plugin

THREAT_MODELS: dict[str, frozenset[str]] = {
    "prompt-user": frozenset(
        {"personal prompts"}
    ),  # prompt as a service: each client's released p_i, the sum of its parts
    "released-model": frozenset({"broadcasts"}),
    "peer": frozenset({"broadcasts", "others' parts"}),  # another client, where each is sent the parts of all others
    "server": frozenset({"broadcasts", "others' parts", "uploads", "sums of uploads"}),
    "clustering-server": frozenset({"broadcasts", "sums of uploads", "distances"}),  # of clients that compute on shares
    "colluding-users": frozenset({"broadcasts", "shares"}),  # the same clients, some of which put shares together
    "owner": frozenset({"broadcasts", "private states"}),  # the upper bound that every other row is compared with
}

SUMMARIES = {
    "prompt-user": "whoever uses a client's released prompt: that prompt, the sum of its parts",
    "released-model": "whoever has the released model: every broadcast, as it was sent",
    "peer": "another client: every broadcast, and what the server passes on to it of each of the others",
    "server": "every broadcast, and every client's messages (uploads) in every round",
    "clustering-server": "every broadcast, and of what clients share in secret sums over groups and distances to means",
    "colluding-users": "every broadcast, and the shares of others' vectors that some users hold",
    "owner": "the client's true model after its last participation: an upper bound for all others",
}

# what methods do not do that have no adversary of this kind
LACKS = {"prompt-user": "release no personal prompt", "peer": "pass no part of a client on to others"}


class LacksCapability(PermissionError):
    """An attack asked its view for something that the threat model does not give."""

    def __init__(self, threat_model: str, capability: str) -> None:
        able = ", ".join(name for name, given in THREAT_MODELS.items() if capability in given)
        super().__init__(f"the threat model {threat_model} does not see {capability} (these do: {able})")


def require(threat_model: str, capability: str) -> None:
    """LacksCapability unless the threat model gives it. ValueError: no such threat model."""
    if threat_model not in THREAT_MODELS:
        raise ValueError(f"threat model must be one of {', '.join(THREAT_MODELS)}, not {threat_model}")
    if capability not in THREAT_MODELS[threat_model]:
        raise LacksCapability(threat_model, capability)


def lacks(attack: Plugin[AttackFacts], trained: LearnerFacts) -> str | None:
    """Why an attack cannot work on what a learner trains; None if it can."""
    own = attack.facts
    if own.mixtures and trained.nonlinear:
        return trained.nonlinear
    if trained.records not in own.records:
        return f"whose records are {trained.records}"
    if own.shadows and not trained.shadows:
        return "of which no shadow models can be trained"
    if (own.gradients or own.vectors or own.needs) and not trained.gradients:
        return "of which gradients of single records are not taken"
    return None


def refusal(attack: Plugin[AttackFacts], threat_model: str, *learners: LearnerFacts) -> str | None:
    """Why an attack cannot run under a threat model against what these train (none: everything that it fits); None if
    it can."""
    able = [one for one in learners or map(facts, every_learner()) if lacks(attack, one) is None]
    if able and all(threat_model not in (*learner.threat_models, *learner.on_shares) for learner in able):
        return f"{able[0].title} methods {LACKS.get(threat_model, 'compute nothing on secret shares')}"
    try:
        for capability in attack.facts.needs:
            require(threat_model, capability)
    except LacksCapability as lack:
        return str(lack)
    return None
