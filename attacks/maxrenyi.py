"""MaxRényi-K%: members leave the model less uncertain at its most uncertain tokens (FedRand eq. 11; Li et al. 2024).

Needs a model whose logits the adversary can compute. The score is the negative of the mean of the k largest Rényi entropies of the next-token
distributions; siblings come from the same forward pass. Entropy falls only when memorisation is nearly complete, the loss at once: read both.
"""

import functools
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from attacks.signals import ORDERS, TokenSignals
from attacks.tokens import TokenAttack

PERCENTS = tuple(range(0, 101, 10))


@dataclass(frozen=True)
class Params:
    order: float = field(default=2.0, metadata={"help": "Rényi order: 0.5, 1, 2 or inf"})
    k: int = field(default=10, metadata={"help": "percentage of the tokens with the highest entropy, 0 = the highest one"})
    slice: str = field(default="caption", metadata={"help": "tokens: image, instruction or caption"})
    compat: str = field(default="exact", metadata={"help": "exact, or vlmia for the public code's arithmetic"})

    def __post_init__(self) -> None:
        if self.order not in (0.5, 1, 2, math.inf):
            raise ValueError(f"order must be 0.5, 1, 2 or inf, not {self.order}")
        if self.k not in range(0, 101, 10):
            raise ValueError(f"k must be one of 0, 10, ..., 100, not {self.k}")
        if self.slice not in ("image", "instruction", "caption"):
            raise ValueError(f"slice must be image, instruction or caption, not {self.slice!r}")
        if self.compat not in ("exact", "vlmia"):
            raise ValueError(f"compat must be exact or vlmia, not {self.compat!r}")


class MaxRenyi(TokenAttack):
    def __init__(self, params: Params) -> None:
        self.params = params
        self.compat = params.compat
        self.signal = f"renyi/{params.order:g}/{params.k}/{params.slice}"


@functools.cache
def count(n: int, k_percent: float, compat: str = "exact") -> int:
    """How many of n tokens are the top K %: max(1, n K // 100), exactly; `vlmia` multiplies in floating point."""
    if compat == "vlmia":
        return max(1, int(n * (k_percent / 100)))
    return max(1, int(n * Fraction(str(k_percent)) // 100))


def max_renyi(entropies: ArrayLike, k_percent: float, *, compat: str = "exact") -> float:
    """Mean of the k largest entropies (FedRand eq. 11), in the entropies' unit; K = 0 is the maximum."""
    values = np.asarray(entropies, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"entropies must be one or more numbers in one dimension, not shape {values.shape}")
    if not 0 <= k_percent <= 100:
        raise ValueError(f"k_percent must lie between 0 and 100, not {k_percent}")
    return float(np.sort(values)[::-1][: count(len(values), k_percent, compat)].mean())


def record_scores(
    signals: TokenSignals, spans: Mapping[str, slice], text: str, *, compat: str = "exact"
) -> dict[str, float]:
    """Every cell of one record, higher = more likely a member."""
    scores: dict[str, float] = {}
    for part, span in spans.items():
        inside = signals[span]
        for order in ORDERS:
            means = _extreme_means(-inside.renyi[order], compat)
            scores |= {f"renyi/{order:g}/{k}/{part}": mean for k, mean in zip(PERCENTS, means, strict=True)}
    caption = signals[spans["caption"]]
    z = (caption.log_prob - caption.mean_log_prob) / np.sqrt(np.maximum(caption.var_log_prob, 1e-12))
    scores["loss/caption"] = float(caption.log_prob.mean())
    for name, values in (("mink", caption.log_prob), ("minkpp", z)):
        means = _extreme_means(values, compat)
        scores |= {f"{name}/{k}/caption": mean for k, mean in zip(PERCENTS[1:], means[1:], strict=True)}
    scores |= {f"modrenyi/{order:g}/caption": -float(v.mean()) for order, v in caption.modified.items()}
    scores["gap/caption"] = float(caption.gap.mean())
    scores["zlib/caption"] = float(caption.log_prob.sum()) / len(zlib.compress(text.encode()))
    return scores


def _extreme_means(values: np.ndarray, compat: str) -> list[float]:
    """Means of the k smallest values for every K of PERCENTS, from one sort and one cumulative sum."""
    total = np.cumsum(np.sort(values))
    counts = [count(len(values), k, compat) for k in PERCENTS]
    return [float(total[k - 1] / k) for k in counts]
