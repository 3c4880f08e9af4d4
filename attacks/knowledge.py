"""What an adversary has computed about the records that it asks about, before any attack: attacks are functions of
it.

All log-probabilities are natural logarithms in float64. n records; C classes, where records are classifications; S
shadow models; T rounds; K clients. Nothing here says who was a member of what the adversary attacks: only of the
shadows, which it trained itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attacks.answers import ClassAnswers, Floats, ModelAnswers, log_odds, own_class

__all__ = ["Attack", "Floats", "Knowledge", "Mixture", "Rounds", "Shadows", "log_odds", "own_class"]


@dataclass(frozen=True, eq=False)
class Shadows:
    """Models that the adversary trained itself, in the role of the one that it attacks."""

    member: NDArray[np.bool_]  # [S, n], which of the records each was trained on
    answers: Sequence[ModelAnswers]  # of each
    gradient_norms: Floats | None = None  # [S, n], nan for shadows that were not asked

    @staticmethod
    def of_classes(
        member: NDArray[np.bool_], log_probs: Floats, labels: NDArray[np.int64], gradient_norms: Floats | None = None
    ) -> Shadows:
        """About classifications: log-probabilities [S, n, C]."""
        return Shadows(member, [ClassAnswers(found, labels) for found in log_probs], gradient_norms)

    @functools.cached_property
    def loss(self) -> Floats:
        """Cross-entropy [S, n] in nats per token."""
        return np.stack([each.loss for each in self.answers])

    @functools.cached_property
    def confidence(self) -> Floats:
        """See `ModelAnswers`, [S, n]."""
        return np.stack([each.confidence for each in self.answers])

    def features(self, base: ModelAnswers) -> Floats:
        """See `ModelAnswers`, [S, n, F]."""
        return np.stack([each.features(base) for each in self.answers])

    def without(self, s: int) -> Shadows:
        """All but shadow s."""
        kept = np.arange(len(self.member)) != s
        norms = None if self.gradient_norms is None else self.gradient_norms[kept]
        answers = [each for t, each in enumerate(self.answers) if t != s]
        return Shadows(self.member[kept], answers, norms)


@dataclass(frozen=True, eq=False)
class Mixture:
    """One message as a mixture of its client's records: gradients @ shares / divisor = sent, to first order.

    A share is 1 for a record of the batch and 0 for another one; after several steps it sums what its steps count for.
    Any rows with the same products will do for the m numbers of a message.
    """

    round: int
    gradients: Floats  # [m, n], of the first n records asked about: as clipped, where the client took its first step
    sent: Floats  # [m], what the records made of the message
    numbers: int  # of which the message consists
    divisor: float  # of the batch's sum
    low: float  # a share is at least this: 0, but where steps count against each other
    high: float  # and at most this
    total: float  # of all shares in its batches
    known: str  # of the total, for these n: it is "equal" to it, "at most" that, or that "on average"
    scaled: bool  # whether the message was shortened by an unknown factor, as a clipped batch is
    std: float  # of the client's noise in each of the numbers


@dataclass(frozen=True, eq=False)
class Rounds:
    """What the server computed of the messages of some rounds. Entries of clients that sent nothing in a round are
    nan."""

    client: int  # whose records these are, a place among the K clients
    loss: Floats  # [T, K, n], cross-entropy under each client's model as the server rebuilds it after that round
    # [T, K, n], of each client's update with the record's descent direction: 1 = the update lowers its loss the most
    cosine: Floats
    mixtures: tuple[Mixture, ...] = ()  # of its own messages of its first rounds, where they are asked for


@dataclass(frozen=True, eq=False)
class Knowledge:
    """One model under attack, and everything that its attacker knows of the records."""

    records: tuple[str, ...]
    known: NDArray[np.bool_]  # [n], non-members by construction (reference records of the same distribution)
    answers: ModelAnswers  # of the attacked model
    base: ModelAnswers  # of the public start of training
    hard: Floats | None = None  # [n, C], log p of what everybody can use without training: of prompts the hard one
    gradient_norms: Floats | None = None  # [n], L2 norm of the loss's gradient in the attacked prompt
    base_gradient_norms: Floats | None = None
    shadows: Shadows | None = None
    history: Floats | None = None  # [T, n], loss under the broadcasts of some rounds, evenly spaced, in order
    rounds: Rounds | None = None

    @staticmethod
    def of_classes(
        records: tuple[str, ...], labels: NDArray[np.int64], known: NDArray[np.bool_], log_probs: Floats,
        base: Floats, hard: Floats, **more: Any,
    ) -> Knowledge:  # fmt: skip
        """About classifications: log-probabilities [n, C] of the attacked model, the public start and the hard prompt;
        `more` are the other fields."""
        attacked, start = (ClassAnswers(found, labels) for found in (log_probs, base))
        return Knowledge(records, known, attacked, start, hard, **more)

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] of the records under the attacked model, in nats (per token)."""
        return self.answers.loss

    @property
    def log_probs(self) -> Floats:
        """Of all classes under the attacked model, [n, C]."""
        return self._classes.log_probs

    @property
    def labels(self) -> NDArray[np.int64]:
        """The records' places [n] among the classes."""
        return self._classes.labels

    @property
    def _classes(self) -> ClassAnswers:
        assert isinstance(self.answers, ClassAnswers)
        return self.answers

    def before_training(self) -> Knowledge:
        """The same attack on the public start: a control, membership cannot be in it. What is seen of rounds has no
        such control."""
        return dataclasses.replace(
            self, answers=self.base, gradient_norms=self.base_gradient_norms, history=None, rounds=None
        )

    def leave_out(self, s: int) -> Knowledge:
        """Shadow s as the attacked model, and the others as its shadows: its members are known."""
        assert self.shadows is not None
        norms = None if self.shadows.gradient_norms is None else self.shadows.gradient_norms[s]
        return dataclasses.replace(
            self, answers=self.shadows.answers[s], gradient_norms=norms,
            shadows=self.shadows.without(s), history=None, rounds=None,
        )  # fmt: skip


class Attack(Protocol):
    """A pure function of what its adversary has computed."""

    @property
    def signals(self) -> Sequence[str]:
        """The names of its scores."""

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        """The values [n] of every score; higher = more likely a member, NaN = nothing can be said."""
        ...
