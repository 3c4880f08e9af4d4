"""The trainings of a plan, each in its folder: what is on disk already is not trained again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.progress import Progress, nothing
from fedaudit.machinery.store import claim
from fedaudit.pipeline.finished import complete, finish, on_disk
from fedaudit.pipeline.methods import method_of, schedule_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Workshop

if TYPE_CHECKING:
    from trainers.base import Bench, Transcript

BLOCK = 10  # rounds of one job, where whole trainings are jobs


def train_one(cell: Cell, workshop: Workshop, progress: Progress) -> tuple[Transcript, bool]:
    """The transcript of a cell, trained (or read, if it is somebody's own) as far as it is not on disk; whether all of
    it was."""
    from trainers.base import train

    transcript = transcript_of(cell)
    folder = transcript.folder
    with folder.lock(progress.say):
        if complete(folder, progress.say):
            return transcript, True
        folder.write_json("run.json", cell.training_description)
        if cell.plan.own is not None:
            with progress.stage(f"reading the run {cell.plan.own.path.name}", 1) as advance:
                cell.plan.own.write_transcript(folder, say=progress.say)
                advance()
        else:
            exam, executor = workshop.exam, workshop.executor
            with progress.stage(f"training {cell.method}, seed {cell.seed}", transcript.schedule.rounds) as advance:
                train(
                    method_of(cell), transcript.schedule, exam,
                    folder=folder, executor=executor, say=progress.say, advance=advance, name=cell.method,
                )  # fmt: skip
        finish(folder)
    return transcript, False


def train_all(cells: Sequence[Cell], workshop: Workshop, progress: Progress) -> set[str]:
    """Train cells of one plan as far as they are not on disk. Returns the training keys of those that were."""
    if cells and cells[0].plan.trained.together:
        return train_together(cells, workshop, progress)
    return {cell.training_key for cell in cells if train_one(cell, workshop, progress)[1]}


def train_together(cells: Sequence[Cell], workshop: Workshop, progress: Progress) -> set[str]:
    """Train the cells side by side, each as a whole in one worker. Returns the training keys of those that were on
    disk."""
    before = {c.training_key for c in cells if on_disk(c.training_folder, progress.say)}
    todo = list({c.training_key: c for c in cells if c.training_key not in before}.values())
    if not todo:
        return before
    sizes = [len(client.training_records) for client in workshop.federation.clients]
    methods = [method_of(cell, sizes) for cell in todo]  # what is wrong with one is said before any trains
    rounds, exam, executor = cells[0].plan.rounds, workshop.exam, workshop.executor
    blocks = [*range(BLOCK, rounds, BLOCK), rounds]
    with progress.stage(f"training {len(todo)} of {len(cells)} runs", len(todo) * len(blocks)) as advance:
        for until in blocks:
            jobs = [
                (
                    method,
                    schedule_of(cell),
                    exam,
                    cell.training_folder,
                    cell.training_description,
                    until,
                    cell.method,
                    progress.quiet,
                )
                for cell, method in zip(todo, methods, strict=True)
            ]
            for _ in executor.map(_train_block, jobs):
                advance()
    return before


def _train_block(bench: Bench, job: tuple[Any, ...]) -> None:
    """Train a run up to a round; the last block marks it as finished."""
    from fedaudit.machinery.executor import Executor
    from trainers.base import train

    method, schedule, exam, path, description, until, name, quiet = job
    say, folder = Progress(quiet=quiet).say, claim(path)
    with folder.lock(say), Executor(lambda: bench) as executor:
        if complete(folder, say):
            return
        folder.write_json("run.json", description)
        train(
            method, schedule, exam, folder=folder, executor=executor, say=say, advance=nothing,
            crowd=method.settings.crowd, until=until, name=name,
        )  # fmt: skip
        if until == schedule.rounds:
            finish(folder)
