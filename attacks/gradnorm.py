"""Gradient norm: members pull less at the prompt, because training has already moved it their way (Nasr et al. 2019).

The score is minus the L2 norm of the gradient of the record's loss with respect to the attacked prompt: Nasr, Shokri &
Houmansadr, Comprehensive Privacy Analysis of Deep Learning, S&P 2019 (white-box attack, where gradients tell more than
outputs). The norm follows the loss but also tells how much the prompt could still change it: read both.

Needs a model through which the adversary can differentiate, the backbone included.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge


class Facts(AttackFacts):
    records = ("classes",)
    strength = 1
    gradients = True
    signals = (("gradnorm", "gradient norm", "the gradient's norm"),)


@dataclass(frozen=True)
class Params:
    """The gradient norm attack has no parameters."""


class GradNorm(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.gradient_norms is None:
            raise ValueError("gradnorm needs the gradient norms of the attacked model, not None")
        return {"gradnorm": -knowledge.gradient_norms}
