"""Estimates how long attacks take, for `--dry-run`: lists the questions that they would ask of the models of a run,
before there is one, and times one question of each kind on the plan's model."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.knowledge import Mixture
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress, nothing
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.questions import MessageQuestion, ModelQuestion, ModelWorker, StoredQuestion, merged
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.pipeline.shadow_trainings import ShadowRecipe
from fedaudit.tasks.base import Federation
from fedaudit.trainers.base import State, generator, pack
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from fedaudit.trainers.transcript import Transcript

ROUNDS = 2  # rounds of the timed training: a client that uploads halves in turn can upload both
KINDS_OF_WORK = ("solved", "messages", "gradients", "answers", "replays")  # the slowest first
HIDDEN = "hidden"  # name of a tensor that any upload may have or keep back


@dataclass(frozen=True)
class PlannedTranscript(Transcript):
    """The transcript of a run that has not been trained: rounds and cohorts of its schedule, with empty states. Each
    upload holds and keeps back `HIDDEN`, and each secure sum is revealed, so that no attack is ruled out."""

    sizes: Sequence[int] = ()  # records of each client's list

    @property
    def rounds_at_least_loss(self) -> int:
        return self.schedule.rounds - 1

    def round(self, r: int) -> dict[str, Any]:
        cohort = self.schedule.cohort(r)
        uploads = {str(k): {"records": self.sizes[k], "kept": [HIDDEN], "owner": True} for k in cohort}
        return {"cohort": cohort, "uploads": uploads, "revealed": {"summed": [cohort]}}

    def broadcast(self, r: int) -> State:
        return {}

    def _part(self, r: int, prefix: str) -> State:
        names = [f"{k}/{HIDDEN}" for k in self.cohort(r)] if prefix == "upload" else [HIDDEN, "gradients"]
        return {name: torch.zeros(0) for name in names}


class Forecast(QuestionPlan):
    """Lists all questions about a run that has not been trained: an upper bound, as equal states are not recognised."""

    def simulated(self, recipe: ShadowRecipe, shadow: int) -> Transcript:
        return self.transcript

    def digest(self, place: tuple[object, ...], read: Callable[[], State]) -> str:
        return "-".join(map(str, place[1:]))

    def questions(self) -> list[StoredQuestion]:
        """All questions that the attacks would ask about the run, each once."""
        questions: list[StoredQuestion] = []
        for source in self.sources:
            for question in self.replay_questions(source):
                questions.append(question)
                clients = {k: source.transcript.participations(k) for k in question.view.clients}
                rebuilt = [Rebuilt(k, "", dict[str, Any]() if turns else None, 0, 0, 0) for k, turns in clients.items()]
                source.rebuilt[question.view.threat_model] = rebuilt
        for target in self.targets:
            questions += [
                question for question_set in self.question_sets(target) for question in question_set.questions()
            ]
            questions += [question for _, question in self.curve(target)]
        return merged(questions)


def forecast(cell: Cell, federation: Federation) -> Forecast:
    """The questions about the run of a cell, before it is trained."""
    run = PlannedTranscript(Folder(cell.training_folder), schedule_of(cell), sizes=federation.sizes)
    return Forecast.of(cell, federation, run)


def work(cell: Cell, federation: Federation) -> dict[str, float]:
    """The work of all attacks on a cell (a training and its audit), {kind of work: number of questions}, counted in
    questions about all records of a target."""
    question_plan, counts = forecast(cell, federation), dict.fromkeys(KINDS_OF_WORK, 0.0)
    whole = len(question_plan.targets[0].records)
    for question in question_plan.questions():
        for kind, count in question.work(whole).items():
            counts[kind] += count
    return counts


def seconds(counts: Mapping[str, float], each: Mapping[str, float]) -> float:
    """Total seconds of `counts` questions by kind, where one takes `each` seconds; kinds that `each` lacks take
    none."""
    return sum(count * each.get(kind, 0.0) for kind, count in counts.items())


def timed(
    cell: Cell, federation: Federation, bench: Bench, counts: Mapping[str, float], progress: Progress
) -> dict[str, float]:
    """Seconds of one question as measured here, {kind of work: seconds}. Kinds whose count in `counts` is 0, or that
    cannot be timed, may be missing. If uploads are needed, two rounds are trained in a temporary folder."""
    question_plan = forecast(cell, federation)
    worker, target = ModelWorker(question_plan.kind, question_plan.method, bench.attack_bench), question_plan.targets[0]
    parts = {"answers": ("exact",), "gradients": ("norms",)}
    state = pack(_model(cell, bench))
    times = {
        kind: _seconds(ModelQuestion(Path(), part, ("",), target.records, (state,)), worker)
        for kind, part in parts.items()
        if counts[kind]
    }
    if not counts["messages"] and not counts["replays"]:
        return times
    with _transcript(cell, federation, bench, progress) as transcript:
        return times | _message_seconds(question_plan, worker, target, transcript, counts, cell.plan.rounds)


def _message_seconds(
    question_plan: Forecast, worker: ModelWorker, target: Target, transcript: Transcript, counts: Mapping[str, float],
    whole: int,
) -> dict[str, float]:  # fmt: skip
    """Measured seconds, {kind of work: seconds}: for the uploads of a round ("messages") and for solving one
    ("solved"), each if its count is above 0, and for replaying `whole` rounds ("replays"); {} if no client took part or
    no adversary sees sums of uploads."""
    rounds = range(transcript.schedule.rounds)
    turns = [(transcript.cohort(r)[0], r) for r in reversed(rounds) if transcript.cohort(r)]
    servers = [name for name, view in question_plan.training.views.items() if view.gives("sums of uploads")]
    if not turns or not servers:
        return {}
    (client, r), view = turns[0], View(transcript, servers[0])
    target = dataclasses.replace(target, client=client)
    started = time.perf_counter()
    worker.messages(view)
    times = {"replays": (time.perf_counter() - started) * whole / len(rounds)}
    parts = {"messages": question_plan.kind.parts(question_plan.wanted(servers[0])), "solved": ("solved",)}
    for kind in (kind for kind in parts if counts[kind]):
        question = MessageQuestion(Path(), parts[kind], view, target, r)
        times[kind] = _seconds(question, worker)
    return times


def _model(cell: Cell, bench: Bench) -> State:
    """The state of an untrained model of the cell's method; for an external run of its learner."""
    state = bench.learner.initial(generator(0, "estimate"))
    return method_of(cell).model(method_of(cell).start(state)) if cell.variant else state


