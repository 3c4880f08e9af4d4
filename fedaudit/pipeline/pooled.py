"""Questions about sums over all users that a computation on secret shares reveals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.attacks.answers import Arrays
from fedaudit.attacks.attacked_models import records_digest
from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import PooledSum
from fedaudit.attacks.messages.distances import from_distances
from fedaudit.attacks.messages.pooled import pooled_sums, start_gradients, told_distances, user_vectors
from fedaudit.pipeline.questions import ModelWorker, StoredQuestion
from fedaudit.trainers.prompts import Learner


@dataclass(frozen=True)
class PooledQuestion(StoredQuestion):
    """Asks what revealed sums over all users say of one user's candidates. A part per sum, with the fields of a
    `PooledSum`; none if the view does not see it."""

    view: View
    client: int
    candidates: Sequence[str]

    @property
    def name(self) -> str:
        return f"pooled-{self.view.threat_model}-{self.client:03d}-{records_digest(tuple(self.candidates))}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"gradients": len(self.candidates) / target_records}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        learner, view = worker.bench.learner, self.view
        assert isinstance(learner, Learner)

        def gradients() -> Any:  # the same for all adversaries
            key = "start gradients", self.client, self.folder
            return worker.cached(key, lambda: start_gradients(view, worker.method, learner, self.candidates))

        def vectors() -> Any:
            key = "user vectors", self.view.threat_model, self.folder
            return worker.cached(key, lambda: user_vectors(view, worker.method, learner, worker.bench.candidates))

        sums = pooled_sums(view, worker.method, learner.labels(self.candidates).cpu(), gradients)
        if users := vectors():
            sums["distances"] = from_distances(users, told_distances(view), self.client)
        return {part: sums[part].arrays() if part in sums else {} for part in self.parts}

    def sums(self) -> dict[str, PooledSum]:
        """The sums that the view sees, by name."""
        return {part: PooledSum(**arrays) for part in self.parts if (arrays := self.read(part))}
