"""Everything that an adversary knows about the records before it attacks: the input of every attack.

Logarithms are natural, numbers float64. Sizes: n records, C classes, S shadow models, T rounds, K clients. Nothing here
tells which records are members of the attacked model, only of the shadow models, which the adversary trained itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks.answers import Arrays, ClassAnswers, Floats, ModelAnswers, log_odds, own_class

__all__ = ["Attack", "Floats", "Knowledge", "Mixture", "Rounds", "Shadows", "log_odds", "own_class"]

KNOWN = ("equal", "at most", "on average")  # values of `Mixture.known`
ROUNDING = 1e-7  # times the largest singular value of gradients: smaller ones are rounding errors
SUMS = ("scatter", "moment", "distances")  # keys of `Knowledge.pooled`


@dataclass(frozen=True, eq=False)
class Shadows:
    """S models that the adversary trained itself, as the attacked model was trained, on members that it knows."""

    member: NDArray[np.bool_]  # [S, n], whether shadow s was trained on a record
    answers: Sequence[ModelAnswers]  # of each shadow, about the same n records
    gradient_norms: Floats | None = None  # [S, n], NaN for shadows without any
    # [S], number of the simulated federation in which each was trained; None: each in one of its own
    trajectory: NDArray[np.int64] | None = None
    sequence: Floats | None = None  # [S, T, n], as `Knowledge.sequence`
    projections: Floats | None = None  # [S, n], as `Knowledge.projections`

    @functools.cached_property
    def loss(self) -> Floats:
        """Cross-entropy [S, n] of the records under each shadow, in nats per token."""
        return np.stack([each.loss for each in self.answers])

    @functools.cached_property
    def confidence(self) -> Floats:
        """`ModelAnswers.confidence` of each shadow, [S, n]."""
        return np.stack([each.confidence for each in self.answers])

    def features(self, base: ModelAnswers) -> Floats:
        """`ModelAnswers.features` of each shadow, [S, n, F]."""
        return np.stack([each.features(base) for each in self.answers])

    def without(self, s: int) -> Shadows:
        """The shadows that are left when shadow s plays the attacked model: the others of its simulated federation are
        dropped too (if there are several federations), as the real target has no shadows in its own."""
        if self.trajectory is None or len(np.unique(self.trajectory)) == 1:
            return self.of(np.arange(len(self.member)) != s)
        return self.of(self.trajectory != self.trajectory[s])

    def of(self, kept: NDArray[np.bool_]) -> Shadows:
        """The shadows for which `kept` [S] is true, with all that is known of them."""
        arrays = {name: getattr(self, name) for name in ("gradient_norms", "trajectory", "sequence", "projections")}
        some = {name: array[kept] for name, array in arrays.items() if array is not None}
        return Shadows(
            self.member[kept], [each for each, stays in zip(self.answers, kept, strict=True) if stays], **some
        )


@dataclass(frozen=True, eq=False)
class Mixture:
    """Linear equations for the records in one message: gradients @ shares / divisor = sent, to first order.

    `shares` [n] is what an attack solves for: 1 for a record of the batch, 0 for another one; after several local steps
    the sum of the coefficients of the steps whose batch had it. The m rows may be any with the same inner products as
    the message's own numbers.
    """

    round: int
    gradients: Floats  # [m, n], of the client's own records, as clipped by it, in the model of its first step
    sent: Floats  # [m], the message without what does not come from records
    numbers: int  # parameters in the message
    divisor: float  # by which the batch's sum was divided
    low: float  # least possible share: 0 unless some steps have negative coefficients
    high: float  # largest possible share
    total: float  # sum of the shares of all records in the batches
    known: str  # whether the n shares sum to `total` exactly ("equal"), to no more ("at most"), or "on average"
    scaled: bool  # whether the message was multiplied by an unknown factor below 1, as a clipped batch is
    std: float  # standard deviation of the client's noise in each parameter
    lengths: Floats  # [n], of the gradients before they were clipped
    coefficients: Floats  # [S], how much the gradients of each of the client's S steps weigh in `sent`

    @property
    def clipped_to(self) -> Floats:
        """Lengths [n] of the gradients as the client clips them."""
        lengths: Floats = np.linalg.norm(self.gradients, axis=0)
        return lengths

    def remainder(self) -> tuple[float, int]:
        """The squared length of what of the message lies outside the span of the gradients, and the dimension of that
        space, of the message's own numbers."""
        basis, sizes, _ = np.linalg.svd(self.gradients, full_matrices=False)
        inside = basis[:, sizes > ROUNDING * sizes.max(initial=0.0)].T @ self.sent
        return max(0.0, float(self.sent @ self.sent - inside @ inside)), self.numbers - len(inside)

    def arrays(self) -> Arrays:
        """Its fields as arrays, to be stored; `of` reads them."""
        plain = {name: value for name, value in vars(self).items() if name != "known"}
        return {name: np.asarray(value) for name, value in (plain | {"known": KNOWN.index(self.known)}).items()}

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> Mixture:
        """The inverse of `arrays`."""
        values: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return Mixture(**values | {"known": KNOWN[values["known"]]})


