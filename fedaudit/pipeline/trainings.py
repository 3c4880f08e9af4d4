"""Runs the trainings of a plan, each in its folder. Those on disk are not trained again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import resource_usage as spending
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress, Stage, unseen
from fedaudit.machinery.store import claim
from fedaudit.pipeline.finished import complete, finish, on_disk
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.sharing import free_chains_first, free_first
from fedaudit.pipeline.workers import Workshop
from fedaudit.trainers.base import Method, Schedule
from fedaudit.trainers.protocols import Bench, Evaluation
from fedaudit.trainers.rounds import train

if TYPE_CHECKING:
    from fedaudit.external.run import OwnRun

BLOCK = 10  # rounds of one job, where whole trainings are jobs


@dataclass(frozen=True)
class Training:
    """All that is needed to run one training."""

    name: str  # in messages
    method: Method[Any] | OwnRun  # somebody's own run is read, not trained
    schedule: Schedule
    evaluation: Evaluation
    folder: Path
    description: Mapping[str, Any]  # written as run.json
    start: Path | None = None  # the folder of a training with the same public start; None: it is drawn by the seed
    timed: bool = True  # whether seconds and memory of each round are noted; not for an adversary's simulations


def train_all(cells: Sequence[Cell], workshop: Workshop, progress: Progress) -> set[str]:
    """Train those cells of one plan that are not on disk; returns the training keys of the cells that were there
    before. InputError: a method does not fit the clients.

    Trainings run side by side, a worker each, if the learner's facts say `together`; else one after the other, with
    clients in the workers.
    """
    before = {c.training_key for c in cells if on_disk(c.training_folder, progress.say)}
    todo = list({c.training_key: c for c in cells if c.training_key not in before}.values())
    trainings = [  # all are checked before the first one runs
        Training(
            cell.method, cell.plan.own or method_of(cell, workshop.federation.sizes), schedule_of(cell),
            workshop.evaluation, cell.training_folder, cell.training_description,
        )
        for cell in todo
    ]  # fmt: skip
    if not trainings:
        return before
    executor, plan = workshop.executor, cells[0].plan
    if not plan.trained.together:

        def run(training: Training, wait: bool) -> None:
            run_training(training, executor, say=progress.say, stage=progress.stage, wait=wait)

        free_first(run, trainings)
        return before
    with progress.stage(_what(todo), len(todo) * plan.rounds, "round") as advance:
        jobs = [(training, progress.quiet) for training in trainings]
        for trained in free_chains_first(executor.chains, train_block, jobs, blocks(plan.rounds)):
            advance(trained)
    return before


def _what(cells: Sequence[Cell]) -> str:
    """The name of these trainings in the progress display."""
    if cells[0].plan.own:
        return "reading the run"
    return f"training {cells[0].method}, seed {cells[0].seed}" if len(cells) == 1 else f"{len(cells)} trainings"


def blocks(rounds: int) -> list[int]:
    """Numbers of rounds at which jobs end, every `BLOCK` and at the end, so that trainings side by side take turns."""
    return [*range(BLOCK, rounds, BLOCK), rounds]


def run_training(
    training: Training, executor: Executor[Bench], *, say: Callable[[str], None], stage: Stage,
    until: int | None = None, wait: bool = True,
) -> None:  # fmt: skip
    """Train in the training's folder until `until` rounds are done (None: all), continuing from what is there; after
    the last round the folder is marked as finished. Busy without `wait`: another process works on it."""
    folder, method, schedule = claim(training.folder), training.method, training.schedule
    with folder.lock(say, wait=wait):
        if complete(folder, say):
            return
        folder.write_json("run.json", training.description)

        def note(r: int, spent: spending.ResourceUsage) -> None:
            if training.timed:
                spending.note(folder.path, {"round": r}, spent)

        if isinstance(method, Method):
            start = claim(training.start).read_tensors("initial.safetensors") if training.start else None
            with stage(f"training {training.name}, seed {schedule.seed}", schedule.rounds, "round") as advance:
                train(
                    method, schedule, training.evaluation,
                    folder=folder, executor=executor, say=say, advance=advance, until=until, name=training.name,
                    note=note, start=start,
                )  # fmt: skip
        else:
            if until in (None, schedule.rounds):
                say(f"reading the run {method.path.name}")
            method.write_transcript(folder, say=say)
        if until in (None, schedule.rounds):
            finish(folder)


def train_block(bench: Bench, job: tuple[Training, bool, int, bool]) -> int:
    """Continue, in a worker, a training by itself, and return the number of rounds of this block. A job is (training,
    quiet, rounds to train up to, whether to wait for a process that works on it)."""
    training, quiet, until, wait = job
    with Executor(lambda: bench) as executor:
        run_training(training, executor, say=Progress(quiet=quiet).say, stage=unseen, until=until, wait=wait)
    return until - (until - 1) // BLOCK * BLOCK
