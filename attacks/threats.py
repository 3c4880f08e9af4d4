"""Which attacks can run under which threat model, and against what a learner trains. Imports nothing heavy.

Every adversary knows what is public: the frozen backbone, the method with its parameters, the state before training,
the classes, and records of the clients' distributions. Shadow models need no more. An attack that needs more lists it
in its file (`Facts.needs`).
"""

from fedaudit.attacks.facts import AttackFacts
from fedaudit.machinery.plugins import Plugin
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.learners import LearnerFacts, every_learner, facts


class LacksCapability(PermissionError):
    """An attack asked for something that its threat model does not see."""

    def __init__(self, threat_model: str, capability: str) -> None:
        able = ", ".join(one for one in THREAT_MODELS if capability in one.sees)
        super().__init__(f"the threat model {threat_model} does not see {capability} (these do: {able})")


def require(threat_model: str, capability: str) -> None:
    """Raise LacksCapability unless the threat model sees the capability, ValueError for an unknown threat model."""
    if capability not in find(THREAT_MODELS, threat_model, "threat model").sees:
        raise LacksCapability(threat_model, capability)


def lacks(attack: Plugin[AttackFacts], trained: LearnerFacts) -> str | None:
    """Why an attack cannot work on what a learner trains, as a clause ("whose records are texts"); None if it can."""
    needed = attack.facts
    if (needed.mixtures or needed.contents) and trained.nonlinear:
        return trained.nonlinear
    if needed.reads and not trained.on_shares:
        return "whose clients do not compute on secret shares"
    if trained.records not in needed.records:
        return f"whose records are {trained.records}"
    if needed.shadows and not trained.shadows:
        return "of which no shadow models can be trained"
    if (needed.gradients or needed.vectors or needed.needs) and not trained.gradients:
        return "of which gradients of single records are not taken"
    return None


def refusal(attack: Plugin[AttackFacts], threat_model: str, *learners: LearnerFacts) -> str | None:
    """Why an attack cannot run under a threat model against these learners (none given: all that it works on), as a
    sentence; None if it can."""
    able = [one for one in learners or map(facts, every_learner()) if lacks(attack, one) is None]
    having = [one for one in able if threat_model in (*one.threat_models, *one.on_shares)]
    if able and not having:
        return f"{able[0].title} methods {SENTENCES[threat_model].lacks}"
    sees = find(THREAT_MODELS, threat_model, "threat model").sees
    kinds = {one.records for one in having} or {*attack.facts.records}
    missing = [[one for one in attack.facts.needed(kind) if one not in sees] for kind in sorted(kinds)]
    return str(LacksCapability(threat_model, missing[0][0])) if all(missing) else None
