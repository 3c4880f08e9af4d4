"""MaxRényi-K%: members leave the model less uncertain at its most uncertain tokens (FedRand eq. 11; Li et al. 2024).

Where a record is one token, a classification, all K and slices are one score, maxrenyi.

Needs a model whose logits the adversary can compute. The score is the negative of the mean of the k largest Rényi
entropies of the next-token distributions; siblings come from the same forward pass. Entropy falls only when
memorisation is nearly complete, the loss at once: read both.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attacks.answers import TextAnswers
from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge
from attacks.loss import losses
from attacks.settings import NovelRows
from attacks.tokens.scores import all_scores, count
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
        public = self.compat == "vlmia"
        if self.k % 10 and not (public and self.k == 5):
            raise ValueError(f"k must be one of 0, 10, ..., 100, or with compat vlmia 5, not {self.k}")
        if self.slice in ("desp", "inst_desp") and not public:
            said = "image, instruction or caption, or with compat vlmia desp or inst_desp"
            raise ValueError(f"slice must be {said}, not {self.slice!r}")


class MaxRenyi:
    def __init__(self, params: Params) -> None:
        self.params, self.compat = params, params.compat

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if isinstance(seen.answers, TextAnswers):
            return all_scores(seen.answers, compat=self.compat) | losses(seen)
        return {"maxrenyi": -seen.answers.signals(self.compat).renyi[self.params.order]}


def max_renyi(entropies: ArrayLike, k_percent: float, *, compat: str = "exact") -> float:
    """Mean of the k largest entropies (FedRand eq. 11), in the entropies' unit; K = 0 is the maximum, k as in `count`.

    Raises ValueError for no entropies, NaN among them, K outside 0..100, an unknown `compat`.
    """
    values = np.asarray(entropies, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"entropies must be one or more numbers in one dimension without NaN, not {values}")
    return float(np.sort(values)[::-1][: count(len(values), k_percent, compat)].mean())
