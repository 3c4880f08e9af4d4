"""What learners, evaluations and attacks ask of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.base import Method, Participation, State, Update

if TYPE_CHECKING:
    from fedaudit.backbones.vlm import Encoded
    from fedaudit.machinery.executor import Executor


class Learner(Protocol):
    """What a training asks of a learner. What is asked of it beside goes by its records: by attacks a `Classifier` or a
    `LanguageModel`, by evaluations see `trainers.evaluations`."""

    @property
    def clients_per_batch(self) -> int:
        """Clients of one job."""

    @property
    def remedy(self) -> str:
        """What to change where a training diverges."""

    def initial(self, generator: torch.Generator) -> State:
        """What methods start from."""

    def work(
        self, method: Any, received: Sequence[State], own: Sequence[State], clients: Sequence[Participation]
    ) -> list[Update]:
        """The updates of some clients by one of its methods."""


class OneByOne:
    """Learners whose clients train one after the other."""

    clients_per_batch = 1  # clients of one job

    def work(
        self,
        method: Method[Participation],
        received: Sequence[State],
        own: Sequence[State],
        clients: Sequence[Participation],
    ) -> list[Update]:
        return [method.update(*client) for client in zip(received, own, clients, strict=True)]


@runtime_checkable
class LanguageModel(Protocol):
    """What is asked of a learner whose records are texts."""

    data: Mapping[str, Encoded]  # of each record

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """(place in `records`, logits [T, V]) of some records at a time."""

    def words(self, record: str) -> str:
        """The part of a record that is learnt, as text."""

    def tokens(self, record: str) -> list[str]:
        """The tokens of a record, each as text."""


@runtime_checkable
class AdaptedModel(LanguageModel, Protocol):
    """What attacks on messages ask of a learner of texts beside; states are plain adapters, A and B per layer."""

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Text loss (nats per token) of each record."""

    def gradients(self, state: State, records: Sequence[str], *, each: bool) -> Iterator[Tensor]:
        """Of each record's text loss, [R, P] of some records at a time: all tensors of `state` laid end to end."""

    def inputs(
        self, adapter: State, records: Sequence[str], reduce: Callable[[str, Tensor], Tensor | None]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """(places in `records`, `reduce`(layer, inputs [R, T, in]) by layer) of some records at a time; None is left
        out."""


@runtime_checkable
class Classifier(Protocol):
    """What is asked of a learner whose records are classes; `method` is one of its own."""

    def labels(self, records: Sequence[str]) -> Tensor:
        """Places [n] of records among the C classes."""

    def log_probs(self, method: Any, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [M, n, C] of the classes, in nats and float64, by M models."""

    def untrained(self, records: Sequence[str]) -> NDArray[np.float64]:
        """The same [n, C] of what everybody can use without training."""


@runtime_checkable
class Differentiable(Classifier, Protocol):
    """What attacks on gradients and messages ask of a learner of classes beside. Gradients are of each record's
    cross-entropy, [R, ..] of some records at a time."""

    def gradients(self, method: Any, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """In all numbers of a model, laid end to end."""

    def sent_gradients(self, method: Any, start: State, records: Sequence[str]) -> Iterator[Tensor]:
        """In what a client sends, where it began a round (`trainers.messages.Sending.round_start`)."""


@runtime_checkable
class Answering(Protocol):
    """A learner whose models answer."""

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Of each record, in nats per token."""

    def evaluate(self, adapter: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        """The same, and the answer to each record."""


@runtime_checkable
class Recognising(Protocol):
    """A learner whose models recognise classes; `method` is one of its own."""

    def recognised(self, models: Sequence[State], records: Sequence[str], method: Any) -> NDArray[np.bool_]:
        """Which records [M, n] M models recognise."""


@runtime_checkable
class Naming(Protocol):
    """A learner whose models name classes; `method` is one of its own."""

    def predicted(self, models: Sequence[State], records: Sequence[str], method: Any) -> NDArray[np.int64]:
        """Places [M, n] of the classes that M models name."""

    def labels(self, records: Sequence[str]) -> Tensor:
        """Places [n] of the right ones."""


class Evaluation(Protocol):
    """How good models are: see `trainers.evaluations`. Utilities are numbers by model and metric."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        """Of the public start."""

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> dict[str, dict[str, float]]:
        """After a round: of the server's new state and of what the cohort's clients hold."""


@dataclass(frozen=True)
class AttackBench:
    """What the workers of an attack hold: a learner with its data, and each client's candidates, members or not (ids).

    Nothing here can say who trained on what: shadow models draw their members from the candidates.
    """

    learner: Learner
    candidates: Sequence[Sequence[str]]
    canaries: frozenset[str] = frozenset()  # candidates that stay in a client's list however their coin falls


@dataclass(frozen=True)
class Bench:
    """What every worker of a training holds: a learner with its data, and which records (ids) each client's list holds.

    Its learner is what evaluations and attacks ask, too.
    """

    learner: Learner
    training: Sequence[Sequence[str]]
    test: Sequence[str]
    novel_test: Sequence[str] = ()
    candidates: Sequence[Sequence[str]] = ()  # of each client, members or not
    canaries: frozenset[str] = frozenset()  # those of the candidates that are in the lists whatever their coin said
    left_out: frozenset[str] = frozenset()  # those of the lists that weigh 0

    @property
    def of_attackers(self) -> AttackBench:
        """The part of it that does not know who trains on what."""
        return AttackBench(self.learner, self.candidates, self.canaries)
