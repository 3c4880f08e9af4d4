"""Which clients and records are attacked, and which records were really trained on; the latter reaches audits only."""

from __future__ import annotations

import numpy as np

from fedaudit.attacks.attacked_models import OTHERS, Target
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.pipeline.methods import method_of, settings_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.tasks.base import Federation
from fedaudit.trainers.base import Participation
from fedaudit.trainers.steps import PrivateMethod


def targets_of(cell: Cell, federation: Federation) -> list[Target]:
    """The attacked clients, each with the records that are asked about. If the task has records of another
    distribution, a last target without client holds these."""
    targets = []
    for k in cell.targets:
        client = federation.clients[k]
        others = _others(cell, federation, k) if KINDS[cell.plan.trained.records].others else []
        complete = not client.background and not (client.canaries and client.weightless)
        targets.append(Target(k, client.candidates, [r.id for r in client.reference], others, complete))
    no_client = [Target(None, [r.id for r in federation.novel], ())] if federation.novel else []
    return targets + no_client


def _others(cell: Cell, federation: Federation, client: int) -> list[str]:
    """The ids of a random sample of at most `OTHERS` records of other clients."""
    rest = [
        r.id for j, other in enumerate(federation.clients) if j != client for r in (*other.records, *other.reference)
    ]
    drawn = np.random.default_rng((cell.plan.seed, 13, client)).permutation(len(rest))[:OTHERS]
    return [rest[i] for i in sorted(drawn)]


def trained_records(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The ids of the records that a client really trained on: those that were in a batch, with a weight above 0."""
    holder = federation.clients[client]
    method = method_of(cell, federation.sizes)
    rounds = transcript_of(cell).participations(client)
    listed = [r.id for r in holder.training_records]
    used = method.messages.used_records(
        listed, client=client, seed=cell.seed, rounds=rounds, settings=settings_of(cell)
    )
    return used - holder.left_out


def batch_of(cell: Cell, federation: Federation, client: int, r: int) -> set[str]:
    """The records of a client's batches in round r, with a weight above 0."""
    holder, method = federation.clients[client], method_of(cell, federation.sizes)
    assert isinstance(method, PrivateMethod)
    listed, before = [record.id for record in holder.training_records], transcript_of(cell).participations(client, r)
    turn = Participation(client, r, cell.seed, listed, None, before)
    return {record for step in range(method.steps(len(listed))) for record in method.minibatch(turn, step)} - (
        holder.left_out
    )


def shared_of(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The ids of the records that a client sent to others unchanged, with a weight above 0; empty if it never took
    part."""
    holder = federation.clients[client]
    if not transcript_of(cell).participations(client):
        return set()
    listed = [r.id for r in holder.training_records]
    messages = method_of(cell, federation.sizes).messages
    return messages.shared_records(listed, client=client, seed=cell.seed) - holder.left_out
