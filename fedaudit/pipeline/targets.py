"""Whom adversaries attack, and who really trained on what: the truth that reaches audits, and no attack."""

from __future__ import annotations

import numpy as np

from attacks.attacked_models import OTHERS, Target
from attacks.questions.kinds import KINDS
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.tasks.base import Federation


def targets_of(cell: Cell, federation: Federation) -> list[Target]:
    """What the adversaries ask about each target; behind them, of nobody, records of another distribution, where there
    are any. The sample of other clients' records is drawn at random."""
    found = []
    for k in cell.targets:
        client = federation.clients[k]
        others = _others(cell, federation, k) if KINDS[cell.plan.trained.records].others else []
        complete = not client.background and not client.canaries
        found.append(Target(k, client.candidates, [r.id for r in client.reference], others, complete))
    nobody = [Target(None, [r.id for r in federation.novel], ())] if federation.novel else []
    return found + nobody


def _others(cell: Cell, federation: Federation, client: int) -> list[str]:
    rest = [
        r.id for j, other in enumerate(federation.clients) if j != client for r in (*other.records, *other.reference)
    ]
    drawn = np.random.default_rng((cell.plan.seed, 13, client)).permutation(len(rest))[:OTHERS]
    return [rest[i] for i in sorted(drawn)]


def trained_on(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The records that a client really took a step on: those that were in a batch with weight."""
    holder = federation.clients[client]
    method = method_of(cell, federation.sizes)
    rounds = transcript_of(cell).participations(client)
    listed = [r.id for r in holder.training_records]
    return method.messages.used_records(listed, client=client, seed=cell.seed, rounds=rounds) - holder.left_out


def shared_of(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The records that a client gave to others as they are, with weight."""
    holder = federation.clients[client]
    if not transcript_of(cell).participations(client):
        return set()
    listed = [r.id for r in holder.training_records]
    messages = method_of(cell, federation.sizes).messages
    return messages.shared_records(listed, client=client, seed=cell.seed) - holder.left_out
