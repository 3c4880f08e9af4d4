"""How long attacks take, for `--dry-run`: the asking's own list of questions is counted before there is a run to ask
about, and one question of each kind is put to the plan's own model."""

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

from attacks.attacked_models import Target
from attacks.base import View
from attacks.decompose import solve
from attacks.knowledge import Mixture
from attacks.messages.rebuild import Rebuilt
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress, nothing
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.asking import Ask, AskModel, AskRound, Desk, merged
from fedaudit.pipeline.inquiries import Asking, parts_of
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.pipeline.shadow_trainings import ShadowRecipe
from fedaudit.tasks.base import Federation
from trainers.base import State, generator, pack
from trainers.protocols import Bench
from trainers.rounds import train
from trainers.transcript import Transcript

ROUNDS = 2  # of the training whose last messages are looked at: a client that sends halves has sent both, or may have
KINDS_OF_WORK = ("solved", "messages", "gradients", "answers", "replays")  # by what one of them takes
HIDDEN = "hidden"  # what every message may lack, and may hold


@dataclass(frozen=True)
class Foreseen(Transcript):
    """A run that is not there yet, as far as its schedule tells it; states are empty, and every way of rebuilding a
    client is open."""

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


class Forecast(Asking):
    """What will be asked of it, at most: weights that are not there are told apart by what they are, and not by
    content."""

    def simulated(self, recipe: ShadowRecipe, shadow: int) -> Transcript:
        return self.transcript

    def digest(self, place: tuple[object, ...], read: Callable[[], State]) -> str:
        return "-".join(map(str, place[1:]))

    def questions(self) -> list[Ask]:
        """All of them."""
        found: list[Ask] = []
        for source in self.sources:
            for question in self.rebuilds(source):
                found.append(question)
                clients = {k: source.transcript.participations(k) for k in question.view.clients}
                rebuilt = [Rebuilt(k, "", dict[str, Any]() if turns else None, 0, 0, 0) for k, turns in clients.items()]
                source.rebuilt[question.view.threat_model] = rebuilt
        for target in self.targets:
            found += [question for inquiry in self.inquiries(target) for question in inquiry.questions()]
            found += [question for _, question in self.curve(target)]
        return merged(found)


def forecast(cell: Cell, federation: Federation) -> Forecast:
    """Of a cell."""
    run = Foreseen(Folder(cell.training_folder), schedule_of(cell), sizes=federation.sizes)
    return Forecast(transcript=run, **parts_of(cell, federation))


def work(cell: Cell, federation: Federation) -> dict[str, float]:
    """How often the attacks on a cell put a question of each kind."""
    asking, found = forecast(cell, federation), dict.fromkeys(KINDS_OF_WORK, 0.0)
    whole = len(asking.targets[0].records)
    for question in asking.questions():
        for kind, often in question.work(whole).items():
            found[kind] += often
    return found


def seconds(asked: Mapping[str, float], each: Mapping[str, float]) -> float:
    """Of so many questions, by what one of each kind takes."""
    return sum(often * each.get(kind, 0.0) for kind, often in asked.items())


def timed(
    cell: Cell, federation: Federation, bench: Bench, asked: Mapping[str, float], progress: Progress
) -> dict[str, float]:
    """The seconds of each kind of question that is asked; trains two rounds in a folder that is thrown away where
    messages are."""
    asking = forecast(cell, federation)
    desk, target = Desk(asking.kind, asking.method, bench.attack_bench), asking.targets[0]
    parts = {"answers": ("exact",), "gradients": ("norms",)}
    state = pack(_model(cell, bench))
    found = {
        kind: _seconds(AskModel(Path(), part, ("",), target.records, (state,)), desk)
        for kind, part in parts.items()
        if asked[kind]
    }
    if not asked["messages"] and not asked["replays"]:
        return found
    with _transcript(cell, federation, bench, progress) as transcript:
        return found | _of_messages(asking, desk, target, transcript, asked, cell.plan.rounds)


def _of_messages(
    asking: Forecast, desk: Desk, target: Target, transcript: Transcript, asked: Mapping[str, float], whole: int
) -> dict[str, float]:  # fmt: skip
    """Seconds of a round's messages, of one that is solved, and of the replay of a `whole` run."""
    rounds = range(transcript.schedule.rounds)
    turns = [(transcript.cohort(r)[0], r) for r in reversed(rounds) if transcript.cohort(r)]
    servers = [name for name, view in asking.training.views.items() if view.gives("sums of uploads")]
    if not turns or not servers:
        return {}
    (client, r), view = turns[0], View(transcript, servers[0])
    target = dataclasses.replace(target, client=client)
    started = time.perf_counter()
    desk.messages(view)
    found = {"replays": (time.perf_counter() - started) * whole / len(rounds)}
    parts = {"messages": asking.kind.parts(asking.wanted(servers[0])), "solved": ("solved",)}
    for kind in (kind for kind in parts if asked[kind]):
        question = AskRound(Path(), parts[kind], view, target, r)
        found[kind] = _seconds(question, desk)
    return found


def _model(cell: Cell, bench: Bench) -> State:
    """A model of the plan's method, before training."""
    state = bench.learner.initial(generator(0, "estimate"))
    return method_of(cell).model(method_of(cell).start(state)) if cell.variant else state


@contextmanager
def _transcript(cell: Cell, federation: Federation, bench: Bench, progress: Progress) -> Iterator[Transcript]:
    """Some messages of every client of a cohort, or somebody's own."""
    rounds = min(ROUNDS, cell.plan.rounds)
    schedule = dataclasses.replace(schedule_of(cell), rounds=rounds, clients=cell.plan.per_round, newcomers=0)
    with tempfile.TemporaryDirectory() as path, Executor(lambda: bench) as executor:
        folder = claim(Path(path))
        if (own := cell.plan.own) is not None:
            own.write_transcript(folder)
            yield Transcript(folder, schedule_of(cell))
            return
        yield train(
            method_of(cell, federation.sizes), schedule, NoEvaluation(), folder=folder, executor=executor,
            say=progress.say, advance=nothing,
        )  # fmt: skip


def _seconds(question: Ask, desk: Desk) -> float:
    """Of an answer, and of what an attack solves in it."""
    started = time.perf_counter()
    if solved := question.ask(desk).get("solved"):
        solve(Mixture.of(solved))
    return time.perf_counter() - started
