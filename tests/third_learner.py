"""Linear heads: what clients of a third learner train, one matrix on the frozen features of CLIP's images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedaudit.backbones.clip import load
from fedaudit.machinery.store import claim
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL, SERVER
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.learners import LearnerFacts
from fedaudit.trainers.protocols import OneByOne


class Facts(LearnerFacts):
    title = "head"
    noun = "linear heads"
    method = "fedheads"
    task = "glyphs"
    attack = "loss"
    rounds = 3
    clients = 3
    per_round = None
    threat_models = (RELEASED_MODEL, SERVER, OWNER)
    backbone = "clip"
    records = "classes"


@dataclass(frozen=True)
class Settings:
    rate: float = field(default=5.0, metadata={"help": "learning rate"})
    steps: int = field(default=100, metadata={"help": "local steps"})


class Learner(OneByOne):
    remedy = "lower --rate"

    def __init__(self, features: Any, labels: dict[str, int], classes: int, settings: Settings) -> None:
        self.rows, self.of, self.classes, self.settings = features.rows, labels, classes, settings

    def initial(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"head": torch.zeros(self.classes, self.rows(list(self.of)[:1]).shape[1])}

    def train(
        self, state: Any, records: Any, generator: Any, model: Any, left_out: Any = ()
    ) -> dict[str, torch.Tensor]:
        head = state["head"].clone().requires_grad_()
        weights = torch.tensor([float(record not in left_out) for record in records])
        for _ in range(self.settings.steps):
            logits = 10 * self.rows(records) @ head.T
            loss = (weights * torch.nn.functional.cross_entropy(logits, self.labels(records), reduction="none")).mean()
            (gradient,) = torch.autograd.grad(loss, head)
            head = (head - self.settings.rate * gradient).detach().requires_grad_()
        return {"head": head.detach()}

    def labels(self, records: Any) -> torch.Tensor:
        return torch.tensor([self.of[record] for record in records])

    def log_probs(self, method: Any, models: Any, records: Any) -> Any:
        logits = torch.stack([10 * self.rows(records) @ model["head"].T for model in models])
        return logits.double().log_softmax(-1).numpy()

    def untrained(self, records: Any) -> Any:
        return self.log_probs(None, [self.initial(torch.Generator())], records)[0]

    def recognised(self, models: Any, records: Any, method: Any) -> Any:
        return self.log_probs(method, models, records).argmax(-1) == self.labels(records).numpy()


def prepared(resources: Any, federation: Any, methods: Any, progress: Any) -> Learner:
    records, number = list(federation.records.values()), {name: i for i, name in enumerate(federation.classes)}
    features = load(resources.backbone).encode(records, claim(resources.cache), say=progress.say)
    return Learner(features, {r.id: number[r.group] for r in records}, len(number), resources.settings)


def evaluation(plan: Any, federation: Any) -> Recognition:
    local = [[r.group in client.classes for r in federation.test] for client in federation.clients]
    return Recognition(np.array(local))
