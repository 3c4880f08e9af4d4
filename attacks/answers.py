"""What a model answers about records: how likely it holds each token of them, and how sure it is.

A record is a text of tokens, of which the part "caption" is learnt; a classification is a text of one token, whose
vocabulary are the classes. One forward pass gives everything; vocabulary rows of texts are never kept. Natural
logarithms, float64.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attacks.tokens.signals import TokenSignals, row_signals, stacked, unstacked

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]  # what is kept of an answer, by name
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

    @property
    def digest(self) -> str:
        """Names what was answered by content."""

    def facts(self, base: Any) -> dict[str, Any]:
        """Columns [n] for readers beside the losses; `base` are the public start's answers about the same."""


class PublicRecords(Protocol):
    """What everybody knows of n records, or can compute without anything that was trained."""

    @property
    def hard(self) -> Floats | None:
        """Log-probabilities [n, C] of the untrained hard prompt; None where records are texts."""

    def answers(self, parts: Mapping[str, Arrays]) -> ModelAnswers:
        """One model's answers about these records, from what was kept of them in each arithmetic."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Of texts; a record's rows are one for each token but its first."""

    sizes: NDArray[np.int64]  # [n], rows of each record
    spans: Sequence[Mapping[str, slice]]  # of each record's own rows: image, instruction, caption
    words: Sequence[str]  # of each caption
    tokens: Sequence[Sequence[str]]  # of each record, as text
    hard: None = None

    def arrays(self) -> Arrays:
        """As it is kept."""
        spans = [{name: [span.start, span.stop] for name, span in own.items()} for own in self.spans]
        texts = json.dumps({"spans": spans, "words": list(self.words), "tokens": [list(own) for own in self.tokens]})
        return {"sizes": self.sizes, "texts": np.frombuffer(texts.encode(), np.uint8)}

    @staticmethod
    def of(arrays: Arrays) -> Texts:
        texts = json.loads(arrays["texts"].tobytes())
        spans = [{name: slice(*span) for name, span in own.items()} for own in texts["spans"]]
        return Texts(arrays["sizes"], spans, texts["words"], texts["tokens"])

    def answers(self, parts: Mapping[str, Arrays]) -> TextAnswers:
        by_compat = {compat: unstacked(arrays["signals"]) for compat, arrays in parts.items()}
        return TextAnswers(by_compat, self.sizes, self.spans, self.words)


@dataclass(frozen=True, eq=False)
class Classifications:
    """Of classifications."""

    labels: NDArray[np.int64]  # [n], places among the C classes
    hard: Floats

    def arrays(self) -> Arrays:
        """As it is kept."""
        return {"labels": self.labels, "hard": self.hard}

    def answers(self, parts: Mapping[str, Arrays]) -> ClassAnswers:
        (arrays,) = parts.values()
        return ClassAnswers(arrays["log_probs"], self.labels)


def spans_of(spans: Mapping[str, slice], compat: str = "exact") -> Mapping[str, slice]:
    """Ranges of rows by part: with `vlmia` beside those of `spans` (image, instruction, caption) also VL-MIA's `desp`
    and `inst_desp`.

    These hold rows inside of a part of T tokens only, T - 1 of them: neither the row that predicts the description's
    first token nor the one that predicts the end. VL-MIA's `img` and `inst` are image and instruction. A description of
    one token, of which that code makes no score, keeps the row that predicts it, and so does `inst_desp` where the
    instruction has no row.
    """
    if compat != "vlmia":
        return spans
    first, end = spans["caption"].start + 1, spans["caption"].stop - 1
    own = slice(first, end) if first < end else slice(first - 1, end)
    return {**spans, "desp": own, "inst_desp": slice(min(spans["instruction"].start, own.start), own.stop)}


def public_records(arrays: Arrays) -> PublicRecords:
    """From what is kept of it."""
    return Classifications(**arrays) if "labels" in arrays else Texts.of(arrays)


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
    def digest(self) -> str:
        return _digest([stacked(signals) for signals in self.by_compat.values()])

    def facts(self, base: TextAnswers) -> dict[str, Any]:
        """Per record the part that each of its tokens belongs to, log p, and the Rényi-2 entropy now and before
        training (nats)."""
        now, before = ([answers[i]["exact"] for i in range(len(self.sizes))] for answers in (self, base))
        return {
            "token_slice": [_parts(spans, int(size)) for spans, size in zip(self.spans, self.sizes, strict=True)],
            "token_log_prob": [own.log_prob.astype(np.float32) for own in now],
            "token_entropy": [own.renyi[2].astype(np.float32) for own in now],
            "base_token_entropy": [own.renyi[2].astype(np.float32) for own in before],
        }

    def __getitem__(self, i: int) -> dict[str, TokenSignals]:
        """The signals of one record, by arithmetic."""
        rows = slice(self.starts[i], self.starts[i] + self.sizes[i])
        return {compat: signals[rows] for compat, signals in self.by_compat.items()}

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """[n], each record's first row."""
        return np.cumsum(self.sizes) - self.sizes

    def _over_learnt(self, values: Floats, reduce: Callable[[Floats], Any]) -> Floats:
        """`values` of all tokens as a number [n] of those that each record teaches."""
        by_record = np.split(values, self.starts[1:])
        return np.array([reduce(own[span[LEARNT]]) for own, span in zip(by_record, self.spans, strict=True)])


def _parts(spans: Mapping[str, slice], rows: int) -> list[str]:
    """Which part each of a record's rows belongs to."""
    found = np.full(rows, "instruction", dtype=object)
    for name, span in spans.items():
        found[span] = name
    parts: list[str] = found.tolist()
    return parts


def _digest(arrays: Sequence[NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


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

    @functools.cached_property
    def digest(self) -> str:
        return _digest([self.log_probs])

    def facts(self, base: ModelAnswers) -> dict[str, Any]:
        return {}


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
