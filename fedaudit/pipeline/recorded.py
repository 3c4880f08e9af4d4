"""Checks of somebody else's run that need the model: whether stated losses are those of the models, and whether each
client's message fits its own members."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from fedaudit.external.explain import words
from fedaudit.external.recording import Remark
from fedaudit.external.run import OwnRun
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Workshop
from fedaudit.trainers.base import Method, State, pack, unpack
from fedaudit.trainers.protocols import AdaptedModel, Bench, Classifier
from fedaudit.trainers.transcript import Transcript

FAR = 0.02  # relative: other precisions and other means move a loss less
MODELS = 5  # global models whose losses are recomputed, spread over the rounds
MEMBERS = 12  # of each client that are asked for
OTHERS = 4  # messages of the same round that each client's members are compared on
ROUNDS = 20  # whose messages are compared, spread over the run
CHANCE = 0.01  # that any message of a right run is said to fit other members


@dataclass(frozen=True)
class _Job:
    """The losses of some records under one model."""

    method: Method[Any] | None  # that prompts are read by; None for adapters
    model: bytes
    records: Sequence[str]


@dataclass(frozen=True)
class _Losses:
    """How one model fits n records."""

    losses: Sequence[float]  # [n], in nats per token of the text, or of the class
    tokens: Sequence[int]  # [n], of the text; 1 for a class
    right: Sequence[bool] = ()  # [n], whether the class is named; () for texts

    @property
    def means(self) -> dict[str, list[float]]:
        """By metric its values on these records, more than one where several are usual: a loss is a mean over records
        or over tokens, an accuracy a share or in percent."""
        loss = [float(np.mean(self.losses)), float(np.average(self.losses, weights=self.tokens))]
        share = float(np.mean(self.right)) if len(self.right) else math.nan
        return {"loss": loss} | ({"accuracy": [100 * share, share]} if len(self.right) else {})


def _losses(bench: Bench, job: _Job) -> _Losses:
    learner, model = bench.learner, unpack(job.model)
    if isinstance(learner, AdaptedModel):
        encoded = [learner.data[record] for record in job.records]
        return _Losses(learner.losses(model, job.records), [len(e.ids) - e.prompt for e in encoded])
    assert isinstance(learner, Classifier)
    (log_probs,), labels = learner.log_probs(job.method, [model], job.records), learner.labels(job.records).numpy()
    losses = -log_probs[np.arange(len(labels)), labels]
    return _Losses(losses.tolist(), [1] * len(labels), (log_probs.argmax(-1) == labels).tolist())


def model_remarks(cell: Cell, workshop: Workshop) -> list[Remark]:
    """Return the remarks on how a cell's run was recorded that only its models allow; [] without any."""
    assert cell.plan.own is not None
    method = method_of(cell) if cell.variant else None
    checked = RecordedRun(cell.plan.own, method, transcript_of(cell), workshop)
    return [*checked.stated_numbers(), *checked.own_members()]


