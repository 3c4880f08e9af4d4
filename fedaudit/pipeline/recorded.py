"""Checks of somebody else's run that need the model: whether stated losses are those of the models, whether each
client's message fits its own members, and whether adapters fit at the scale that is stated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedaudit.external.adapters import Adapters
from fedaudit.external.explain import does_something
from fedaudit.external.recording import NOISE, Remark
from fedaudit.external.run import OwnRun
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Workshop
from fedaudit.trainers.base import Method, State, pack, unpack
from fedaudit.trainers.protocols import AdaptedModel, Bench, Classifier
from fedaudit.trainers.transcript import Transcript

if TYPE_CHECKING:
    from fedaudit.tasks.base import Client

FAR = 0.02  # relative: other precisions and other means move a loss less
MODELS = 5  # global models whose losses are recomputed, spread over the rounds
MEMBERS = 12  # of each client that are asked for
ROUNDS = 20  # whose messages are compared, spread over the run
TOGETHER = 10  # clients of a round whose messages are compared
FEWEST, LEAST = 4, 8  # clients of a round, and messages in all, below which nothing is compared
HALVED = 0.04  # share of the loss that goes at half the scale, above which the stated scale is doubted
LEARNT = 0.08  # share of the untrained model's loss that must go at half the scale then
CHANCE = 0.001  # that messages of a right run are said to fit other members
SIMULATED = 1999


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
    checked = RecordedRun.of(cell, workshop)
    return [*checked.stated_numbers(), *checked.own_members(), *checked.half_the_scale()]


@dataclass(frozen=True)
class RecordedRun:
    """An external run, with the workers that hold its frozen model."""

    external: OwnRun
    method: Method[Any] | None  # that prompts are read by; None for adapters
    transcript: Transcript
    workshop: Workshop

    @classmethod
    def of(cls, cell: Cell, workshop: Workshop) -> RecordedRun:
        """The run of a cell."""
        assert cell.plan.own is not None
        return cls(cell.plan.own, method_of(cell) if cell.variant else None, transcript_of(cell), workshop)

    def _fits(self, models: Iterable[tuple[State, Sequence[str]]]) -> Iterator[_Losses]:
        """How each of several (model, records) fits its records, in order."""
        jobs = (_Job(self.method, pack(model), records) for model, records in models)
        return self.workshop.executor.map(_losses, jobs)

    def stated_numbers(self) -> Iterator[Remark]:
        """Compare the losses and accuracies of global models, as rounds.json states them, with those on test.jsonl or
        on the members that it names."""
        test = [record.id for record in self.workshop.federation.test]
        for metric in ("loss", "accuracy"):
            of_models = {r: note.get("utility", {}).get("global", {}).get(metric) for r, note in self._notes.items()}
            stated = {r: value for r, value in of_models.items() if value is not None}
            yield from self._off(metric, "test.jsonl", stated, dict.fromkeys(stated, test))
        members = {r: losses for r, losses in self._members_losses.items() if losses}
        means = {r: float(np.mean([*losses.values()])) for r, losses in members.items()}
        yield from self._off("loss", "the same members", means, {r: [*losses] for r, losses in members.items()})

    @property
    def _notes(self) -> dict[int, Mapping[str, Any]]:
        """The notes of rounds.json on global models: of 0 before training, of r + 1 after round r."""
        named = {r + 1: self.external.notes.get(str(r), {}) for r in range(self.external.rounds)}
        return {0: self.external.notes.get("initial", {})} | named

    @property
    def _members_losses(self) -> dict[int, dict[str, float]]:
        """By global model its stated losses on members, by id, without members that are left out as copies."""
        present = {entry.record.id for entry in self.external.lists["members"]}
        stated = {r: note.get("members", {}) for r, note in self._notes.items()}
        return {r: {k: loss for k, loss in losses.items() if k in present} for r, losses in stated.items()}

    def _off(
        self, metric: str, where: str, stated: Mapping[int, float], records: Mapping[int, Sequence[str]]
    ) -> Iterator[Remark]:
        """The doubt that a metric, as it is `stated` by global model, is not that of the `records`."""
        some = [r for r in spread(list(stated), MODELS) if records[r] and stated[r]]
        means = [fit.means.get(metric) for fit in self._fits((self._global(r), records[r]) for r in some)]
        if not means or means[0] is None:
            return
        by_mean = [dict(zip(some, values, strict=True)) for values in zip(*means, strict=True)]
        # the mean that fits the first model, of which no scale is asked if it is the untrained one
        measured = min(by_mean, key=lambda values: abs(values[some[0]] / stated[some[0]] - 1))
        off = {r: abs(measured[r] / stated[r] - 1) for r in some}
        r = max(off, key=off.__getitem__)
        if off[r] > FAR:
            which = "alpha, the backbone, the prompt" if self.method is None else "the backbone, the classes"
            yield Remark(
                "losses",
                f"The {metric} that is stated for the global model before round {self.external.numbers[r]} is "
                f"{stated[r]:.3g}, and on {where} it is {measured[r]:.3g}: perhaps {which} or the records are not "
                "those of the training.",
                off[r],
            )

    def _global(self, r: int) -> State:
        """The global model before round r."""
        return self.transcript.model(self.transcript.broadcast(0) | self.transcript.broadcast(r))

    def own_members(self) -> Iterator[Remark]:
        """Say which clients' messages fit other clients' members better than their own, or that too few messages are
        there to tell."""
        relabelled = exchange(self.cells())
        if relabelled is None:
            if any(self._senders.values()):
                yield Remark(
                    "members",
                    f"Whether messages fit their own clients' members could not be checked: that needs {FEWEST} "
                    f"clients in a round, and {LEAST} messages in all.",
                    note=True,
                )
        elif relabelled.p < CHANCE:
            moved = ", ".join(
                f"those of client {k} the members of {j}" for k, j in sorted(relabelled.moved.items())[:4]
            )
            yield Remark(
                "members",
                f"Messages fit other clients' members better than their own (p {relabelled.p:.2g} in a right "
                f"recording): {moved}. Were clients' files, or their lists of members, exchanged?",
                p=relabelled.p,
            )

    def half_the_scale(self) -> Iterator[Remark]:
        """Say that adapters fit the members better at half their stated scale, or that nothing tells their scale.

        Short trainings fit better at twice the scale too, so that a scale stated too small is not seen.
        """
        trained = self.external.trained
        if not isinstance(trained, Adapters) or trained.scale_read or self._tells_scale:
            return
        unclear = self._noise_stated or trained.bases or does_something(self._global(0))
        if (fit := None if unclear else self.half_fit()) and fit.doubted:
            yield Remark(
                "scale",
                f"At half the stated scale, alpha / rank = {trained.alpha / trained.rank:g}, the last global model has "
                f"{fit.of_global:.0%} less loss on members, and the last messages have {fit.of_messages:.0%} less on "
                "their own: perhaps alpha is not that of the training. A recorder that is given the model reads it "
                "there.",
                min(fit.of_global, fit.of_messages),
            )
        else:
            yield Remark(
                "scale",
                "The scale of the adapters is as run.json states it (alpha); neither the model's modules nor losses in "
                "rounds.json confirm it. If it was another, attacks ask another model than the trained one.",
                note=True,
            )

    @property
    def _tells_scale(self) -> bool:
        """Whether rounds.json states a loss of a trained global model that can be compared."""
        of_test = {r for r, note in self._notes.items() if note.get("utility", {}).get("global", {}).get("loss")}
        stated = {r for r, losses in self._members_losses.items() if losses}
        return any(stated | of_test if self.workshop.federation.test else stated)

    @property
    def _noise_stated(self) -> bool:
        """Whether a rule with noise, or an epsilon, is stated: as numbers, or in words that hold one."""
        external = self.external
        return external.aggregation == NOISE or bool(external.claim) or bool(re.search(r"\d", external.claimed))

    def half_fit(self) -> HalfFit | None:
        """How the last models fit members at half the scale; None without messages or members."""
        last, members = {k: r for r, sending in self._senders.items() for k in sending}, self._members
        some = spread(sorted(k for k in last if members[k]), TOGETHER)
        if not some:
            return None
        models = [(self._global(self.external.rounds), [record for k in some for record in members[k]])]
        models += [(self._message_model(last[k], k), members[k]) for k in some]
        fits = self._fits((scaled(model, by), records) for model, records in models for by in (1, 0.5, 0))
        losses = np.array([np.mean(fit.losses) for fit in fits]).reshape(-1, 3)
        (whole, half, _), (sent, halved, untrained) = losses[0], losses[1:].mean(0)
        return HalfFit(float(1 - half / whole), float(1 - halved / sent), float(1 - halved / untrained))

    @property
    def _senders(self) -> dict[int, list[int]]:
        """By round the clients that sent something."""
        return {r: [k for k in self.transcript.cohort(r) if self._sent(r, k)] for r in range(self.external.rounds)}

    @property
    def _members(self) -> dict[int, list[str]]:
        """By client some of its members."""
        return {k: [m.id for m in client.training_records][:MEMBERS] for k, client in enumerate(self._clients)}

    @property
    def _clients(self) -> Sequence[Client]:
        return self.workshop.federation.clients

    def _sent(self, r: int, client: int) -> bool:
        return client in self.external.uploads[r] and bool(self.external.uploads[r][client].shapes)

    def _message_model(self, r: int, client: int) -> State:
        """The model that the global one of round r becomes with a client's message."""
        before = self.transcript.broadcast(0) | self.transcript.broadcast(r)
        return self.transcript.model(
            before | self.external.trained.sent_state(before, self.transcript.upload(r, client))
        )

    def cells(self) -> list[Cells]:
        """How members fit under messages, in rounds in which several clients sent something."""
        senders, members = self._senders, self._members
        rounds = spread([r for r, sending in senders.items() if len(sending) > 1], ROUNDS)
        return [self._cells(r, spread([k for k in senders[r] if members[k]], TOGETHER), members) for r in rounds]

    def _cells(self, r: int, clients: Sequence[int], members: Mapping[int, Sequence[str]]) -> Cells:
        """The mean loss of each client's members under each client's message of round r."""
        records = [record for k in clients for record in members[k]]
        fits = self._fits((self._message_model(r, j), records) for j in clients)
        starts = np.cumsum([0, *(len(members[k]) for k in clients)])[:-1]
        sizes = [len(members[k]) for k in clients]
        return Cells(clients, np.array([np.add.reduceat(fit.losses, starts) / sizes for fit in fits]))


