"""How good the models of a run are: answers of language models to test records, or the recognition of classes with prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaudit.machinery.executor import Executor
from fedaudit.tasks.base import client_name
from trainers.base import Bench, Method, State, pack, unpack

EVALUATION_CHUNK = 20  # test records per job
Utilities = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Answers:
    """Right answers [record][answer] to the test records, and how answers are scored."""

    references: Sequence[Sequence[str]]
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]
    novel: Sequence[Sequence[str]] = ()  # of the test records out of distribution

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> Utilities:
        return self._global(executor, start, novel=True)

    def after(
        self, executor: Executor[Bench], method: Method[Any], server: State, clients: Mapping[int, State], *, last: bool
    ) -> Utilities:
        """Of the global model ("global", at the end also "novel") and the mean over the cohort's own models ("clients").

        Those answer after the last round only, which takes as long as their loss: it is what every round is judged by.
        """
        ask = _own_utility if last else _own_loss
        jobs = [(method, pack(state), self) for state in clients.values()]
        own = list(executor.map(ask, jobs))
        utility = self._global(executor, server, novel=last)
        utility["clients"] = {name: float(np.mean([one[name] for one in own])) for name in own[0]}
        return utility

    def _global(self, executor: Executor[Bench], state: State, *, novel: bool) -> Utilities:
        """Utility of a global model by test set: "global", and "novel" if that is asked for and there is such a set."""
        sets = {"global": self.references} | ({"novel": self.novel} if novel and self.novel else {})
        packed = pack(state)
        jobs = [
            (packed, i, name == "novel")
            for name, references in sets.items()
            for i in range(0, len(references), EVALUATION_CHUNK)
        ]
        parts = iter(list(executor.map(_answers, jobs)))
        found = {}
        for name, references in sets.items():
            mine = [next(parts) for _ in range(0, len(references), EVALUATION_CHUNK)]
            losses = [loss for part, _ in mine for loss in part]
            answers = [answer for _, part in mine for answer in part]
            found[name] = {"loss": float(np.mean(losses))} | self.score(answers, references)
        return found


def _answers(bench: Bench, job: tuple[bytes, int, bool]) -> tuple[list[float], list[str]]:
    state, start, novel = job
    records = bench.novel_test if novel else bench.test
    found: tuple[list[float], list[str]] = bench.learner.evaluate(
        unpack(state), records[start : start + EVALUATION_CHUNK]
    )
    return found


def _own_loss(bench: Bench, job: tuple[Method[Any], bytes, Answers]) -> dict[str, float]:
    method, private, _ = job
    return {"loss": float(np.mean(bench.learner.losses(method.model(unpack(private)), bench.test)))}


def _own_utility(bench: Bench, job: tuple[Method[Any], bytes, Answers]) -> dict[str, float]:
    method, private, exam = job
    losses, answers = bench.learner.evaluate(method.model(unpack(private)), bench.test)
    return {"loss": float(np.mean(losses))} | exam.score(answers, exam.references)


@dataclass(frozen=True)
class Recognition:
    """Accuracy (percent) of every client's personalised prompt on the test images, in `crowd` clients at a time.

    *local* = images of the client's own classes, *neighbour* = of the classes that other clients own, *overall* = all (DP-FPL, section 4.1);
    *own_test* = those that a test set in the client's own class proportions would hold, each counted by its chance to be drawn into it.
    """

    local: Sequence[Sequence[bool]]  # [client][test record]: of the client's own classes
    crowd: int
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
        parts = [names[i : i + self.crowd] for i in range(0, len(names), self.crowd)]
        jobs = [(method, packed, [pack(clients[k]) for k in part]) for part in parts]
        hits = [row for part in executor.map(_hits, jobs) for row in part]
        found = {client_name(k): self._accuracies(k, row) for k, row in zip(names, hits, strict=True)}
        splits = dict.fromkeys(split for one in found.values() for split in one)
        mean = {s: float(np.mean([one[s] for one in found.values() if s in one])) for s in splits}
        return {"clients": mean} | found

    def _accuracies(self, client: int, hit: Any) -> dict[str, float]:
        own = np.asarray(self.local[client])
        parts = {"local": own, "neighbour": ~own, "overall": np.ones_like(own)}
        found = {name: 100 * float(hit[part].mean()) for name, part in parts.items() if part.any()}
        return found | ({"own_test": 100 * float(hit @ np.asarray(self.chances[client]))} if len(self.chances) else {})


def _hits(bench: Bench, job: tuple[Method[Any], bytes, Sequence[bytes]]) -> Any:
    """Which test images the personalised prompts of some clients recognise, bool [N, test]."""
    method, server, own = job
    shared = unpack(server)
    return bench.learner.recognised([method.model(shared | unpack(part)) for part in own], bench.test, method)
