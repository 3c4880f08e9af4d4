"""Questions about sums over all users that a computation on secret shares reveals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attacks.answers import Arrays
from attacks.attacked_models import records_digest
from attacks.base import View
from attacks.knowledge import PooledSum
from attacks.messages.pooled import pooled_sums
from fedaudit.pipeline.questions import ModelWorker, StoredQuestion


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
        found = pooled_sums(self.view, worker.method, worker.bench.learner, self.candidates)
        return {part: found[part].arrays() if part in found else {} for part in self.parts}

    def sums(self) -> dict[str, PooledSum]:
        """The sums that the view sees, by name."""
        return {part: PooledSum(**arrays) for part in self.parts if (arrays := self.read(part))}
