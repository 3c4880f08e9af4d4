"""A learner without a model, for tests of the loop, the methods and the views: two tensors a layer and arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedaudit.contracts.in_process import trained
from fedaudit.tasks.metrics import caption_scores
from fedaudit.trainers.base import State
from fedaudit.trainers.evaluations import Answers
from fedaudit.trainers.protocols import Bench, OneByOne
from fedaudit.trainers.transcript import Transcript

A, B = "layers.0.q.A", "layers.0.q.B"


def state(a: float, b: float) -> State:
    return {A: torch.full((1, 2), float(a)), B: torch.full((2, 1), float(b))}


@dataclass
class ToyLearner(OneByOne):
    """Adds `step` to every A and twice that to every B at each training, and a little that depends on the batches' generator."""

    noise: float = 0.0
    step: float = 1.0
    layers: int = 1
    trained: list[tuple[State, tuple[str, ...]]] = field(default_factory=list)
    remedy = "lower the step"
    settings = None  # it trains on all records

    def initial(self, generator: torch.Generator) -> State:
        start = float(torch.rand((), generator=generator))
        layers = [state(start, 0.0) for _ in range(self.layers)]
        return {name.replace("0", str(i)): t for i, layer in enumerate(layers) for name, t in layer.items()}

    def train(self, start, records, generator, model, left_out=()):
        model(start)  # whatever is trained must make an adapter
        self.trained.append((start, tuple(records)))
        jitter = self.noise * torch.rand((), generator=generator)
        return {name: t + self.step * (1 if name.endswith("A") else 2) + jitter for name, t in start.items()}

    def evaluate(self, start: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        return self.losses(start, records), ["a red circle"] * len(records)

    def losses(self, start: State, records: Sequence[str]) -> list[float]:
        return [float(start[A].sum())] * len(records)


EXAM = Answers([("a red circle",), ("a blue square",)], caption_scores)


def toy_run(path, method, *, schedule, noise=0.0, layers=1, stop_after=None, evaluation=EXAM) -> Transcript:
    """Train on the toy learner; client k has k + 1 records. `stop_after` raises KeyboardInterrupt after so many rounds."""
    rounds = itertools.count(1)

    def advance() -> None:
        if next(rounds) == stop_after:
            raise KeyboardInterrupt

    training = [[f"{k}-{i}" for i in range(k + 1)] for k in range(schedule.clients)]
    bench = Bench(ToyLearner(noise, layers=layers), training, ["x", "y"], ["z"])
    return trained(path, method, schedule, bench, evaluation=evaluation, advance=advance)
