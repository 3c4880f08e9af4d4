"""A learner without a model, for tests of the loop, the methods and the views: two tensors and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedaudit.executor import Executor
from fedaudit.store import Folder, claim
from trainers.base import Bench, Schedule, State, Transcript, train

A, B = "layers.0.q.A", "layers.0.q.B"


def state(a: float, b: float) -> State:
    return {A: torch.full((1, 2), float(a)), B: torch.full((2, 1), float(b))}


@dataclass
class ToyLearner:
    """Adds one to A and two to B at each training, and a little that depends on the batches' generator."""

    noise: float = 0.0
    trained: list[tuple[State, tuple[str, ...]]] = field(default_factory=list)

    def initial(self, generator: torch.Generator) -> State:
        return state(float(torch.rand((), generator=generator)), 0.0)

    def train(self, start: State, records: Sequence[str], generator: torch.Generator) -> State:
        self.trained.append((start, tuple(records)))
        jitter = self.noise * torch.rand((), generator=generator)
        return {A: start[A] + 1 + jitter, B: start[B] + 2 + jitter}

    def evaluate(self, start: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        return [float(start[A].sum())] * len(records), ["a red circle"] * len(records)


REFERENCES = [("a red circle",), ("a blue square",)]


def toy_run(path, method, *, schedule: Schedule, noise: float = 0.0, stop_after: int | None = None) -> Transcript:
    """Train on the toy learner; client k has k + 1 records. `stop_after` raises KeyboardInterrupt after so many rounds."""
    rounds = 0

    def advance() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == stop_after:
            raise KeyboardInterrupt

    training = [[f"{k}-{i}" for i in range(k + 1)] for k in range(schedule.clients)]
    folder: Folder = claim(path)
    with Executor(lambda: Bench(ToyLearner(noise), training, ["x", "y"])) as executor:
        return train(method, schedule, REFERENCES, folder=folder, executor=executor, say=print, advance=advance)
