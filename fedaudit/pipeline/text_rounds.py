"""What adversaries of trainings on texts know of rounds beside the models that they attack: losses under
broadcasts, and what a server computes of messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from attacks.adapter_messages import Heard, hear, joined
from attacks.attacked_models import Model, listened
from attacks.base import View
from attacks.knowledge import Floats, Rounds
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.workers import Attackers
from fedaudit.terms.held_models import BASE, BEFORE, BEST_UTILITY, FINAL, ROUND
from fedaudit.terms.threat_models import SERVER
from trainers.base import AdaptedModel, AttackBench

RELEASED = (FINAL, BEST_UTILITY)  # of the released models those that are attacked


@dataclass(frozen=True)
class HearJob:
    """A round of a client, and the records that the server asks about it."""

    view: View
    client: int
    round: int
    records: Sequence[str]
    messages: bool


def hear_round(bench: AttackBench, job: HearJob) -> Heard:
    """In a worker."""
    assert isinstance(bench.learner, AdaptedModel)
    return hear(job.view, bench.learner, job.client, job.round, job.records, messages=job.messages)


@dataclass(frozen=True)
class Seen:
    """What is known of rounds about the records that a model is asked about; see `Knowledge`."""

    history: Floats | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True)
class OverRounds:
    """What the attacks on one training ask of its rounds, and what came of it."""

    views: Mapping[str, View]
    most: int  # rounds that are observed, evenly spaced
    messages: bool  # whether messages are looked at, not only the clients' own states
    losses: pd.DataFrame = field(default_factory=pd.DataFrame)  # row per record, column per rounds a broadcast has seen
    heard: dict[tuple[int, int], Heard] = field(default_factory=dict)  # by client and round

    def concerns(self, model: Model) -> bool:
        """Whether more is known of a model than what it answers."""
        return model.way not in (BASE, ROUND, BEFORE) and (model.client is not None or model.way in RELEASED)

    def after(self, tables: Mapping[int, pd.DataFrame]) -> OverRounds:
        """With the facts of all broadcasts by the rounds that they have seen, 0 = the public start."""
        return dataclasses.replace(self, losses=pd.DataFrame({r: tables[r].loss for r in sorted(tables)}))

    def listen(self, held: Sequence[Model], attackers: Attackers, progress: Progress) -> None:
        """Compute what the server knows of the clients whose models are among those."""
        clients = sorted({m.client for m in held if m.threat_model == SERVER and m.client is not None})
        todo = [(k, r) for k in clients for r in self._turns(k) if (k, r) not in self.heard]
        if todo:
            view = self.views[SERVER]
            jobs = (HearJob(view, k, r, self._asked(k), self.messages) for k, r in todo)
            with progress.stage(f"what the server computes of {len(todo)} messages", len(todo)) as advance:
                for place, found in zip(todo, attackers.map(hear_round, jobs), strict=True):
                    self.heard[place] = found
                    advance()

    def seen(self, model: Model, records: Sequence[str]) -> Seen:
        """What an adversary that holds the model knows of some of the records that it is asked about."""
        if not self.concerns(model):
            return Seen()
        if model.threat_model == SERVER:
            return Seen(rounds=self._rounds(model, records))
        until = model.round if model.client is None else self.views[model.threat_model].rounds
        columns = [r for r in self.losses if r <= until]
        return Seen(history=self.losses[columns].reindex(list(records)).to_numpy().T)

    def _rounds(self, model: Model, records: Sequence[str]) -> Rounds | None:
        assert model.client is not None
        if not (heard := [self.heard[model.client, r] for r in self._turns(model.client)]):
            return None
        return joined(model.client, model.way, heard).about(self._asked(model.client), records)

    def _turns(self, client: int) -> list[int]:
        return listened(self.views[SERVER], client, self.most)

    def _asked(self, client: int) -> list[str]:
        """Those that could be its own."""
        candidates = self.views[SERVER].candidates
        return [*candidates.clients[client], *candidates.reference[client]]
