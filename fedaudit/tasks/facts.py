"""What a task's file says of the task: its class `Facts`, read without importing it. Imports nothing heavy."""

from __future__ import annotations

from fedaudit.machinery.plugins import Plugins


class TaskFacts:
    """What holds of a task whose file says nothing else."""

    learner: str = "lora"
    """The module of trainers/ whose methods are usual for it."""


TASKS = Plugins("task", "fedaudit.tasks", TaskFacts)
