"""All scores of a text from its token signals: MaxRényi-K% for every order, K and slice, and related scores of the
caption (Min-K%, Min-K%++, modified Rényi entropy, probability gap, zlib ratio). Higher = more likely a member."""

import functools
import zlib
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks.answers import LEARNT, TextAnswers, spans_of
from fedaudit.attacks.tokens.signals import MODIFIED_ORDERS, ORDERS, TokenSignals

# scores, and their names in tables and in sentences
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
    """Number of tokens in the top K percent of n: max(1, n K // 100), exactly; "vlmia" multiplies in floating point.

    A fractional K counts as the nearest fraction with a denominator up to a million: 0.29 * 100, 28.999..., is 29.
    ValueError: K outside 0..100, an unknown `compat`.
    """
    if not 0 <= k_percent <= 100:
        raise ValueError(f"k_percent must lie between 0 and 100, not {k_percent}")
    if compat not in ("exact", "vlmia"):
        raise ValueError(f"compat must be exact or vlmia, not {compat!r}")
    if compat == "vlmia":
        return max(1, int(n * (k_percent / 100)))
    return max(1, n * Fraction(k_percent).limit_denominator(1_000_000) // 100)


def all_scores(answers: TextAnswers, *, compat: str = "exact") -> dict[str, NDArray[np.float64]]:
    """All scores of n texts (see `record_scores`), {score: array [n]}; `compat` "exact" or "vlmia" is the
    arithmetic."""
    rows = [
        record_scores(answers[i][compat], spans_of(spans, compat), words, compat=compat)
        for i, (spans, words) in enumerate(zip(answers.spans, answers.words, strict=True))
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def record_scores(
    signals: TokenSignals, spans: Mapping[str, slice], text: str, *, compat: str = "exact"
) -> dict[str, float]:
    """All scores of one record, {name: score}, in the order of `cell_names`.

    `spans` are row ranges of `signals` by part of the text. MaxRényi-K% is computed of every part, all other scores of
    the part "caption", whose words are `text`. A caption token with log p = -inf gives -inf. A part without rows gives
    NaN: a prompt may end with its image, and an image may be one token. ValueError: a span past the end, or an empty
    caption.
    """
    scores: dict[str, float] = {}
    for part, span in spans.items():
        inside = signals[span]
        if (span.stop or 0) > len(signals) or (part == LEARNT and not len(inside)):
            raise ValueError(f"span {part!r} must be one or more rows of 0..{len(signals) - 1}, not {span}")
        means = _extreme_means(-np.stack([inside.renyi[order] for order in ORDERS]), compat)
        scores |= dict(zip(_renyi_names(part, compat), means.ravel().tolist(), strict=True))
    if LEARNT in spans:
        of_caption = _caption_scores(signals[spans[LEARNT]], text, compat)
        scores |= {f"{name}/{LEARNT}": value for name, value in of_caption.items()}
    return scores


@functools.cache
def _renyi_names(part: str, compat: str) -> tuple[str, ...]:
    return tuple(f"renyi/{order:g}/{k}/{part}" for order in ORDERS for k in PERCENTS[compat])


def cell_names(slices: Iterable[str], *, compat: str = "exact") -> list[str]:
    """Names of the scores of a record whose text has the parts `slices` (image, instruction, caption, ...), in the
    order of `record_scores`."""
    zero = np.zeros(1)
    orders = dict.fromkeys(ORDERS, zero)
    signals = TokenSignals(zero, orders, zero, zero, zero, orders)
    return list(record_scores(signals, dict.fromkeys(slices, slice(0, 1)), "", compat=compat))


def _caption_scores(caption: TokenSignals, text: str, compat: str) -> dict[str, float]:
    """Scores that are computed of the caption only, {name without the part: score}: Min-K%, Min-K%++, modified Rényi,
    gap and zlib."""
    spread = np.sqrt(caption.var_log_prob)
    # without spread z is 0, as all words with p > 0 are equally likely, or -inf for one with p = 0
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
    """Mean of the smallest K percent of each row of values [m, n], as [m, number of Ks], for every K that the
    arithmetic `compat` uses (`PERCENTS`); NaN if n is 0."""
    if not values.shape[1]:
        return np.full((len(values), len(PERCENTS[compat])), np.nan)
    sizes = _sizes(values.shape[1], compat)
    means: NDArray[np.float64] = np.sort(values, axis=1).cumsum(axis=1)[:, sizes - 1] / sizes
    return means


@functools.cache
def _sizes(n: int, compat: str) -> NDArray[np.int64]:
    return np.array([count(n, k, compat) for k in PERCENTS[compat]])
