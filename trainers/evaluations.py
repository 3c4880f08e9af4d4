"""How good the models of a run are: answers of language models to test records, or the recognition of classes with
prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.executor import Executor
from fedaudit.tasks.base import client_name
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from trainers.base import Method, Model, State, pack, plain, unpack
from trainers.protocols import Answering, Bench, Naming, Recognising

EVALUATION_CHUNK = 20  # test records per job
Utilities = dict[str, dict[str, float]]
Reply = tuple[list[float], list[str]]  # losses and answers


@dataclass(frozen=True)
class Answers:
    """Right answers [record][answer] to the test records, and how answers are scored."""

    references: Sequence[Sequence[str]]
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]
    novel: Sequence[Sequence[str]] = ()  # of the test records out of distribution

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> Utilities:
        return self._judged(executor, start, [], answers=True)

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> Utilities:
        """Of the global model ("global", at the end also "novel") and the mean over the cohort's own models
        ("clients").

        They answer after the last round only, which takes longer than their loss: that is what every round is judged
        by.
        """
        own = [(method.model, state) for state in clients.values()]
        return self._judged(executor, server, own, answers=last)

    def _judged(
        self, executor: Executor[Bench], server: State, own: Sequence[tuple[Model, State]], *, answers: bool
    ) -> Utilities:
        """Utility of a global model by test set, and the mean over others; all are asked together."""
        tests = {"global": self.references} | ({"novel": self.novel} if answers and self.novel else {})
        everybody = range(len(self.references))
        jobs = [_Question(model, pack(state), everybody, answers) for model, state in own]  # the longest first
        for name, references in tests.items():
            jobs += [
                _Question(
                    plain, pack(server), range(len(references))[i : i + EVALUATION_CHUNK], answers, name == "novel"
                )
                for i in range(0, len(references), EVALUATION_CHUNK)
            ]
        replies = iter(list(executor.map(_reply, jobs)))
        clients = [self._utility([next(replies)], self.references) for _ in own]
        found = {
            name: self._utility([next(replies) for _ in range(0, len(references), EVALUATION_CHUNK)], references)
            for name, references in tests.items()
        }
        mean = {name: float(np.mean([one[name] for one in clients])) for name in (clients[0] if clients else ())}
        return found | ({"clients": mean} if own else {})

    def _utility(self, replies: Sequence[Reply], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """Loss, and where there are answers how they score, over all records of a test set."""
        losses = [loss for part, _ in replies for loss in part]
        answers = [answer for _, part in replies for answer in part]
        return {"loss": float(np.mean(losses))} | (self.score(answers, references) if answers else {})


@dataclass(frozen=True)
class _Question:
    """What a worker asks a model: the loss of some test records, and their answers."""

    model: Model
    state: bytes
    records: range  # places among the test records
    answers: bool
    novel: bool = False


def _reply(bench: Bench, question: _Question) -> Reply:
    test = bench.novel_test if question.novel else bench.test
    adapter, records = question.model(unpack(question.state)), [test[i] for i in question.records]
    assert isinstance(bench.learner, Answering)
    if question.answers:
        return bench.learner.evaluate(adapter, records)
    return bench.learner.losses(adapter, records), []


@dataclass(frozen=True)
class Recognition:
    """Accuracy (percent) of every client's personalised prompt on the test images, in `clients_per_batch` clients at a
    time.

    *local* = images of the client's own classes, *neighbour* = of the classes that other clients own, *overall* = all
    (DP-FPL, section 4.1); *own_test* = those that a test set in the client's own class proportions would hold, each
    counted by its chance to be drawn into it.
    """

    local: Sequence[Sequence[bool]]  # [client][test record]: of the client's own classes
    clients_per_batch: int
    chances: Sequence[
        Sequence[float]
    ] = ()  # [client][test record], of sum 1: in the client's own test set; none where no class is shared

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> Utilities:
        return self.after(executor, method, start, {k: {} for k in range(len(self.local))}, last=False)

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> Utilities:
        """Of each client of the cohort by its name, and the mean over them ("clients")."""
        names, packed = list(clients), pack(server)
        parts = [names[i : i + self.clients_per_batch] for i in range(0, len(names), self.clients_per_batch)]
        jobs = [(method, packed, [pack(clients[k]) for k in part]) for part in parts]
        hits = [row for part in executor.map(_hits, jobs) for row in part]
        found = {client_name(k): self._accuracies(k, row) for k, row in zip(names, hits, strict=True)}
        splits = dict.fromkeys(split for one in found.values() for split in one)
        mean = {s: float(np.mean([one[s] for one in found.values() if s in one])) for s in splits}
        return {"clients": mean} | found

    def _accuracies(self, client: int, hit: NDArray[np.bool_]) -> dict[str, float]:
        own = np.asarray(self.local[client])
        parts = {LOCAL: own, NEIGHBOUR: ~own, OVERALL: np.ones_like(own)}
        found: dict[str, float] = {name: 100 * float(hit[part].mean()) for name, part in parts.items() if part.any()}
        return found | ({OWN_TEST: 100 * float(hit @ np.asarray(self.chances[client]))} if len(self.chances) else {})


def _hits(bench: Bench, job: tuple[Method[Any], bytes, Sequence[bytes]]) -> NDArray[np.bool_]:
    """Which test images the personalised prompts of some clients recognise, bool [N, test]."""
    method, server, own = job
    shared = unpack(server)
    assert isinstance(bench.learner, Recognising)
    return bench.learner.recognised([method.model(shared | unpack(part)) for part in own], bench.test, method)


@dataclass(frozen=True)
class Personalisation(Recognition):
    """The same, and after the last round how good personal models are beside the global one (DP2FL, Tables 1 and 2).

    Both on each client's own test set: every test image counts by its chance to be drawn into it; where no class is
    shared, the images of the client's classes count alike. F1 is macro, over the classes that a client holds: micro-F1
    of one label per image is accuracy.
    """

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> Utilities:
        found = super().after(executor, method, server, clients, last=last)
        if not last:
            return found
        jobs = [(method, pack(server), pack(clients[k]), self.weights(k)) for k in clients]
        for k, more in zip(clients, executor.map(_personal, jobs), strict=True):
            found[client_name(k)] |= more
        return found

    def weights(self, client: int) -> NDArray[np.float64]:
        """What each test image counts for in the client's own test set, of sum 1."""
        weights = np.asarray(self.chances[client] if len(self.chances) else self.local[client], dtype=float)
        return weights / weights.sum()


def _personal(bench: Bench, job: tuple[Method[Any], bytes, bytes, NDArray[np.float64]]) -> dict[str, float]:
    """Accuracy and macro-F1 (percent) of a client's model, and of the global one where clients send something."""
    from sklearn.metrics import accuracy_score, f1_score

    method, server, own, weights = job
    shared, learner = unpack(server), bench.learner
    assert isinstance(learner, Naming)
    states = {"personal": shared | unpack(own)} | ({"global": shared} if method.sends else {})
    counts = weights > 0
    test = [record for record, some in zip(bench.test, counts, strict=True) if some]
    right, weights = learner.labels(test).numpy(), weights[counts]
    found = {}
    for who, named in zip(
        states, learner.predicted([method.model(s) for s in states.values()], test, method), strict=True
    ):
        f1 = f1_score(right, named, labels=np.unique(right), average="macro", sample_weight=weights, zero_division=0)
        found[f"{who}/accuracy"] = 100 * float(accuracy_score(right, named, sample_weight=weights))
        found[f"{who}/f1"] = 100 * float(f1)
    return found
