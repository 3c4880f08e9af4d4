"""Sentences about what a run that was recorded elsewhere does not explain, for its report, or a refusal.

A recording error must not turn a leak into "no leak found" without a word. Files are read round by round; no more than
two rounds are in memory.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedaudit.external.schema import RUN
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import at_once, each, refuse, sentences
from fedaudit.machinery.samples import Sample

if TYPE_CHECKING:
    from fedaudit.external.explain import Fit, Tensor
    from fedaudit.external.run import OwnRun
    from fedaudit.trainers.base import State

MEAN, PARTIAL = "mean", "partial mean"  # aggregations that are checked
NOISE = "noise"
AGGREGATIONS = (
    MEAN, PARTIAL, "server optimiser", "server momentum", NOISE, "secure sum", "stacking", "other",
)  # fmt: skip

HIDDEN = ".recorder"  # where a recorder keeps the round that is open
ONE = 0.999  # weight of a client of several from which the next model is that client's own


@dataclass(frozen=True)
class Remark:
    """A sentence about how a run was recorded. `value` is the number in it, if it has one; `p` the probability that a
    right recording fails a random check so. A `note` voids no number, a doubt does (`terms.doubts`)."""

    check: str
    sentence: str
    value: float | None = None
    p: float | None = None
    note: bool = False

    @property
    def line(self) -> str:
        """The sentence for a terminal."""
        return f"{'note' if self.note else 'doubt'}: {self.sentence}"


def remarks(run: OwnRun, some: Sample) -> list[Remark]:
    """Check the rounds of a run that `some` chooses, reading their tensors once, and return what is to be said about
    them.

    InputError: nothing was trained, the uploads are changes and not said to be, a global model does not follow from
    what was received; or all tensors that are unreadable or not finite.
    """
    checks, damaged = _Checks(run), list[str]()
    for i in some(range(run.rounds)):
        try:
            received, private = checks.read(i)
        except InputError as error:
            damaged += sentences(error)
            continue
        if not damaged:
            checks.add(received)
            checks.trained |= any(map(checks.is_trained, private))
    refuse(damaged)
    return checks.remarks(whole=not some.partial)


def of_records(copies: int, shared_pictures: int) -> list[Remark]:
    """Return remarks on the candidates: how many are left out, and how many non-members have a member's picture."""
    noted = []
    if copies:
        noted.append(
            Remark(
                "records",
                f"{copies} candidates are left out: each has picture, prompt and text of one on the other side, so "
                "that it is a member and none.",
                copies,
                note=True,
            )
        )
    if shared_pictures:
        noted.append(
            Remark(
                "pictures",
                f"{shared_pictures} non-members have the picture of a member, with another prompt or text: what a "
                "model learnt of that picture counts for both, and a leak is understated.",
                shared_pictures,
                note=True,
            )
        )
    return noted


@dataclass(frozen=True)
class _Round:
    """The files of one round, read, and those of the rounds beside it."""

    index: int  # among those that are recorded
    number: int  # in the training
    following: int  # number of the next model that is recorded: 1 more, but for gaps
    before: State
    after: State
    sent: Mapping[int, State]
    precision: float


