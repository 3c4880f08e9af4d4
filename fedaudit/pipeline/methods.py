"""Makes the method, the schedule and the transcript of a cell."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.store import claim
from fedaudit.pipeline.plan import Cell

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.trainers.base import Method, Schedule
    from fedaudit.trainers.steps import PrivateMethod
    from fedaudit.trainers.transcript import Transcript


def method_of(cell: Cell, sizes: Sequence[int] = ()) -> Method[Any]:
    """The method of a cell, with its parameters. Its noise, if it has any, is left out unless `sizes`, the number of
    records of each client, are given. AssertionError: it is somebody's own run."""
    assert cell.variant is not None
    if cell.variant.privacy is None:
        return cell.variant.plugin.make(cell.variant.params)
    made: PrivateMethod[Any] = cell.variant.plugin.make(cell.variant.params, settings=settings_of(cell))
    return made.protected(cell.variant.privacy, schedule_of(cell), sizes) if sizes else made


def settings_of(cell: Cell) -> DataclassInstance:
    """The plan's settings as an instance of the learner's own class."""
    learner = importlib.import_module(f"fedaudit.trainers.{cell.plan.learner}")
    settings: DataclassInstance = learner.Settings(**dataclasses.asdict(cell.plan.settings))
    return settings


def schedule_of(cell: Cell) -> Schedule:
    from fedaudit.trainers.base import Schedule

    plan = cell.plan
    return Schedule(plan.rounds, plan.clients, plan.per_round, cell.seed, newcomers=plan.newcomers)


def transcript_of(cell: Cell) -> Transcript:
    """The reader of what a cell's training (finished or not) has written."""
    from fedaudit.trainers.transcript import Transcript

    folder, schedule = claim(cell.training_folder), schedule_of(cell)
    return Transcript.of(folder, schedule, method_of(cell)) if cell.variant else Transcript(folder, schedule)
