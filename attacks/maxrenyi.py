"""MaxRényi-K%: members leave the model less uncertain at its most uncertain tokens (FedRand eq. 11; Li et al. 2024).

The score is minus the mean of the k largest Rényi entropies of the next-token distributions. Related scores of the same
forward pass come with it (`attacks.tokens.scores`). For classifications, which are one token, all K and slices give the
one score maxrenyi.

Needs a model whose logits the adversary can compute. Entropy falls only when memorisation is nearly complete, the loss
at once: read both.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedaudit.attacks.answers import TextAnswers
from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.attacks.loss import losses
from fedaudit.attacks.settings import NovelRows
from fedaudit.attacks.tokens.scores import all_scores, count
from fedaudit.machinery.parameters import choice, whole


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    on_texts = ("renyi/{order:g}/{k}/{slice}", "loss/base")
    signals = (("maxrenyi", "MaxRényi", "the Rényi entropy of the prediction"),)


@dataclass(frozen=True)
class Params(NovelRows):
    order: float = choice(2.0, "Rényi order", (0.5, 1, 2, math.inf))
    k: int = whole(
        10,
        "percentage of the tokens with the highest entropy, in tens (with vlmia also 5), 0 = the highest one",
        least=0,
        most=100,
    )
    slice: str = choice(
        "caption",
        "tokens; the last two with vlmia",
        ("image", "instruction", "caption", "desp", "inst_desp"),
    )
    compat: str = choice("exact", "vlmia: the public code's arithmetic", ("exact", "vlmia"))

    def check(self) -> None:
        vlmia = self.compat == "vlmia"
        if self.k % 10 and not (vlmia and self.k == 5):
            raise ValueError(f"k must be one of 0, 10, ..., 100, or with compat vlmia 5, not {self.k}")
        if self.slice in ("desp", "inst_desp") and not vlmia:
            valid = "image, instruction or caption, or with compat vlmia desp or inst_desp"
            raise ValueError(f"slice must be {valid}, not {self.slice!r}")


class MaxRenyi:
    def __init__(self, params: Params) -> None:
        self.params, self.compat = params, params.compat

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if isinstance(knowledge.answers, TextAnswers):
            return all_scores(knowledge.answers, compat=self.compat) | losses(knowledge)
        return {"maxrenyi": -knowledge.answers.signals(self.compat).renyi[self.params.order]}


def max_renyi(entropies: ArrayLike, k_percent: float, *, compat: str = "exact") -> float:
    """Mean of the largest K percent of entropies [n] (FedRand eq. 11), rounded as in `attacks.tokens.scores.count`; K =
    0 gives the maximum.

    ValueError: no entropies, NaN among them, K outside 0..100, an unknown `compat`.
    """
    values = np.asarray(entropies, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"entropies must be one or more numbers in one dimension without NaN, not {values}")
    return float(np.sort(values)[::-1][: count(len(values), k_percent, compat)].mean())
