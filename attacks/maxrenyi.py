"""MaxRényi-K%: members leave the model less uncertain at its most uncertain tokens (FedRand eq. 11; Li et al. 2024).

Needs a model whose logits the adversary can compute. The score is the negative of the mean of the k largest Rényi entropies of the next-token
distributions; siblings come from the same forward pass. Entropy falls only when memorisation is nearly complete, the loss at once: read both.
"""

import functools
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from attacks.signals import MODIFIED_ORDERS, ORDERS, TokenSignals
from attacks.tokens import TokenAttack

PERCENTS = tuple(range(0, 101, 10))


@dataclass(frozen=True)
class Params:
    order: float = field(default=2.0, metadata={"help": "Rényi order: 0.5, 1, 2 or inf"})
    k: int = field(
        default=10, metadata={"help": "percentage of the tokens with the highest entropy, 0 = the highest one"}
    )
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
    """How many of n tokens are the top K %: max(1, n K // 100), exactly; `vlmia` multiplies in floating point.

    A fractional K is the nearest fraction with a denominator up to a million: 0.29 * 100, which is 28.999..., is 29.
    """
    if not 0 <= k_percent <= 100:
        raise ValueError(f"k_percent must lie between 0 and 100, not {k_percent}")
    if compat not in ("exact", "vlmia"):
        raise ValueError(f"compat must be exact or vlmia, not {compat!r}")
    if compat == "vlmia":
        return max(1, int(n * (k_percent / 100)))
    return max(1, n * Fraction(k_percent).limit_denominator(1_000_000) // 100)


def max_renyi(entropies: ArrayLike, k_percent: float, *, compat: str = "exact") -> float:
    """Mean of the k largest entropies (FedRand eq. 11), in the entropies' unit; K = 0 is the maximum, k as in `count`.

    Raises ValueError for no entropies, NaN among them, K outside 0..100, an unknown `compat`.
    """
    values = np.asarray(entropies, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        raise ValueError(f"entropies must be one or more numbers in one dimension without NaN, not {values}")
    return float(np.sort(values)[::-1][: count(len(values), k_percent, compat)].mean())


def record_scores(
    signals: TokenSignals, spans: Mapping[str, slice], text: str, *, compat: str = "exact"
) -> dict[str, float]:
    """Every cell of one record, higher = more likely a member, in the order of `cell_names`.

    `spans` are ranges of rows of `signals`; MaxRényi's siblings are of the part "caption", whose words are `text`. A caption
    word that the model holds impossible (log p = -inf) gives -inf. ValueError: a span without rows, or past the end.
    """
    scores: dict[str, float] = {}
    for part, span in spans.items():
        inside = signals[span]
        if not len(inside) or (span.stop or 0) > len(signals):
            raise ValueError(f"span {part!r} must be one or more rows of 0..{len(signals) - 1}, not {span}")
        for order in ORDERS:
            means = _extreme_means(-inside.renyi[order], compat)
            scores |= {f"renyi/{order:g}/{k}/{part}": mean for k, mean in zip(PERCENTS, means, strict=True)}
    if "caption" in spans:
        siblings = _siblings(signals[spans["caption"]], text, compat)
        scores |= {f"{name}/caption": value for name, value in siblings.items()}
    return scores


def cell_names(slices: Iterable[str]) -> list[str]:
    """Names of a record's scores for these slices, in the order of `record_scores`."""
    one = np.zeros(1)
    orders = dict.fromkeys(ORDERS, one)
    signals = TokenSignals(one, orders, one, one, one, orders)
    return list(record_scores(signals, dict.fromkeys(slices, slice(0, 1)), ""))


def _siblings(caption: TokenSignals, text: str, compat: str) -> dict[str, float]:
    spread = np.sqrt(caption.var_log_prob)
    # Without spread every possible word is exactly as likely as expected: z is 0, or -inf for an impossible word.
    z = (caption.log_prob - caption.mean_log_prob) / np.where(spread > 0, spread, 1.0)
    scores = {"loss": float(caption.log_prob.mean())}
    for name, values in (("mink", caption.log_prob), ("minkpp", z)):
        means = _extreme_means(values, compat)
        scores |= {f"{name}/{k}": mean for k, mean in zip(PERCENTS[1:], means[1:], strict=True)}
    scores |= {f"modrenyi/{order:g}": -float(caption.modified[order].mean()) for order in MODIFIED_ORDERS}
    scores["gap"] = float(caption.gap.mean())
    scores["zlib"] = float(caption.log_prob.sum()) / len(zlib.compress(text.encode()))
    return scores


def _extreme_means(values: np.ndarray, compat: str) -> list[float]:
    """Means of the k smallest values for every K of PERCENTS, from one sort and one cumulative sum."""
    total = np.cumsum(np.sort(values))
    counts = [count(len(values), k, compat) for k in PERCENTS]
    return [float(total[k - 1] / k) for k in counts]