@dataclass(frozen=True)
class HalfFit:
    """Shares of the members' loss that go at half the stated scale."""

    of_global: float  # under the last global model
    of_messages: float  # a mean over clients, of their last messages on their own members
    learnt: float  # of these messages, beside the loss of the untrained model

    @property
    def doubted(self) -> bool:
        """Whether the stated scale is, and training at a rate too high cannot be what is seen: that fits no better than
        the untrained model."""
        return min(self.of_global, self.of_messages) > HALVED and self.learnt > LEARNT


def scaled(adapter: State, by: float) -> State:
    """The adapter at another scale."""
    return {name: tensor * by if name.endswith(".B") else tensor for name, tensor in adapter.items()}


@dataclass(frozen=True, eq=False)
class Cells:
    """The mean loss [n, n] of the members of n clients, one a column, under their messages of a round, one a row."""

    clients: Sequence[int]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class Relabelling:
    """The relabelling of clients under which messages fit best: by client whose message its own is like, and the
    probability of as large a gain if no message is like its own client's."""

    moved: Mapping[int, int]
    p: float


def exchange(rounds: Sequence[Cells]) -> Relabelling | None:
    """The relabelling of clients, one for all rounds, that gains most over the stated one; None if there are too few
    cells.

    A cell is a mean loss less the mean of its row and of its column, so that a message that fits everybody worse, as
    one with much noise, counts for nothing; it is in units of its row's spread, so that a message that changes much
    does not hide the others. The gain is in standard deviations of the cells in neither labelling, and its probability
    is that among simulated cells which are independent and normal: of messages that tell nothing.
    """
    rounds = [one for one in rounds if len(one.clients) >= FEWEST]
    if sum(len(one.clients) for one in rounds) < LEAST:
        return None
    clients = sorted({k for one in rounds for k in one.clients})
    places = [np.searchsorted(clients, one.clients) for one in rounds]
    assigned, gain = _gain([_standardised(one.losses) for one in rounds], places, len(clients))
    rng = np.random.default_rng(len(rounds))
    drawn = ([_standardised(rng.standard_normal(one.losses.shape)) for one in rounds] for _ in range(SIMULATED))
    larger = sum(_gain(cells, places, len(clients))[1] >= gain for cells in drawn)
    moved = {clients[i]: clients[j] for i, j in enumerate(assigned) if i != j}
    return Relabelling(moved, (1 + larger) / (1 + SIMULATED))


