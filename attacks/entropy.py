"""Entropy: the model is surer of its members, whatever their label (Salem et al. 2019; Song & Mittal 2021).

entropy               sum_c p_c log p_c, minus Shannon's entropy: needs no label.
entropy/confidence    log max_c p_c, which ranks as the highest probability does: needs no label.
entropy/modified      (1 - p_y) log p_y + sum_{c != y} p_c log(1 - p_c): minus the modified entropy of Song & Mittal
                      (USENIX Security 2021), eq. 8, which is 0 for a certain right answer and infinite for a certain
                      wrong one.

Needs the attacked model only. Texts have means over their learnt tokens. Probabilities of 0 and 1 count as limits, 0
log 0 = 0; nothing is clamped, and 1 - p is not computed by subtraction.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge


class Facts(AttackFacts):
    records = ("texts", "classes")
    signals = (
        ("entropy", "entropy", "the entropy of the prediction"),
        ("entropy/confidence", "entropy, confidence", "the confidence of the prediction"),
        ("entropy/modified", "entropy, modified", "the modified entropy"),
    )


@dataclass(frozen=True)
class Params:
    """The entropy attack has no parameters."""


class Entropy(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        answers, signals = knowledge.answers, knowledge.answers.signals()
        return {
            "entropy": answers.mean(signals.mean_log_prob),
            "entropy/confidence": -answers.mean(signals.renyi[float("inf")]),
            "entropy/modified": -answers.mean(signals.modified[1]),
        }
