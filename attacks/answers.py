"""What a model answers about records: how likely it holds each token of them, and how sure it is.

A record is a text of tokens, of which the part "caption" is learnt; a classification is a text of one token, whose
vocabulary are the classes. One forward pass gives everything; vocabulary rows of texts are never kept. Natural
logarithms, float64.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attacks.tokens.signals import TokenSignals, joined, row_signals

Floats = NDArray[np.float64]
LEARNT = "caption"  # the part of a text that training makes likelier


class ModelAnswers(Protocol):
    """One model's answers about n records."""

    def signals(self, compat: str = "exact") -> TokenSignals:
        """Of every token of all records, record by record, in exact arithmetic or, if it was asked for, VL-MIA's."""

    def mean(self, values: Floats) -> Floats:
        """`values` of all tokens as a mean [n] over the tokens that each record teaches."""

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] in nats per token."""


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
        return np.array(
            [own[span[LEARNT]].mean() for own, span in zip(self._by_record(values), self.spans, strict=True)]
        )

    @functools.cached_property
    def loss(self) -> Floats:
        return -self.mean(self.signals().log_prob)

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """[n], each record's first row."""
        return np.cumsum(self.sizes) - self.sizes

    def _by_record(self, values: Floats) -> list[Floats]:
        return np.split(values, self.starts[1:])

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


def own_class(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """log p of each record's own class: [.., n, C] and [n] to [.., n]."""
    found: Floats = np.take_along_axis(log_probs, np.broadcast_to(labels, log_probs.shape[:-1])[..., None], -1)[..., 0]
    return found