@contextmanager
def _transcript(cell: Cell, federation: Federation, bench: Bench, progress: Progress) -> Iterator[Transcript]:
    """Yield a transcript of at most ROUNDS rounds with one cohort of clients, trained here, or that of an external run;
    it is deleted after the `with` block."""
    rounds = min(ROUNDS, cell.plan.rounds)
    schedule = dataclasses.replace(schedule_of(cell), rounds=rounds, clients=cell.plan.per_round, newcomers=0)
    with tempfile.TemporaryDirectory() as path, Executor(lambda: bench) as executor:
        folder = claim(Path(path))
        if (external := cell.plan.own) is not None:
            external.write_transcript(folder)
            schedule = schedule_of(cell)
            yield Transcript.of(folder, schedule, method_of(cell)) if cell.variant else Transcript(folder, schedule)
            return
        yield train(
            method_of(cell, federation.sizes), schedule, NoEvaluation(), folder=folder, executor=executor,
            say=progress.say, advance=nothing,
        )  # fmt: skip


def _seconds(question: StoredQuestion, worker: ModelWorker) -> float:
    """Seconds to answer a question, and to solve the mixture in the answer if there is one."""
    started = time.perf_counter()
    solved = question.answer(worker).get("solved", {})
    if "gradients" in solved:
        solve(Mixture.of(solved))
    return time.perf_counter() - started
