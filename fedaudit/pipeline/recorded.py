"""Checks of somebody else's run that need the model: whether stated losses are those of the models, and whether each
client's message fits its own members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_1samp

from fedaudit.external.explain import words
from fedaudit.external.recording import Remark
from fedaudit.external.run import OwnRun
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Workshop
from trainers.base import pack, unpack
from trainers.protocols import AdaptedModel, Bench
from trainers.transcript import Transcript

FAR = 0.02  # relative: other precisions and other means move a loss less
MODELS = 5  # global models whose losses are recomputed, spread over the rounds
MEMBERS = 12  # of each client that are asked for
OTHERS = 4  # messages of the same round that each client's members are compared on
ROUNDS = 20  # whose messages are compared, spread over the run
CHANCE = 0.01  # that any message of a right run is said to fit other members


@dataclass(frozen=True)
class _Job:
    """The losses of some records under one adapter."""

    adapter: bytes
    records: Sequence[str]


def _losses(bench: Bench, job: _Job) -> tuple[list[float], list[int]]:
    """Two lists: the loss per token of each record's text, in nats, and the number of these tokens."""
    assert isinstance(bench.learner, AdaptedModel)
    encoded = [bench.learner.data[record] for record in job.records]
    return bench.learner.losses(unpack(job.adapter), job.records), [len(e.ids) - e.prompt for e in encoded]


def model_remarks(cell: Cell, workshop: Workshop) -> list[Remark]:
    """Return the remarks on how a cell's run was recorded that only its models allow; [] without any."""
    own = cell.plan.own
    assert own is not None
    transcript = transcript_of(cell)
    return [*_stated_losses(own, transcript, workshop), *_own_members(own, transcript, workshop)]


def _stated_losses(own: OwnRun, transcript: Transcript, workshop: Workshop) -> Iterator[Remark]:
    """Compare losses of global models, as rounds.json states them, with those on test.jsonl: their mean over records
    or over tokens, whichever is nearer."""
    utilities = {0: transcript.initial["utility"]}
    utilities |= {r + 1: transcript.round(r)["utility"] for r in range(own.rounds)}
    stated = {r: u["global"]["loss"] for r, u in utilities.items() if u.get("global", {}).get("loss") is not None}
    test = [record.id for record in workshop.federation.test]
    if not stated or not test:
        return
    some = spread(list(stated), MODELS)
    jobs = (_Job(pack(transcript.model(transcript.broadcast(r))), test) for r in some)
    means = {
        r: (float(np.mean(losses)), float(np.average(losses, weights=tokens)))
        for r, (losses, tokens) in zip(some, workshop.executor.map(_losses, jobs), strict=True)
    }
    measured = {r: min(means[r], key=lambda mean: abs(mean - stated[r])) for r in some}
    off = {r: abs(measured[r] / stated[r] - 1) for r in some if stated[r]}
    wrong = [r for r in off if off[r] > FAR]
    if wrong:
        r = max(wrong, key=off.__getitem__)
        yield Remark(
            "losses",
            f"The loss that is stated for the global model before round {own.numbers[r]} is {stated[r]:.3g}, and on "
            f"test.jsonl it is {measured[r]:.3g}: perhaps alpha, the backbone, the prompt or the test records are not "
            "those of the training.",
            off[r],
        )


def _own_members(own: OwnRun, transcript: Transcript, workshop: Workshop) -> Iterator[Remark]:
    """Say which messages fit their own client's members worse than other messages of the round do."""
    rounds = spread([r for r in range(own.rounds) if len(transcript.cohort(r)) > 1], ROUNDS)
    p_values = {(r, k): p for r in rounds for k, p in _excess_losses(r, transcript, workshop).items()}
    odd = [place for place, p in p_values.items() if p * len(p_values) < CHANCE]
    if odd:
        first = min(r for r, _ in odd)
        clients = " and ".join(str(k) for r, k in odd if r == first)
        yield Remark(
            "members",
            f"In {words(sorted({own.numbers[r] for r, _ in odd}))} messages fit other clients' members better than "
            f"their own (in round {own.numbers[first]} those of clients {clients}): were clients' files, or their "
            "lists of members, exchanged?",
        )


def _excess_losses(r: int, transcript: Transcript, workshop: Workshop) -> dict[int, float]:
    """By client of round r the p-value, one-sided, that its members have a larger loss under its own message than under
    other messages of the round. Clients with a single member are left out."""
    cohort, before = transcript.cohort(r), transcript.broadcast(r)
    clients = workshop.federation.clients
    members = {k: [record.id for record in clients[k].training_records][:MEMBERS] for k in cohort}
    others = {k: [cohort[(i + step) % len(cohort)] for step in range(1, 1 + min(OTHERS, len(cohort) - 1))]
              for i, k in enumerate(cohort)}  # fmt: skip
    records_of_message = {j: [m for k in cohort if j == k or j in others[k] for m in members[k]] for j in cohort}
    jobs = (
        _Job(pack(transcript.model(before | transcript.upload(r, j))), records)
        for j, records in records_of_message.items()
    )
    answers = zip(records_of_message.items(), workshop.executor.map(_losses, jobs), strict=True)
    losses = {j: dict(zip(records, per_record, strict=True)) for (j, records), (per_record, _) in answers}
    excess = {k: [losses[k][m] - float(np.mean([losses[j][m] for j in others[k]])) for m in members[k]] for k in cohort}
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
