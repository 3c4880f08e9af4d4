"""A model's answers about records: the signals of every token, the loss, and the confidence.

A record is a text, of which the tokens of the part "caption" are learnt. A classification is a text of one token, whose
vocabulary is the classes. One forward pass gives everything; logits of texts are never stored. Logarithms are natural,
numbers float64.
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

from fedaudit.attacks.tokens.signals import TokenSignals, row_signals, stacked, unstacked

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]  # stored parts of an answer, by name
LEARNT = "caption"  # the part of a text that training makes likelier
LARGEST_GAP = 20.0  # nats, instead of infinity


class ModelAnswers(Protocol):
    """One model's answers about n records. Token arrays hold all records' tokens, one record after the other."""

    def __hash__(self) -> int:
        """Hash by identity: answers are equal only to themselves."""

    def signals(self, compat: str = "exact") -> TokenSignals:
        """Signals of every token; `compat` "vlmia" (VL-MIA's arithmetic) only if an attack's `Params.compat` asked for
        it."""

    def mean(self, values: Floats) -> Floats:
        """Average a token array over each record's learnt tokens, to [n]: a text's caption, or a classification's one
        token."""

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] in nats per learnt token."""

    @property
    def confidence(self) -> Floats:
        """Confidence [n], nearly normal over models: log (p / (1 - p)) of a class, mean log p of a text's tokens."""

    def features(self, base: Any) -> Floats:
        """Inputs [n, F] of the network of the shadow-model attack; `base`: answers of the public state before
        training."""

    @property
    def kinds(self) -> NDArray[np.int64]:
        """Number [n] of the network that judges each record in that attack: the class, or 0 for every text."""

    @property
    def digest(self) -> str:
        """Hash of the answers."""

    def facts(self, base: Any) -> dict[str, Any]:
        """Further columns of the table of records, n values each; `base` as in `features`. Empty for classes."""


class PublicRecords(Protocol):
    """Public facts about n records, computed without any trained model."""

    @property
    def hard(self) -> Floats | None:
        """Log-probabilities [n, C] under the untrained hand-written prompt; None for texts."""

    def answers(self, parts: Mapping[str, Arrays]) -> ModelAnswers:
        """One model's answers about these records, from its stored `parts`, by arithmetic: "exact", "vlmia"."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Public facts about n texts. A text has a row for each token but the first, which nothing predicts."""

    sizes: NDArray[np.int64]  # [n], rows of each record
    spans: Sequence[
        Mapping[str, slice]
    ]  # rows of each record's parts "image", "instruction", "caption", from its first
    words: Sequence[str]  # the caption of each record
    tokens: Sequence[Sequence[str]]  # of each record, as text
    hard: None = None

    def arrays(self) -> Arrays:
        """The fields as arrays by name, to be stored: `sizes`, and `texts`, the others as JSON in bytes; `of` reads
        them."""
        spans = [{name: [span.start, span.stop] for name, span in parts.items()} for parts in self.spans]
        tokens = [list(of_record) for of_record in self.tokens]
        texts = json.dumps({"spans": spans, "words": list(self.words), "tokens": tokens})
        return {"sizes": self.sizes, "texts": np.frombuffer(texts.encode(), np.uint8)}

    @staticmethod
    def of(arrays: Arrays) -> Texts:
        """The facts that `arrays` turned into arrays."""
        texts = json.loads(arrays["texts"].tobytes())
        spans = [{name: slice(*span) for name, span in parts.items()} for parts in texts["spans"]]
        return Texts(arrays["sizes"], spans, texts["words"], texts["tokens"])

    def answers(self, parts: Mapping[str, Arrays]) -> TextAnswers:
        by_compat = {compat: unstacked(arrays["signals"]) for compat, arrays in parts.items()}
        return TextAnswers(by_compat, self.sizes, self.spans, self.words)


@dataclass(frozen=True, eq=False)
class Classifications:
    """Public facts about n classifications."""

    labels: NDArray[np.int64]  # [n], index among the C classes
    hard: Floats  # [n, C], log-probabilities under the untrained hand-written prompt

    def arrays(self) -> Arrays:
        """Its fields as arrays, to be stored."""
        return {"labels": self.labels, "hard": self.hard}

    def answers(self, parts: Mapping[str, Arrays]) -> ClassAnswers:
        (arrays,) = parts.values()
        return ClassAnswers(arrays["log_probs"], self.labels)


def spans_of(spans: Mapping[str, slice], compat: str = "exact") -> Mapping[str, slice]:
    """Row ranges of one record by part of its text: `spans` (image, instruction, caption), with compat "vlmia" also
    VL-MIA's `desp` (description) and `inst_desp` (instruction and description).

    VL-MIA scores only rows inside a part: `desp` lacks the row that predicts the caption's first token and the one that
    predicts the end. Its `img` and `inst` are our image and instruction. A description of one token, which that code
    does not score, keeps the row that predicts it, and so does `inst_desp` if the instruction has no row.
    """
    if compat != "vlmia":
        return spans
    first, end = spans["caption"].start + 1, spans["caption"].stop - 1
    description = slice(first, end) if first < end else slice(first - 1, end)
    both = slice(min(spans["instruction"].start, description.start), description.stop)
    return {**spans, "desp": description, "inst_desp": both}


def public_records(arrays: Arrays) -> PublicRecords:
    """Restore `Texts` or `Classifications` from their stored arrays."""
    return Classifications(**arrays) if "labels" in arrays else Texts.of(arrays)


@dataclass(frozen=True, eq=False)
class TextAnswers:
    """Answers about n texts, see `ModelAnswers`. `answers[i]` are those about record i alone."""

    by_compat: Mapping[str, TokenSignals]  # of all records, by arithmetic: "exact", "vlmia" if an attack asked for it
    sizes: NDArray[np.int64]  # [n], rows of each record, see `Texts`
    spans: Sequence[Mapping[str, slice]]  # rows of each record's parts, from its first row
    words: Sequence[str]  # the caption of each record

    def signals(self, compat: str = "exact") -> TokenSignals:
        return self.by_compat[compat]

    def mean(self, values: Floats) -> Floats:
        return self._over_learnt(values, np.mean)

    @functools.cached_property
    def loss(self) -> Floats:
        return -self.mean(self.signals().log_prob)

    @property
    def confidence(self) -> Floats:
        """Mean log p of the learnt tokens. Log-odds would be ruled by the words that grammar makes certain."""
        return -self.loss

    def features(self, base: TextAnswers) -> Floats:
        """Change [n, 6] since `base`, in nats, of six numbers over the learnt tokens: mean log p, its mean over the
        least likely fifth, the quartiles of Shannon's entropy, and the mean gap (each at most `LARGEST_GAP`)."""
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
        """Facts by name, for each record an array or list over its tokens: "token_slice" (the part of the text, in
        words), and in nats "token_log_prob", "token_entropy" (Rényi of order 2), and "base_token_entropy", the same
        under `base`."""
        now, before = ([answers[i]["exact"] for i in range(len(self.sizes))] for answers in (self, base))
        return {
            "token_slice": [_parts(spans, int(size)) for spans, size in zip(self.spans, self.sizes, strict=True)],
            "token_log_prob": [signals.log_prob.astype(np.float32) for signals in now],
            "token_entropy": [signals.renyi[2].astype(np.float32) for signals in now],
            "base_token_entropy": [signals.renyi[2].astype(np.float32) for signals in before],
        }

    def __getitem__(self, i: int) -> dict[str, TokenSignals]:
        """The signals of record i, by arithmetic."""
        rows = slice(self.starts[i], self.starts[i] + self.sizes[i])
        return {compat: signals[rows] for compat, signals in self.by_compat.items()}

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index [n] of each record's first row."""
        return np.cumsum(self.sizes) - self.sizes

    def _over_learnt(self, values: Floats, reduce: Callable[[Floats], Any]) -> Floats:
        """Reduce a token array to one number per record, [n], over its learnt tokens."""
        by_record = np.split(values, self.starts[1:])
        return np.array([reduce(rows[span[LEARNT]]) for rows, span in zip(by_record, self.spans, strict=True)])


def _parts(spans: Mapping[str, slice], rows: int) -> list[str]:
    """The part ("image", "instruction", "caption") that each of a record's rows belongs to; "instruction" where no span
    covers it."""
    parts = ["instruction"] * rows
    for name, span in spans.items():
        parts[span] = [name] * len(parts[span])
    return parts


def _digest(arrays: Sequence[NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """Answers about n classifications, see `ModelAnswers`."""

    log_probs: Floats  # [n, C], of every class
    labels: NDArray[np.int64]  # [n], index among the classes

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
        """Square roots [n, C] of the probabilities, whose distances are Hellinger's; `base` is not used."""
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
    """log p [.., n] of each record's own class, from [.., n, C] and labels [n]."""
    index = np.broadcast_to(labels, log_probs.shape[:-1])[..., None]
    log_p: Floats = np.take_along_axis(log_probs, index, -1)[..., 0]
    return log_p


def log_odds(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """log (p / (1 - p)) [.., n] of each record's own class, from log p [.., n, C]: LiRA's logit-scaled confidence
    (section IV-C), without cancellation for p near 1."""
    others = log_probs.copy()
    np.put_along_axis(others, np.broadcast_to(labels, log_probs.shape[:-1])[..., None], -np.inf, -1)
    top = others.max(-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        rest = safe + np.log(np.exp(others - safe[..., None]).sum(-1))
    return own_class(log_probs, labels) - rest


def _least_fifth(values: Floats) -> float:
    return float(np.sort(values)[: max(1, len(values) // 5)].mean())
