"""Statements of a task's file about it: its class `Facts`, read without importing the file. Imports nothing heavy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin, Plugins

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class TaskFacts:
    """Defaults for a task whose file states nothing else."""

    learner: str = "lora"
    """The module of trainers/ whose methods train this task by default."""
    own_files: bool = False
    """Whether it reads the user's own files, with a function `clients_in(params, usual)`: the number of clients that
    fits them."""


TASKS = Plugins("task", "fedaudit.tasks", TaskFacts)


def clients_of(task: Plugin[TaskFacts], params: DataclassInstance, usual: int) -> int:
    """The number of clients that fits a task's own files; `usual` for other tasks, and for files that cannot be read:
    what is wrong with them is said when the records are drawn."""
    if not task.facts.own_files:
        return usual
    try:
        clients: int = importlib.import_module(task.module).clients_in(task.own(params), usual)
    except InputError:
        return usual
    return clients