def _standardised(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cells less the means of their rows and columns, each row in units of its own spread."""
    centred = _centred(cells)
    spread = np.sqrt((centred**2).mean(1, keepdims=True))
    return _centred(np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0))


def _centred(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cells less the means of their rows and columns."""
    centred: NDArray[np.float64] = cells - cells.mean(0) - cells.mean(1, keepdims=True) + cells.mean()
    return centred


def _gain(
    cells: Sequence[NDArray[np.float64]], places: Sequence[NDArray[np.intp]], clients: int
) -> tuple[NDArray[np.intp], float]:
    """By client the one whose members its messages fit best, each once, and what that gains over its own, in standard
    deviations of the cells in neither."""
    together = np.zeros((clients, clients))
    for at, part in zip(places, cells, strict=True):
        together[np.ix_(at, at)] += part
    messages, best = linear_sum_assignment(together)
    gain = together.trace() - together[messages, best].sum()
    if gain <= 0:
        return best, 0.0
    neither = [
        part[~np.eye(len(at), dtype=bool) & (best[at][:, None] != at[None])]
        for at, part in zip(places, cells, strict=True)
    ]
    rest, moved = float(np.std(np.concatenate(neither))), int((best != np.arange(clients)).sum())
    return best, float(gain) / math.sqrt(moved) / rest if rest > 0 else math.inf


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of `values`, evenly spread, with the first and the last."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[i] for i in dict.fromkeys(places.tolist())]
