"""Gradient alignment: a client's update points where the records that it trained on want to go.

Per round we take the cosine of the target client's update with the direction in which the record's loss falls fastest,
in the model from which the client started (the cosine attack of Li et al., "Effective passive membership inference
attacks in federated learning against overparameterized models", ICLR 2023). A record is in the batches of few rounds.

cosine/mean  mean over all observed rounds.
cosine/max   the largest of them.

Needs the server's view; a clustering server takes the mean update of a cluster for each of its clients. Compare members
with held-out records of the same client: all records of its classes align with its updates.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("sums of uploads",)
    signals = (
        ("cosine/mean", "update cosine, mean", "the cosine with the client's updates"),
        ("cosine/max", "update cosine, max", "the largest cosine with the client's updates"),
    )


@dataclass(frozen=True)
class Params:
    """The cosine attack has no parameters."""


class Cosine(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.rounds is None:
            raise ValueError("the cosine attack needs what was seen of rounds")
        cosine = np.ma.masked_invalid(knowledge.rounds.cosine[:, knowledge.rounds.client])  # [T, n]
        return {"cosine/mean": cosine.mean(0).filled(np.nan), "cosine/max": cosine.max(0).filled(np.nan)}