@dataclass(frozen=True)
class RecordedRun:
    """An external run, with the workers that hold its frozen model."""

    external: OwnRun
    method: Method[Any] | None  # that prompts are read by; None for adapters
    transcript: Transcript
    workshop: Workshop

    def _fits(self, models: Iterable[tuple[State, Sequence[str]]]) -> Iterator[_Losses]:
        """How each of several (model, records) fits its records, in order."""
        jobs = (_Job(self.method, pack(model), records) for model, records in models)
        return self.workshop.executor.map(_losses, jobs)

    def stated_numbers(self) -> Iterator[Remark]:
        """Compare the loss and accuracy of global models, as rounds.json states them, with those on test.jsonl."""
        utilities = {0: self.transcript.initial["utility"]}
        utilities |= {r + 1: self.transcript.round(r)["utility"] for r in range(self.external.rounds)}
        of_global = {r: u.get("global", {}) for r, u in utilities.items()}
        test = [record.id for record in self.workshop.federation.test]
        for metric in ("loss", "accuracy"):
            stated = {r: u[metric] for r, u in of_global.items() if u.get(metric) is not None}
            if not stated or not test:
                continue
            some = spread(list(stated), MODELS)
            public = self.transcript.broadcast(0)
            models = ((self.transcript.model(public | self.transcript.broadcast(r)), test) for r in some)
            fits = dict(zip(some, self._fits(models), strict=True))
            measured = {
                r: min(fits[r].means.get(metric, [stated[r]]), key=lambda mean: abs(mean - stated[r])) for r in some
            }
            off = {r: abs(measured[r] / stated[r] - 1) for r in some if stated[r]}
            wrong = [r for r in off if off[r] > FAR]
            if wrong:
                r = max(wrong, key=off.__getitem__)
                which = "alpha, the backbone, the prompt" if self.method is None else "the backbone, the classes"
                yield Remark(
                    "losses",
                    f"The {metric} that is stated for the global model before round {self.external.numbers[r]} is "
                    f"{stated[r]:.3g}, and on test.jsonl it is {measured[r]:.3g}: perhaps {which} or the test records "
                    "are not those of the training.",
                    off[r],
                )

    def own_members(self) -> Iterator[Remark]:
        """Say which messages fit their own client's members worse than other messages of the round do."""
        senders = {r: [k for k in self.transcript.cohort(r) if self._sent(r, k)] for r in range(self.external.rounds)}
        rounds = spread([r for r, sending in senders.items() if len(sending) > 1], ROUNDS)
        p_values = {(r, k): p for r in rounds for k, p in self._excess_losses(r, senders[r]).items()}
        odd = [place for place, p in p_values.items() if p * len(p_values) < CHANCE]
        if odd:
            first, numbers = min(r for r, _ in odd), self.external.numbers
            clients = " and ".join(str(k) for r, k in odd if r == first)
            yield Remark(
                "members",
                f"In {words(sorted({numbers[r] for r, _ in odd}))} messages fit other clients' members better than "
                f"their own (in round {numbers[first]} those of clients {clients}): were clients' files, or their "
                "lists of members, exchanged?",
            )

    def _sent(self, r: int, client: int) -> bool:
        return client in self.external.uploads[r] and bool(self.external.uploads[r][client].shapes)

    def _message_model(self, r: int, client: int) -> State:
        """The model that the global one of round r becomes with a client's message."""
        before = self.transcript.broadcast(0) | self.transcript.broadcast(r)
        return self.transcript.model(
            before | self.external.trained.sent_state(before, self.transcript.upload(r, client))
        )

    def _excess_losses(self, r: int, cohort: Sequence[int]) -> dict[int, float]:
        """By client of those that sent something in round r the p-value, one-sided, that its members have a larger loss
        under its own message than under other messages of the round. Clients with a single member are left out."""
        clients = self.workshop.federation.clients
        members = {k: [record.id for record in clients[k].training_records][:MEMBERS] for k in cohort}
        others = {
            k: [cohort[(i + step) % len(cohort)] for step in range(1, 1 + min(OTHERS, len(cohort) - 1))]
            for i, k in enumerate(cohort)
        }
        records_of_message = {j: [m for k in cohort if j == k or j in others[k] for m in members[k]] for j in cohort}
        models = ((self._message_model(r, j), records) for j, records in records_of_message.items())
        answers = zip(records_of_message.items(), self._fits(models), strict=True)
        losses = {j: dict(zip(records, fit.losses, strict=True)) for (j, records), fit in answers}
        excess = {
            k: [losses[k][m] - float(np.mean([losses[j][m] for j in others[k]])) for m in members[k]] for k in cohort
        }
        return {k: _p_value(differences) for k, differences in excess.items() if len(differences) > 1}


def _p_value(differences: Sequence[float]) -> float:
    """The p-value that the mean is above zero; 1 if all differences are equal."""
    if np.ptp(differences) == 0:
        return 1.0
    return float(ttest_1samp(differences, 0.0, alternative="greater").pvalue)


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of `values`, evenly spread, with the first and the last."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[i] for i in dict.fromkeys(places.tolist())]
