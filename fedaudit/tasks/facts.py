"""Statements of a task's file about it: its class `Facts`, read without importing the file. Imports nothing heavy."""

from fedaudit.machinery.plugins import Plugins


class TaskFacts:
    """Defaults for a task whose file states nothing else."""

    learner: str = "lora"
    """The module of trainers/ whose methods train this task by default."""


TASKS = Plugins("task", "fedaudit.tasks", TaskFacts)
