"""Every score of one record from its token signals: MaxRényi-K% in all orders, K and slices, and its siblings. Higher =
more likely a member."""

import functools
import zlib
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attacks.answers import LEARNT, TextAnswers, spans_of
from attacks.tokens.signals import MODIFIED_ORDERS, ORDERS, TokenSignals

# scores, and what readers call them in tables and in sentences
SIGNALS = (
    (
        "renyi/{order}/{k}/{slice}",
        "MaxRényi, order {order}, K {k} %, {slice}",
        "MaxRényi-{k}% of order {order} on the {slice}",
    ),
    ("mink/{k}/{slice}", "Min-K, K {k} %, {slice}", "mink/{k}/{slice}"),
    ("minkpp/{k}/{slice}", "Min-K++, K {k} %, {slice}", "minkpp/{k}/{slice}"),
    ("modrenyi/{order}/{slice}", "modified Rényi, order {order}, {slice}", "modrenyi/{order}/{slice}"),
    ("gap/caption", "probability gap, caption", "gap/caption"),
    ("zlib/caption", "zlib ratio, caption", "zlib/caption"),
)
PERCENTS = {"exact": tuple(range(0, 101, 10)), "vlmia": (0, 5, *range(10, 101, 10))}


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


def all_scores(answers: TextAnswers, *, compat: str = "exact") -> dict[str, NDArray[np.float64]]:
    """`record_scores` of n texts, each name with its values [n]."""
    rows = [
        record_scores(answers[i][compat], spans_of(spans, compat), words, compat=compat)
        for i, (spans, words) in enumerate(zip(answers.spans, answers.words, strict=True))
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def record_scores(
    signals: TokenSignals, spans: Mapping[str, slice], text: str, *, compat: str = "exact"
) -> dict[str, float]:
    """Every cell of one record, higher = more likely a member, in the order of `cell_names`.

    `spans` are ranges of rows of `signals`; MaxRényi's siblings are of the part "caption", whose words are `text`. A
    caption word that the model holds impossible (log p = -inf) gives -inf, and a part without rows nan: a prompt may
    end with its image, and an image may be a single token. ValueError: a span past the end, or a caption without rows.
    """
    scores: dict[str, float] = {}
    for part, span in spans.items():
        inside = signals[span]
        if (span.stop or 0) > len(signals) or (part == LEARNT and not len(inside)):
            raise ValueError(f"span {part!r} must be one or more rows of 0..{len(signals) - 1}, not {span}")
        means = _extreme_means(-np.stack([inside.renyi[order] for order in ORDERS]), compat)
        scores |= dict(zip(_renyi_names(part, compat), means.ravel().tolist(), strict=True))
    if LEARNT in spans:
        siblings = _siblings(signals[spans[LEARNT]], text, compat)
        scores |= {f"{name}/{LEARNT}": value for name, value in siblings.items()}
    return scores


@functools.cache
def _renyi_names(part: str, compat: str) -> tuple[str, ...]:
    return tuple(f"renyi/{order:g}/{k}/{part}" for order in ORDERS for k in PERCENTS[compat])


def cell_names(slices: Iterable[str], *, compat: str = "exact") -> list[str]:
    """Names of a record's scores for these slices, in the order of `record_scores`."""
    one = np.zeros(1)
    orders = dict.fromkeys(ORDERS, one)
    signals = TokenSignals(one, orders, one, one, one, orders)
    return list(record_scores(signals, dict.fromkeys(slices, slice(0, 1)), "", compat=compat))


def _siblings(caption: TokenSignals, text: str, compat: str) -> dict[str, float]:
    spread = np.sqrt(caption.var_log_prob)
    # Without spread every possible word is exactly as likely as expected: z is 0, or -inf for an impossible word.
    z = (caption.log_prob - caption.mean_log_prob) / np.where(spread > 0, spread, 1.0)
    scores: dict[str, float] = {}
    means = _extreme_means(np.stack([caption.log_prob, z]), compat)[:, 1:]
    names = (f"{name}/{k}" for name in ("mink", "minkpp") for k in PERCENTS[compat][1:])
    scores |= dict(zip(names, means.ravel().tolist(), strict=True))
    scores |= {f"modrenyi/{order:g}": -float(caption.modified[order].mean()) for order in MODIFIED_ORDERS}
    scores["gap"] = float(caption.gap.mean())
    scores["zlib"] = float(caption.log_prob.sum()) / len(zlib.compress(text.encode()))
    return scores


def _extreme_means(values: NDArray[np.float64], compat: str) -> NDArray[np.float64]:
    """Means [m, K] of the k smallest of each row of values [m, n], for every K of `compat`: one sort, one cumulative
    sum. nan where n is 0."""
    if not values.shape[1]:
        return np.full((len(values), len(PERCENTS[compat])), np.nan)
    sizes = _sizes(values.shape[1], compat)
    means: NDArray[np.float64] = np.sort(values, axis=1).cumsum(axis=1)[:, sizes - 1] / sizes
    return means


@functools.cache
def _sizes(n: int, compat: str) -> NDArray[np.int64]:
    return np.array([count(n, k, compat) for k in PERCENTS[compat]])