class _Checks:
    """Collects what the rounds of a run show."""

    def __init__(self, run: OwnRun) -> None:
        self.run = run
        self.trained = False
        self.still: list[int] = []  # rounds in which clients sent something else, and the model stays as it was
        self.fits: dict[int, Fit] = {}  # of rounds that are not explained
        self.late: list[int] = []  # rounds whose model follows from what was received a round before
        self.early: list[int] = []  # rounds whose model follows from what was received a round later
        self.weights: dict[int, tuple[float, str]] = {}  # by round: rest under the stated weights, what fits instead
        self.alike: list[str] = []
        self.gaps: list[int] = []  # rounds of which the next model is not recorded, or nothing that was sent
        self.untrained: list[int] = []  # rounds in which every upload equals the model that was sent out
        # of two rounds in memory, as mostly the next one is asked for
        self.model = functools.lru_cache(2)(lambda i: run.unscaled.models[i].load())
        self.sent = functools.lru_cache(2)(self._sent)

    @functools.cached_property
    def start(self) -> State:
        """The first global model."""
        return self.run.unscaled.models[0].load()

    def read(self, i: int) -> tuple[_Round, list[State]]:
        """The files of a round, and what its clients held after it. InputError names all files that are unreadable, or
        hold values that are not finite."""
        run = self.run.unscaled
        before, after, sent, private = at_once(
            lambda: self.model(i), lambda: self.model(i + 1), lambda: self.sent(i),
            lambda: each(lambda file: file.load(), run.private[i].values()),
        )  # fmt: skip
        files = (run.models[i], run.models[i + 1], *run.uploads[i].values())
        precision = max(file.precision for file in files)
        return _Round(i, run.numbers[i], run.numbers[i + 1], before, after, sent, precision), private

    def _sent(self, i: int) -> dict[int, State]:
        """The uploads of a round, by client, as states of those tensors that the model before it has."""
        before = self.model(i)
        uploads = self.run.unscaled.received(i, before)
        states = {k: self.run.trained.sent_state(before, upload) for k, upload in uploads.items()}
        return {k: {name: tensor for name, tensor in state.items() if name in before} for k, state in states.items()}

    def is_trained(self, state: State) -> bool:
        """Whether what a client held does something else than the first global model."""
        from fedaudit.external.explain import same_effect

        shared = {name: tensor for name, tensor in state.items() if name in self.start}
        started = {name: self.start[name] for name in shared}
        return len(shared) < len(state) or not same_effect(shared, started)

    def add(self, now: _Round) -> None:
        """Check one round. InputError: its uploads are changes, or nothing explains the model after it."""
        from fedaudit.external.explain import same, same_effect

        moved, does_more = not same(now.before, now.after), not same_effect(now.before, now.after)
        sending = {k: state for k, state in now.sent.items() if state}
        still = [k for k, state in sending.items() if same_effect(state, {name: now.before[name] for name in state})]
        self.trained |= does_more or len(still) < len(sending)
        # what clients sent may do nothing in the model's place: factors A alone, while all factors B are zero
        could_do_more = any(not same_effect({**now.before, **state}, now.before) for state in sending.values())
        if sending and len(still) == len(sending):
            self.untrained.append(now.number)
        elif could_do_more and not does_more and now.following == now.number + 1:
            self.still.append(now.number)
        self._note_alike(now)
        failed = self.run.notes.get(str(now.index), {}).get("failed")
        if now.following > now.number + 1 or not (self.run.cohorts[now.index] or failed):
            self.gaps.append(now.number)
        elif moved and self.run.aggregation in (MEAN, PARTIAL):
            self._explain(now)

    def _explain(self, now: _Round) -> None:
        """Fit the next model by what was received, and by what else may lie in the files if that fails."""
        from fedaudit.external import explain

        still = self.run.aggregation == PARTIAL
        tensors = explain.tensors_of(now.before, now.after, now.sent, now.precision, still=still)
        best = explain.fit(tensors)
        if now.number in self.untrained:
            raise InputError(
                f"--run {self.run.path}: every upload of round {now.number} equals the model that was sent out, and "
                "the next model does not; were the states taken before training?"
            )
        if best.explained:
            if not still and len(now.sent) > 1:
                self._compare_weights(now, tensors, best)
            return
        self._require_states(now, best)
        for i, rounds in ((now.index - 1, self.late), (now.index + 1, self.early)):
            other = self.sent(i) if 0 <= i < self.run.rounds else {}
            if other and explain.fit(explain.tensors_of(now.before, now.after, other, now.precision)).explained:
                rounds.append(now.number)
                return
        if best.unexplained >= explain.REFUSED > best.tolerance:
            raise InputError(
                f"--run {self.run.path}: models/{self.run.models[now.index + 1].path.name} does not follow from the "
                f"uploads of round {now.number}: every mean of them leaves {best.unexplained:.2g} of a client's step "
                f"unexplained (a right recording {best.tolerance:.1g} at most); a file holds something else, or the "
                f'server takes no mean and {RUN} must name its rule: "aggregation", one of {_named(AGGREGATIONS[1:])}'
            )
        self.fits[now.number] = best

    def _require_states(self, now: _Round, best: Fit) -> None:
        """InputError if the uploads of a round explain the next model as changes of the model before it."""
        from fedaudit.external import explain

        add = f'add "uploads": "changes" to {RUN} ("format": 2)'
        for sign, words in ((1, f"changes; {add}"), (-1, f"starts less states; write states less starts, and {add}")):
            states = explain.changes(now.before, now.sent, sign)
            other = explain.fit(explain.tensors_of(now.before, now.after, states, now.precision))
            if other.explained:
                raise InputError(
                    f"--run {self.run.path}: the uploads of round {now.number} are no states but {words} (read as "
                    f"states they leave {best.unexplained:.2g} of a client's step in the next model unexplained, read "
                    f"so {other.unexplained:.1g})"
                )

    def _compare_weights(self, now: _Round, tensors: Mapping[str, Tensor], best: Fit) -> None:
        """Compare the weights that explain a round with those that the numbers of records ask for."""
        from fedaudit.external import explain

        stated = self.run.record_counts(now.index)
        by_records = explain.fit_stated(tensors, stated)
        if by_records.explained or explain.fit_stated(tensors, dict.fromkeys(stated, 1)).explained:
            return
        moved_files = {k: j for k, j in explain.permutation(best.weights, stated).items() if k != j}
        exchanged = {k: stated[moved_files.get(k, k)] for k in stated}
        if moved_files and explain.fit_stated(tensors, exchanged).explained:
            pairs = ", ".join(f"client {k}'s file fits the records of client {j}" for k, j in moved_files.items())
        elif self.run.counts_stated(now.index) or max(best.weights.values()) > ONE:
            shares = ", ".join(f"{k}: {weight:.2f}" for k, weight in sorted(best.weights.items())[:6])
            pairs = f"weights that fit are {shares}" + (", ..." if len(best.weights) > 6 else "")
        else:
            return
        self.weights[now.number] = (by_records.unexplained, pairs)

    def _note_alike(self, now: _Round) -> None:
        """Note clients whose files of a round are byte-identical."""
        clients = defaultdict(list)
        for client, message in self.run.uploads[now.index].items():
            if message.shapes:  # uploads without tensors are all alike
                clients[self.run.digest(message)].append(str(client))
        self.alike += [f"{' and '.join(alike)} in round {now.number}" for alike in clients.values() if len(alike) > 1]

    def remarks(self, *, whole: bool) -> list[Remark]:
        """Return the remarks on the rounds that were added. InputError: they are the `whole` run, and nothing was
        trained."""
        if whole and not self.trained:
            raise InputError(
                f"--run {self.run.path}: nothing was trained: all models and uploads do what the first global model "
                "does (were all states taken before training, or is one factor of each adapter always zero?)"
            )
        return [*self._of_models(), *self._of_weights(), *self._of_uploads(), *self._of_start(), *self._of_open_round()]

    def _of_models(self) -> Iterator[Remark]:
        from fedaudit.external.explain import words

        if self.run.aggregation not in (MEAN, PARTIAL):
            yield Remark(
                "aggregation",
                f"The server's rule is said to be: {self.run.aggregation}. Whether each global model follows from what "
                "was received could not be checked.",
                note=True,
            )
        if self.gaps:
            last = self.run.numbers[-1]
            yield Remark(
                "gaps",
                f"Of {last} rounds {self.run.rounds} are recorded: after {words(self.gaps)} there is a gap. What "
                "clients sent in it is not attacked, members of these rounds may count as not seen, and whether the "
                "models after it follow from what was received cannot be checked. Rounds of the tables are the "
                f"recorded ones in turn: {_table(self.run.numbers)}.",
                note=True,
            )
        if self.still:
            yield Remark(
                "models",
                f"The global model does not change in {words(self.still)} of {self.run.rounds}, though clients sent "
                "other tensors than it has: perhaps what was released was not recorded, and then rows of the released "
                "model say nothing.",
            )
        for rounds, when, cause in (
            (self.late, "earlier", "models are recorded a round late"),
            (self.early, "later", "uploads are recorded a round late"),
        ):
            if rounds:
                yield Remark(
                    "rounds",
                    f"The global models after {words(rounds)} follow from what was received one round {when}: {cause}, "
                    "and attacks compare uploads with the wrong start.",
                )
        if rest := self.fits:
            r = max(rest, key=lambda n: rest[n].unexplained)
            where = f", most of all in {rest[r].tensor}" if rest[r].tensor else ""
            yield Remark(
                "aggregation",
                f"The global models after {words(sorted(rest))} do not wholly follow from what was received: up to "
                f"{rest[r].unexplained:.2g} of a client's step stays unexplained by every mean of the uploads"
                f"{where}. A client may be missing, a file may be of another round, or the server takes no mean "
                f'("aggregation" in {RUN}); what is said below holds for the files as they are.',
                rest[r].unexplained,
            )

    def _of_weights(self) -> Iterator[Remark]:
        from fedaudit.external.explain import words

        if self.weights:
            r = max(self.weights, key=lambda n: self.weights[n][0])
            rest, instead = self.weights[r]
            yield Remark(
                "weights",
                f"After {words(sorted(self.weights))} the global model is a mean of the uploads, but not with the "
                f"clients' numbers of records: these leave {rest:.2g} of a client's step unexplained. In round {r} "
                f"{instead}. Were clients' files exchanged?",
                rest,
            )

    def _of_uploads(self) -> Iterator[Remark]:
        from fedaudit.external.explain import words

        if self.untrained:
            yield Remark(
                "uploads",
                f"In {words(self.untrained)} every upload equals the global model that was sent out: were the states "
                "taken before training? Such messages show no leak whatever was trained.",
            )
        elif self.alike:
            more = f" and {len(self.alike) - 3} times more" if len(self.alike) > 3 else ""
            yield Remark(
                "uploads",
                f"Uploads of different clients are byte-identical (clients {', '.join(self.alike[:3])}{more}): if "
                "their states shared memory when they were saved, all but one are lost (docs/guides/own-runs.md).",
            )

    def _of_start(self) -> Iterator[Remark]:
        for sentence in self.run.trained.notes:
            yield Remark("adapter", sentence, note=True)
        from fedaudit.external.explain import does_something

        if does_something(self.run.models[0].load()):
            yield Remark(
                "start",
                "The adapter is not zero before the first round (a warm start, or an initialisation such as PiSSA): "
                "controls ask the model with this adapter, which is not the backbone.",
                note=True,
            )

    def _of_open_round(self) -> Iterator[Remark]:
        uploads = (self.run.path / HIDDEN).glob("round-*/uploads/*.safetensors")
        numbers = Counter(path.parents[1].name.removeprefix("round-") for path in uploads)
        for number in sorted(filter(str.isdecimal, numbers), key=int)[-1:]:
            sent = numbers[number]
            yield Remark(
                "open",
                f"Round {int(number)} is still open: {sent} upload{'s' if sent > 1 else ''} of it and the model after "
                "it are not in the recording. Was close(state) called? What was trained in that round is not seen.",
                sent,
            )


def _table(numbers: Sequence[int]) -> str:
    """ "0 is 0, 1 is 10, 2 is 20 and so on" for the rounds of tables and of the training."""
    few = ", ".join(f"{i} is {r}" for i, r in enumerate(numbers[:4]))
    return few + (" and so on" if len(numbers) > 4 else "")


def _named(values: tuple[str, ...]) -> str:
    return ", ".join(f'"{value}"' for value in values)
