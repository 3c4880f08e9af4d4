"""What an adversary has computed about the records that it asks about, before any attack: attacks are functions of
it.

All log-probabilities are natural logarithms in float64. n records; C classes, where records are classifications; S
shadow models; T rounds; K clients. Nothing here says who was a member of what the adversary attacks: only of the
shadows, which it trained itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attacks.answers import Arrays, ClassAnswers, Floats, ModelAnswers, log_odds, own_class

__all__ = ["Attack", "Floats", "Knowledge", "Mixture", "Rounds", "Shadows", "log_odds", "own_class"]

KNOWN = ("equal", "at most", "on average")  # what may be known of a mixture's total


@dataclass(frozen=True, eq=False)
class Shadows:
    """Models that the adversary trained itself, in the role of the one that it attacks."""

    member: NDArray[np.bool_]  # [S, n], which of the records each was trained on
    answers: Sequence[ModelAnswers]  # of each
    gradient_norms: Floats | None = None  # [S, n], nan for shadows that were not asked
    # [S], what the other clients sent is common to shadows of equal numbers; None: each was trained among its own
    trajectory: NDArray[np.int64] | None = None
    sequence: Floats | None = None  # [S, T, n], as `Knowledge.sequence`
    projections: Floats | None = None  # [S, n], as `Knowledge.projections`

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
        """All but shadow s and, where there are several trajectories, those of its own: nor has the attacked model
        shadows on its own."""
        if self.trajectory is None or len(np.unique(self.trajectory)) == 1:
            return self.of(np.arange(len(self.member)) != s)
        return self.of(self.trajectory != self.trajectory[s])

    def of(self, kept: NDArray[np.bool_]) -> Shadows:
        """Some of them [S]."""
        arrays = {name: getattr(self, name) for name in ("gradient_norms", "trajectory", "sequence", "projections")}
        some = {name: array[kept] for name, array in arrays.items() if array is not None}
        return Shadows(
            self.member[kept], [each for each, stays in zip(self.answers, kept, strict=True) if stays], **some
        )


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

    def arrays(self) -> Arrays:
        """As it is kept."""
        plain = {name: value for name, value in vars(self).items() if name != "known"}
        return {name: np.asarray(value) for name, value in (plain | {"known": KNOWN.index(self.known)}).items()}

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> Mixture:
        values: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return Mixture(**values | {"known": KNOWN[values["known"]]})


@dataclass(frozen=True, eq=False)
class Rounds:
    """What the server computed of the messages of some rounds. Entries of clients that sent nothing in a round are
    nan."""

    client: int  # whose records these are, a place among the K clients
    loss: Floats  # [T, K, n], cross-entropy under each client's model as the server rebuilds it after that round
    # [T, K, n], of each client's update with the record's descent direction: 1 = the update lowers its loss the most
    cosine: Floats
    mixtures: tuple[Mixture, ...] = ()  # of its own messages of its first rounds, where they are asked for
    began: Floats | None = None  # [T, n], cross-entropy where this client began its rounds; of adapters
    residual: Floats | None = None  # [T, n], of the record's inputs on the rows of the change of A; of adapters

    @staticmethod
    def of(client: int, clients: int, way: str, heard: Sequence[Arrays], solved: Sequence[Arrays] = ()) -> Rounds:
        """From what T rounds say about n records, and some messages as mixtures. The models of K clients are those
        rebuilt in one way."""
        n = next(len(array.T) for arrays in heard for array in arrays.values())
        none = np.full((clients, n), np.nan)

        def loss(arrays: Arrays) -> Floats:
            found = arrays.get(f"heard/loss/{way}", none).copy()
            if (own := arrays.get(f"own/loss/{way}")) is not None:
                found[client] = own
            return found

        def stack(name: str) -> Floats | None:
            return np.stack([arrays[name] for arrays in heard]) if all(name in arrays for arrays in heard) else None

        return Rounds(
            client,
            np.stack([loss(arrays) for arrays in heard]),
            np.stack([arrays.get("heard/cosine", none) for arrays in heard]),
            tuple(map(Mixture.of, solved)),
            began=stack("own/began"),
            residual=stack("heard/residual"),
        )


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
    # [T, n], loss under the broadcasts of some rounds, evenly spaced, in order; of adapters the final one too
    history: Floats | None = None
    # [T, n], confidence under the released models after some rounds, evenly spaced; the last is the final one
    sequence: Floats | None = None
    # [n], how far training has moved the attacked vectors towards where each record's loss falls fastest, by gradients
    # at the mean of the shadows
    projections: Floats | None = None
    base_projections: Floats | None = None
    rounds: Rounds | None = None

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] of the records under the attacked model, in nats (per token)."""
        return self.answers.loss

    @property
    def states(self) -> Floats | None:
        """Losses [T, n] under all states that are seen of what is attacked, in order: the client's own where its
        messages are seen, else the broadcasts; None where no rounds are looked at."""
        return self.history if self.rounds is None else self.rounds.loss[:, self.rounds.client]

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
            self, answers=self.base, gradient_norms=self.base_gradient_norms, projections=self.base_projections,
            history=None, sequence=None, rounds=None,
        )  # fmt: skip

    def leave_out(self, s: int) -> Knowledge:
        """Shadow s as the attacked model, and the others as its shadows: its members are known."""
        assert self.shadows is not None
        arrays = {name: getattr(self.shadows, name) for name in ("gradient_norms", "sequence", "projections")}
        own: dict[str, Any] = {name: None if array is None else array[s] for name, array in arrays.items()}
        return dataclasses.replace(
            self, answers=self.shadows.answers[s], shadows=self.shadows.without(s), history=None, rounds=None, **own
        )


class Attack(Protocol):
    """A pure function of what its adversary has computed."""

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        """The values [n] of every score; higher = more likely a member, NaN = nothing can be said."""
        ...
