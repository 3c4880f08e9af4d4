"""Utility of models: answers of language models to test records, or accuracy of prompts on test images."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.executor import Executor
from fedaudit.tasks.base import Federation, client_name
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, OWN_TEST
from fedaudit.trainers.base import Method, Model, State, pack, plain, unpack
from fedaudit.trainers.prompt_settings import PromptSettings
from fedaudit.trainers.protocols import Answering, Bench, Naming, Recognising, clients_per_batch

EVALUATION_CHUNK = 20  # test records per job
Utilities = dict[str, dict[str, float]]
Reply = tuple[list[float], list[str]]  # losses and answers


@dataclass(frozen=True)
class Answers:
    """Loss on the test records, and scores of the models' answers to them."""

    references: Sequence[Sequence[str]]  # right answers [record][answer]
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]  # (answers, references): by metric
    novel: Sequence[Sequence[str]] = ()  # right answers to the test records out of distribution
    every: int = 0  # `--evaluate-every`

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> Utilities:
        return self._utilities(executor, start, [], answers=True)

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> Utilities:
        """Utility of the global model ("global"; after the last round also "novel", on test records out of distribution
        if there are any), and the mean over the cohort's own models ("clients"), after every `every`-th round and the
        last. If `every` is 0, the global model is tested after every round, the clients' after the last. Answers take
        longer than losses, and are scored after the last round only."""
        due = last or (bool(self.every) and done % self.every == 0)
        if self.every and not due:
            return {}
        local_models = [(method.model, state) for state in clients.values()] if due else []
        return self._utilities(executor, server, local_models, answers=last)

    def _utilities(
        self, executor: Executor[Bench], server: State, local_models: Sequence[tuple[Model, State]], *, answers: bool
    ) -> Utilities:
        """Utility {model or test set: {metric: number}}: of the global model `server` on each test set ("global" and,
        with `answers`, "novel"), and under "clients" the mean over `local_models`, if any. All jobs run in one map."""
        tests = {"global": self.references} | ({"novel": self.novel} if answers and self.novel else {})
        everybody = range(len(self.references))
        # the longest jobs first
        jobs = [_Question(model, pack(state), everybody, answers) for model, state in local_models]
        for name, references in tests.items():
            jobs += [
                _Question(
                    plain, pack(server), range(len(references))[i : i + EVALUATION_CHUNK], answers, name == "novel"
                )
                for i in range(0, len(references), EVALUATION_CHUNK)
            ]
        replies = iter(list(executor.map(_reply, jobs)))
        clients = [self._utility([next(replies)], self.references) for _ in local_models]
        utilities = {
            name: self._utility([next(replies) for _ in range(0, len(references), EVALUATION_CHUNK)], references)
            for name, references in tests.items()
        }
        mean = {name: float(np.mean([one[name] for one in clients])) for name in (clients[0] if clients else ())}
        return utilities | ({"clients": mean} if local_models else {})

    def _utility(self, replies: Sequence[Reply], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """{"loss": mean loss over a test set, in nats per token}, and the scores of the answers if there are any."""
        losses = [loss for part, _ in replies for loss in part]
        answers = [answer for _, part in replies for answer in part]
        return {"loss": float(np.mean(losses))} | (self.score(answers, references) if answers else {})


@dataclass(frozen=True)
class _Question:
    """A worker's job: the losses of some test records under a model, and its answers to them if `answers`."""

    model: Model
    state: bytes
    records: range  # indices of test records
    answers: bool
    novel: bool = False  # use the test records out of distribution


def _reply(bench: Bench, question: _Question) -> Reply:
    test = bench.novel_test if question.novel else bench.test
    adapter, records = question.model(unpack(question.state)), [test[i] for i in question.records]
    assert isinstance(bench.learner, Answering)
    if question.answers:
        return bench.learner.evaluate(adapter, records)
    return bench.learner.losses(adapter, records), []


@dataclass(frozen=True, eq=False)
class Recognition:
    """Accuracy (percent) of every client's personalised prompt on the test images.

    *local*: on images of the client's own classes; *neighbour*: on those of other clients' classes; *overall*: on all
    (DP-FPL, section 4.1). *own_test*: on a test set in the client's own class proportions, where each image counts by
    its chance to be drawn into it.
    """

    local: NDArray[np.bool_]  # [client, test record]: whether it is of the client's classes
    chances: NDArray[np.float64] | None = None  # [client, test record], of sum 1: see `own_test_chances`
    every: int = 1  # models are tested after every so many rounds, and after the last

    @classmethod
    def of(cls, federation: Federation, settings: PromptSettings) -> Self:
        """The evaluation on a federation's test images, which knows each client's own classes."""
        # with two domains a class of the other style is a neighbour's
        classes = [{(r.domain, name) for r in c.records for name in c.classes} for c in federation.clients]
        local = np.array([[(r.domain, r.group) in names for r in federation.test] for names in classes])
        return cls(local, own_test_chances(federation), settings.evaluate_every)

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> Utilities:
        return self.after(executor, method, start, {k: {} for k in range(len(self.local))}, done=0, last=False)

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> Utilities:
        """Accuracies in percent, {client's name: {split: accuracy}} of each client that took part, and their means
        under "clients"."""
        if not last and done % self.every:
            return {}
        names, packed = list(clients), pack(server)
        (together,) = executor.map(clients_per_batch, [method])
        parts = [names[i : i + together] for i in range(0, len(names), together)]
        jobs = [(method, packed, [pack(clients[k]) for k in part]) for part in parts]
        hits = [row for part in executor.map(_hits, jobs) for row in part]
        by_client = {client_name(k): self._accuracies(k, row) for k, row in zip(names, hits, strict=True)}
        splits = dict.fromkeys(split for accuracies in by_client.values() for split in accuracies)
        mean = {s: float(np.mean([each[s] for each in by_client.values() if s in each])) for s in splits}
        return {"clients": mean} | by_client

    def _accuracies(self, client: int, hit: NDArray[np.bool_]) -> dict[str, float]:
        """Accuracy by split, in percent, from whether each test image is recognised; without splits that are empty."""
        local = np.asarray(self.local)[client]
        parts = {LOCAL: local, NEIGHBOUR: ~local, OVERALL: np.ones_like(local)}
        accuracies: dict[str, float] = {s: 100 * float(hit[part].mean()) for s, part in parts.items() if part.any()}
        if self.chances is not None:
            accuracies[OWN_TEST] = 100 * float(hit @ np.asarray(self.chances)[client])
        return accuracies


def _hits(bench: Bench, job: tuple[Method[Any], bytes, Sequence[bytes]]) -> NDArray[np.bool_]:
    """Whether each of N clients' personalised prompts names the right class of each test image, bool [N, test]. Runs in
    a worker; a job is (method, global state, the clients' own states), packed."""
    method, server, private = job
    shared = unpack(server)
    assert isinstance(bench.learner, Recognising)
    return bench.learner.recognised([method.model(shared | unpack(part)) for part in private], bench.test, method)


@dataclass(frozen=True, eq=False)
class Personalisation(Recognition):
    """`Recognition`, and after the last round accuracy and F1 of personal and global models (DP2FL, Tables 1 and 2).

    Each client's own test set is used: every test image counts by its chance to be drawn into it, or if clients share
    no class, all images of the client's classes count alike. F1 is the macro mean over the client's classes (micro-F1
    of one label per image would be accuracy).
    """

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> Utilities:
        utilities = super().after(executor, method, server, clients, done=done, last=last)
        if not last:
            return utilities
        jobs = [(method, pack(server), pack(clients[k]), self.weights(k)) for k in clients]
        for k, more in zip(clients, executor.map(_personal, jobs), strict=True):
            utilities[client_name(k)] |= more
        return utilities

    def weights(self, client: int) -> NDArray[np.float64]:
        """Weight of each test image in the client's own test set; they sum to 1."""
        weights = np.asarray(self.local if self.chances is None else self.chances, dtype=float)[client]
        return weights / weights.sum()


def _personal(bench: Bench, job: tuple[Method[Any], bytes, bytes, NDArray[np.float64]]) -> dict[str, float]:
    """Accuracy and macro-F1 in percent of a client's model ("personal/accuracy", "personal/f1"), and of the global
    model ("global/...") if clients upload anything. Runs in a worker."""
    from sklearn.metrics import accuracy_score, f1_score

    method, server, private, weights = job
    shared, learner = unpack(server), bench.learner
    assert isinstance(learner, Naming)
    states = {"personal": shared | unpack(private)} | ({"global": shared} if method.sends else {})
    counts = weights > 0
    test = [record for record, some in zip(bench.test, counts, strict=True) if some]
    right, weights = learner.labels(test).numpy(), weights[counts]
    metrics = {}
    for who, named in zip(
        states, learner.predicted([method.model(s) for s in states.values()], test, method), strict=True
    ):
        f1 = f1_score(right, named, labels=np.unique(right), average="macro", sample_weight=weights, zero_division=0)
        metrics[f"{who}/accuracy"] = 100 * float(accuracy_score(right, named, sample_weight=weights))
        metrics[f"{who}/f1"] = 100 * float(f1)
    return metrics


def own_test_chances(federation: Federation) -> NDArray[np.float64] | None:
    """Chance [client, test record] of each test record in a draw with the client's class proportions, evenly within a
    class; each row sums to 1, as every class has a test record (`Labelled`). None if no class is held by two clients: a
    client's own test set is then all test records of its classes."""
    counts_by_client = [
        Counter((r.domain, r.group) for r in (*c.records, *c.reference, *c.background)) for c in federation.clients
    ]
    if all(holders == 1 for holders in Counter(kind for counts in counts_by_client for kind in counts).values()):
        return None
    tested = Counter((r.domain, r.group) for r in federation.test)
    chances = []
    for counts in counts_by_client:
        total = max(1, sum(n for kind, n in counts.items() if kind in tested))
        kinds = ((r.domain, r.group) for r in federation.test)
        chances.append([counts[kind] / tested[kind] / total for kind in kinds])
    return np.array(chances)