@dataclass(frozen=True, eq=False)
class Explained:
    """One message of adapters, or one change of what is broadcast, explained by the gradients of n records
    (`attacks.messages.ridge`)."""

    round: int
    weights: Floats  # [n], NaN for records whose gradient is zero or was not looked at, and if the message is zero
    residual: float  # the unexplained part of the message by its norm, 0 to 1; NaN if it is zero
    skipped: int  # records that were left out as their gradient is zero

    def arrays(self) -> Arrays:
        """Its fields as arrays, to be stored; `of` reads them."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]]) -> Explained:
        """The inverse of `arrays`."""
        values: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return Explained(**values)

    def picked(self, places: NDArray[np.int64]) -> Explained:
        """This with the weights of the records at these places [k]; NaN where a place is -1."""
        return dataclasses.replace(self, weights=np.append(self.weights, np.nan)[places])


@dataclass(frozen=True, eq=False)
class PooledSum:
    """A sum over all users as equations for the shares of one user's n candidates (`attacks.messages.pooled`):
    `rows @ shares` is `target`, as nearly as the sum tells; shares are 0 or more, those of each group sum to 1."""

    rows: Floats  # [m, n]
    target: Floats  # [m]
    groups: NDArray[np.int64]  # [n], number of each record's group, as its class

    def arrays(self) -> Arrays:
        """Its fields as arrays, to be stored."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class SolvedBatch:
    """The contents of a client's first message as a server solves them without candidates
    (`attacks.messages.contents`): of each of B records its class and the embedding of its picture."""

    labels: NDArray[np.int64]  # [B]
    embeddings: Floats  # [B, E], of length 1


