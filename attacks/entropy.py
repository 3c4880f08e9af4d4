"""Entropy: the model is surer of its members, whatever their label (Salem et al. 2019; Song & Mittal 2021).

entropy               sum_c p_c log p_c, the negative of Shannon's entropy: needs no label.
entropy/confidence    log max_c p_c, which ranks as the highest probability does: needs no label.
entropy/modified      (1 - p_y) log p_y + sum_{c != y} p_c log(1 - p_c): the negative of Song & Mittal (USENIX Security
                      2021), eq. 8, which is 0 for a record that is surely right and infinite for one that is surely
                      wrong.

Needs the attacked model only. A text has the means over its tokens. A probability of 0 or 1 counts as its limit, 0 log
0 = 0; nothing is clamped, and 1 - p is not formed by subtraction.
"""

from dataclasses import dataclass

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge


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


class Entropy:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        answers, signals = seen.answers, seen.answers.signals()
        return {
            "entropy": answers.mean(signals.mean_log_prob),
            "entropy/confidence": -answers.mean(signals.renyi[float("inf")]),
            "entropy/modified": -answers.mean(signals.modified[1]),
        }
