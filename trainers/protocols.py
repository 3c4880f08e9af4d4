"""Interfaces of learners and evaluations, and the data that workers hold.

Training asks a learner for `Learner`. Attacks ask it for `LanguageModel` and `AdaptedModel` if records are texts, for
`Classifier` and `Differentiable` if they are classes. Evaluations ask it for `Answering`, `Recognising` or `Naming`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.trainers.base import Method, Participation, State, Update

if TYPE_CHECKING:
    from fedaudit.backbones.vlm import Encoded
    from fedaudit.machinery.executor import Executor


class Learner(Protocol):
    """Interface of learners: what clients train. Yours is the class `Learner` of a file in `trainers/`.

    You write the common start and the training. A linear head on frozen features is

        class Learner(OneByOne):
            remedy = "lower --rate"

            def initial(self, generator: torch.Generator) -> State:
                return {"head": torch.zeros(self.classes, self.width)}

            def train(self, state, records, generator, model, left_out=()):
                ...  # steps of SGD on the records; those `left_out` weigh 0
                return {"head": head.detach()}

    and the functions that attacks and evaluations need: `labels`, `log_probs` and `untrained` of a `Classifier`, and
    `recognised`. `OneByOne` trains one client after the other, by `train`; write `work` yourself to train several as
    one batched problem. CONTRIBUTING.md, "What clients train", says what else the file has.
    """

    settings: Any  # of the file's class `Settings`

    def clients_per_batch(self, method: Any) -> int:
        """Number of clients in one call of `work` by this method."""

    @property
    def remedy(self) -> str:
        """Advice for the error message when training diverges, as "lower --learning-rate"."""

    def initial(self, generator: torch.Generator) -> State:
        """Tensors that methods can start from (`Method.start` takes those it needs)."""

    def work(
        self, method: Any, received: Sequence[State], own: Sequence[State], clients: Sequence[Participation]
    ) -> list[Update]:
        """The clients' updates by `method`: each from the state it received and its own, in the clients' order."""


class OneByOne:
    """Base class of learners whose clients train one after the other, each by `train`."""

    def clients_per_batch(self, method: Any) -> int:
        return 1

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
    """A learner whose records are texts, as attacks on models use it."""

    data: Mapping[str, Encoded]  # tokens and picture, by record

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """Yield lists of (index in `records`, logits [T, V] of its T tokens): each record once, in any order. Row i
        predicts token i + 1."""

    def words(self, record: str) -> str:
        """The part of a record that enters the loss, as text, without its end token (which enters too)."""

    def tokens(self, record: str) -> list[str]:
        """All tokens of a record, each as text by itself."""


@runtime_checkable
class AdaptedModel(LanguageModel, Protocol):
    """A learner of texts as attacks on uploads use it. States are plain adapters, A and B per layer."""

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Mean text loss per token of each record, in nats."""

    def gradients(self, state: State, records: Sequence[str], *, each: bool) -> Iterator[Tensor]:
        """Gradients of the records' text losses in all P numbers of `state`, laid end to end. Yields once per chunk of
        R records, in order: [R, P] if `each`, else the chunk's sum [1, P]."""

    def inputs(
        self, adapter: State, records: Sequence[str], reduce: Callable[[str, Tensor], Tensor | None]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Yield chunks of records as (indices in `records`, `reduce(layer, inputs [R, T, in])` by layer). Layers for
        which `reduce` returns None are left out."""


@runtime_checkable
class Classifier(Protocol):
    """A learner whose records are classes, as attacks on models use it. `method` is one that it trains."""

    def labels(self, records: Sequence[str]) -> Tensor:
        """Class indices [n] of the records."""

    def log_probs(self, method: Any, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [M, n, C] of the classes by M models, in nats and float64."""

    def check_start(self, embedding: Tensor) -> None:
        """InputError unless `embedding` [.., d] is that of the text encoder's start token."""

    def check_width(self, state: State) -> None:
        """InputError unless the prompts of a state have the width of the text encoder."""

    def untrained(self, records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [n, C] by the public model before any training, in nats and float64."""


@runtime_checkable
class Differentiable(Classifier, Protocol):
    """A learner of classes as attacks on gradients and uploads use it. Both functions yield gradients of each record's
    cross-entropy, [R, ..] for a chunk of R records."""

    def gradients(self, method: Any, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield gradients [R, P] in all P numbers of a model, laid end to end."""

    def sent_gradients(self, method: Any, start: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield gradients [R, ..] in the tensors that a client sends, at the state `start` in which it began the round
        (`trainers.messages.Sending.round_start`)."""


@runtime_checkable
class Answering(Protocol):
    """A learner whose models generate text, as `trainers.evaluations.Answers` uses it."""

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Mean text loss per token of each record, in nats."""

    def evaluate(self, adapter: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        """Two lists: the losses, as `losses` returns them, and the generated answer to each record."""


@runtime_checkable
class Recognising(Protocol):
    """A learner of classes, as `trainers.evaluations.Recognition` uses it."""

    def recognised(self, models: Sequence[State], records: Sequence[str], method: Any) -> NDArray[np.bool_]:
        """Whether each of M models names the right class of each record, bool [M, n]."""


@runtime_checkable
class Naming(Protocol):
    """A learner of classes, as `trainers.evaluations.Personalisation` uses it."""

    def predicted(self, models: Sequence[State], records: Sequence[str], method: Any) -> NDArray[np.int64]:
        """Class indices [M, n] that M models predict."""

    def labels(self, records: Sequence[str]) -> Tensor:
        """Right class indices [n]."""


class Evaluation(Protocol):
    """Measures how good models are, as numbers by model and metric (`trainers.evaluations`)."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        """Utility of the public start `start`: by whose model it is ("global", "clients", ...), then by metric."""

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> dict[str, dict[str, float]]:
        """Utility after `done` rounds, as in `before`: of the new broadcast `server`, and of the private states that
        the cohort's clients hold; {} where none is due. `last`: this was the last round."""


@dataclass(frozen=True)
class AttackBench:
    """Data of the workers of an attack: a learner, and the ids of each client's candidates, members or not.

    It has no field for who trained on what: shadow models draw their members from the candidates.
    """

    learner: Learner
    candidates: Sequence[Sequence[str]]  # by client
    canaries: frozenset[str] = frozenset()  # candidates that are in the client's list whether members or not


@dataclass(frozen=True)
class Bench:
    """Data of the workers of a training: a learner, and the ids of each client's records."""

    learner: Learner  # evaluations and attacks use it too
    training: Sequence[Sequence[str]]  # by client
    test: Sequence[str]
    novel_test: Sequence[str] = ()  # out of distribution
    candidates: Sequence[Sequence[str]] = ()  # by client, members or not
    canaries: frozenset[str] = frozenset()  # candidates that are in `training` whether members or not
    left_out: frozenset[str] = frozenset()  # training records of weight 0

    @property
    def attack_bench(self) -> AttackBench:
        """The part of this data that does not tell who trains on what."""
        return AttackBench(self.learner, self.candidates, self.canaries)


def clients_per_batch(bench: Bench, method: Method[Any]) -> int:
    """Number of clients that a worker trains, and of models that it tests, at a time. Runs in a worker."""
    return bench.learner.clients_per_batch(method)