@dataclass(frozen=True, eq=False)
class Rounds:
    """Results of a server that reads T rounds of messages, about one client's records; NaN where a client sent
    nothing."""

    client: int  # number of the attacked client among the K clients
    loss: Floats  # [T, K, n], cross-entropy under each client's model, as rebuilt after the round
    cosine: Floats  # [T, K, n], of each client's update with the direction in which the record's loss falls fastest
    mixtures: tuple[Mixture, ...] = ()  # the client's first messages, if an attack has `mixtures = True`
    start_loss: Floats | None = None  # [T, n], cross-entropy where the client started its round; adapters only
    # [T, n], the part of a record's layer inputs outside the row space of the change of A, 0 to 1; adapters only
    residual: Floats | None = None

    @staticmethod
    def of(
        client: int, clients: int, rebuilding: str, heard: Sequence[Arrays], solved: Sequence[Arrays] = ()
    ) -> Rounds:
        """The results of T rounds of messages for one client's n records, from the stored arrays of each round
        (`attacks.questions.base.Messages.round`) and of solved messages. `clients` is K; losses are under models that
        the server rebuilt in the way `rebuilding`."""
        n = next(len(array.T) for arrays in heard for array in arrays.values())
        none = np.full((clients, n), np.nan)

        def loss(arrays: Arrays) -> Floats:
            by_client = arrays.get(f"heard/loss/{rebuilding}", none).copy()
            by_client[client] = arrays.get(f"own/loss/{rebuilding}", by_client[client])
            return by_client

        def stack(name: str) -> Floats | None:
            return np.stack([arrays[name] for arrays in heard]) if all(name in arrays for arrays in heard) else None

        return Rounds(
            client,
            np.stack([loss(arrays) for arrays in heard]),
            np.stack([arrays.get("heard/cosine", none) for arrays in heard]),
            tuple(map(Mixture.of, solved)),
            start_loss=stack("own/began"),
            residual=stack("heard/residual"),
        )


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Everything that your attack can read: one attacked model, and what its adversary knows about n records.

    Every attack has `loss` [n], and on classes `log_probs` [n, C] and `labels` [n]. For anything else about a model's
    predictions ask `answers` (the attacked model) or `base` (the public state before training):

        answers.signals()                          arrays over all tokens of all records (`TokenSignals`): log_prob,
                                                   mean_log_prob, gap, and renyi[order]; renyi[1] is Shannon's entropy
        answers.mean(answers.signals().log_prob)   [n], the mean over each record's learnt tokens, here -loss

    The same lines serve texts and classes: a classification counts as a text of one token. Fields that may be None are
    computed only if your `Facts` ask for them: the comment names the field of `AttackFacts`. Raise ValueError if one
    that you need is missing.
    """

    records: tuple[str, ...]  # ids
    known: NDArray[np.bool_]  # [n], reference records: of the client's distribution, and certainly no members
    answers: ModelAnswers  # of the attacked model
    base: ModelAnswers  # of the public state before training
    hard: Floats | None = None  # [n, C], log-probabilities under the untrained hand-written prompt; classes only
    gradient_norms: Floats | None = None  # [n], L2 norm of the loss gradient in the attacked model: `gradients`
    base_gradient_norms: Floats | None = None  # the same before training
    shadows: Shadows | None = None  # `shadows`
    # [T, n], loss under broadcasts of evenly spaced rounds, in order, on texts the final model too: `needs`, `rounds`
    history: Floats | None = None
    # [T, n], confidence under the released models after evenly spaced rounds, the last of them final: `sequences`
    sequence: Floats | None = None
    # [n], how far training moved the attacked model in the direction in which the record's loss falls fastest, with
    # gradients at the mean of the shadows: `vectors`
    projections: Floats | None = None
    base_projections: Floats | None = None  # the same before training
    rounds: Rounds | None = None  # what a server computed from messages: `needs = ("uploads",)` or sums of uploads
    # by active attack the client's answer to its probe; without those that it did not answer: `needs = ("probes",)`
    probed: Mapping[str, Mixture] = field(default_factory=dict)
    # all messages of the client, or changes of the broadcasts where no messages are seen: `mixtures`, on texts
    explained: tuple[Explained, ...] | None = None
    # by name, sums that a protocol reveals, as equations for the first records: `reads`
    pooled: Mapping[str, PooledSum] = field(default_factory=dict)
    contents: SolvedBatch | None = None  # of the client's first message; None if it cannot be solved: `contents`
    embeddings: Floats | None = None  # [n, E], of the records' pictures, of length 1: `contents`

    @property
    def loss(self) -> Floats:
        """Cross-entropy [n] of the records under the attacked model, in nats (per token)."""
        return self.answers.loss

    @property
    def states(self) -> Floats | None:
        """Losses [T, n] over rounds: under the client's own rebuilt models if its messages are seen, else under the
        broadcasts; None if no attack looks at rounds."""
        return self.history if self.rounds is None else self.rounds.loss[:, self.rounds.client]

    @property
    def log_probs(self) -> Floats:
        """Log-probabilities [n, C] of all classes under the attacked model; on texts an AssertionError."""
        return self._classes.log_probs

    @property
    def labels(self) -> NDArray[np.int64]:
        """Index [n] of each record's class; on texts an AssertionError."""
        return self._classes.labels

    @property
    def _classes(self) -> ClassAnswers:
        assert isinstance(self.answers, ClassAnswers)
        return self.answers

    def before_training(self) -> Knowledge:
        """This knowledge with the public state before training attacked: a control without membership, and without
        rounds."""
        return dataclasses.replace(
            self, answers=self.base, gradient_norms=self.base_gradient_norms, projections=self.base_projections,
            history=None, sequence=None, rounds=None, explained=None, contents=None,
        )  # fmt: skip

    def leave_out(self, s: int) -> Knowledge:
        """This knowledge with shadow s, whose members are known, as the attacked model beside `Shadows.without(s)`; no
        losses over rounds."""
        assert self.shadows is not None
        arrays = {name: getattr(self.shadows, name) for name in ("gradient_norms", "sequence", "projections")}
        fields: dict[str, Any] = {name: None if array is None else array[s] for name, array in arrays.items()}
        return dataclasses.replace(
            self, answers=self.shadows.answers[s], shadows=self.shadows.without(s), history=None, rounds=None,
            explained=None, contents=None, **fields,
        )  # fmt: skip


class Attack(Protocol):
    """An attack, made with its `Params`. How you write one is told in `attacks.facts.AttackFacts`."""

    def __init__(self, params: object) -> None:
        """Ignore parameters: an attack that has some keeps them in a constructor of its own."""

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        """An array [n] for each score, by name; higher = more likely a member, NaN = nothing can be said.

        Equal knowledge must give equal scores, to the bit: draw from a seeded generator of your own.
        """
        ...


def mean_of_finite(values: Floats) -> Floats:
    """Mean of values [T, ..] over their first axis, without NaN and infinite entries; NaN where none is finite."""
    mean: Floats = np.ma.masked_invalid(values).mean(0).filled(np.nan)
    return mean
