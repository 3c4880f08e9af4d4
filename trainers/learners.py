"""What the command must know of a learner before it imports it: the class `Facts` in the learner's file. Imports nothing heavy."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from fedaudit.machinery import plugins

USUAL = "lora"  # where a command names neither a method nor a task


@dataclass(frozen=True)
class LearnerFacts:
    """What a file of trainers/ says of what it trains; every field of its `Facts` has a default, which is what holds."""

    title: str  # of its methods: "LoRA"
    noun: str  # what it trains: "prompts"
    method: str  # the usual one, as on the command line; so are task and attack
    task: str
    attack: str
    rounds: int
    clients: int
    per_round: int | None  # None: all
    threat_models: tuple[str, ...]
    audits: tuple[str, ...]  # beside membership
    backbone: str  # "vlm" or "clip"
    unattacked: bool  # can be audited without an attack
    alone: tuple[str, ...]  # attacks of which a run takes one: the usual one does all that the others do
    private: bool  # its methods can be noised
    shadows: bool  # shadow models can be trained
    texts: bool  # its records are several tokens, not one class
    together: bool  # trainings run side by side, a worker each; else one by one, their clients in workers


def facts(learner: str) -> LearnerFacts:
    """Of the learner in trainers/`learner`.py."""
    folder = plugins.package_folder("trainers")
    return typing.cast(LearnerFacts, plugins.dataclass_of(folder / f"{learner}.py", "Facts")())
