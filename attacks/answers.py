"""What a model answers about records: how likely it holds each token of them, and how sure it is.

A record is a text of tokens, of which the part "caption" is learnt; a classification is a text of one token, whose
vocabulary are the classes. One forward pass gives everything; vocabulary rows of texts are never kept. Natural
logarithms, float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attacks.tokens.signals import TokenSignals, joined, row_signals

Floats = NDArray[np.float64]
LEARNT = "caption"  # the part of a text that training makes likelier
LARGEST_GAP = 20.0  # nats: of a token whose rivals are impossible


class ModelAnswers(Protocol):
    """One model's answers about n records."""

    def __hash__(self) -> int:
        """By identity: equal only to itself."""

    def signals(self, compat: str = "exact") -> TokenSignals:
        """Of every token of all records, record by record, in exact arithmetic or, if it was asked for, VL-MIA's."""

    def mean(self, values: Floats) -> Floats:
        """`values` of all tokens as a mean [n] over the tokens that each record teaches."""

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] in nats per token."""

    @property
    def confidence(self) -> Floats:
        """How sure the model is of each record [n], on a scale on which it is about normal over models."""

    def features(self, base: Any) -> Floats:
        """What a network is shown of each record, [n, F]; `base` are the public start's answers about the same."""

    @property
    def kinds(self) -> NDArray[np.int64]:
        """Which records one network judges, [n]: those of equal numbers from 0 on."""


@dataclass(frozen=True, eq=False)
class TextAnswers:
    """About texts. A record's rows are one for each token but its first, which nothing predicts."""

    by_compat: Mapping[str, TokenSignals]  # "exact", and "vlmia" where an attack asked for it
    sizes: NDArray[np.int64]  # [n], rows of each record
    spans: Sequence[Mapping[str, slice]]  # of each record's own rows: image, instruction, caption
    words: Sequence[str]  # of each caption

    def signals(self, compat: str = "exact") -> TokenSignals:
        return self.by_compat[compat]

    def mean(self, values: Floats) -> Floats:
        return self._over_learnt(values, np.mean)

    @functools.cached_property
    def loss(self) -> Floats:
        return -self.mean(self.signals().log_prob)

    @property
    def confidence(self) -> Floats:
        """Mean log p of the tokens: odds would be those of the words that grammar makes certain."""
        return -self.loss

    def features(self, base: TextAnswers) -> Floats:
        """Of the learnt tokens the mean log p and the mean of its least fifth, quartiles of Shannon's entropies, and
        the mean gap (at most `LARGEST_GAP`), all in nats and less those of the public start."""
        return self._summary - base._summary

    @functools.cached_property
    def _summary(self) -> Floats:
        signals = self.signals()
        parts: list[tuple[Floats, Callable[[Floats], Any]]] = [
            (signals.log_prob, np.mean),
            (signals.log_prob, _least_fifth),
            *((signals.renyi[1], functools.partial(np.quantile, q=q)) for q in (0.25, 0.5, 0.75)),
            (np.minimum(signals.gap, LARGEST_GAP), np.mean),
        ]
        return np.stack([self._over_learnt(values, reduce) for values, reduce in parts], axis=1)

    @property
    def kinds(self) -> NDArray[np.int64]:
        return np.zeros(len(self.sizes), np.int64)

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """[n], each record's first row."""
        return np.cumsum(self.sizes) - self.sizes

    def _over_learnt(self, values: Floats, reduce: Callable[[Floats], Any]) -> Floats:
        """`values` of all tokens as a number [n] of those that each record teaches."""
        by_record = np.split(values, self.starts[1:])
        return np.array([reduce(own[span[LEARNT]]) for own, span in zip(by_record, self.spans, strict=True)])

    @staticmethod
    def joined(parts: Sequence[TextAnswers]) -> TextAnswers:
        """About the records of several answers, one behind the other."""
        return TextAnswers(
            {compat: joined([part.by_compat[compat] for part in parts]) for compat in parts[0].by_compat},
            np.concatenate([part.sizes for part in parts]),
            [spans for part in parts for spans in part.spans],
            [words for part in parts for words in part.words],
        )

    def of(self, chosen: Sequence[int]) -> TextAnswers:
        """The answers about some records, by place."""
        rows = np.concatenate([np.arange(self.starts[i], self.starts[i] + self.sizes[i]) for i in chosen])
        kept = {compat: signals[rows] for compat, signals in self.by_compat.items()}
        return TextAnswers(kept, self.sizes[chosen], [self.spans[i] for i in chosen], [self.words[i] for i in chosen])

    def __getitem__(self, i: int) -> dict[str, TokenSignals]:
        """The signals of one record, by arithmetic."""
        rows = slice(self.starts[i], self.starts[i] + self.sizes[i])
        return {compat: signals[rows] for compat, signals in self.by_compat.items()}


@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """About classifications."""

    log_probs: Floats  # [n, C], of every class
    labels: NDArray[np.int64]  # [n], places among the classes

    def signals(self, compat: str = "exact") -> TokenSignals:
        return row_signals(self.log_probs, self.labels, compat=compat)

    def mean(self, values: Floats) -> Floats:
        return values

    @property
    def loss(self) -> Floats:
        return -own_class(self.log_probs, self.labels)

    @property
    def confidence(self) -> Floats:
        return log_odds(self.log_probs, self.labels)

    def features(self, base: ModelAnswers) -> Floats:
        """Square roots of the probabilities, whose differences are Hellinger's distances; the start says no more."""
        return np.exp(self.log_probs / 2)

    @property
    def kinds(self) -> NDArray[np.int64]:
        return self.labels


def own_class(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """log p of each record's own class: [.., n, C] and [n] to [.., n]."""
    found: Floats = np.take_along_axis(log_probs, np.broadcast_to(labels, log_probs.shape[:-1])[..., None], -1)[..., 0]
    return found


def log_odds(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """log (p / (1 - p)) of each record's own class, [.., n, C] to [.., n]: the logit-scaled confidence (LiRA, section
    IV-C), without cancellation."""
    own = own_class(log_probs, labels)
    others = log_probs.copy()
    np.put_along_axis(others, np.broadcast_to(labels, log_probs.shape[:-1])[..., None], -np.inf, -1)
    top = others.max(-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        rest = safe + np.log(np.exp(others - safe[..., None]).sum(-1))
    found: Floats = own - rest
    return found


def _least_fifth(values: Floats) -> float:
    return float(np.sort(values)[: max(1, len(values) // 5)].mean())
