"""Contents: a client's first message is solved for the classes and picture embeddings of its batch; no candidates.

No record of the client is needed: known non-members of its distribution say which embeddings are likely. What was
solved is then looked up, by whoever has pictures: in a public data set, or among candidates.
docs/benchmarks/attacks-on-prompts.md tells how often the true picture comes first among all of a data set. Pixels
themselves are not found: a picture made of the gradient is noise (a peak signal-to-noise ratio of 10 dB).

contents    the largest cosine between the record's picture embedding and a solved one of the record's class; -1 if
            there is none.

Only the first message of a client is looked at, and records of later batches are not in it: as a test of membership
it is weak where a client has many batches. It needs the server's view (uploads), and a message that is the mean of the
gradients of one step.

Source: this is ours. That a message tells the classes of its batch: Wainakh et al. 2022 (LLG).
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge


class Facts(AttackFacts):
    records = ("classes",)
    needs = ("uploads",)
    contents = True
    signals = (("contents", "contents", "the cosine with a picture solved from the first message"),)


@dataclass(frozen=True)
class Params:
    """The attack has no parameters."""


class Contents(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        solved, pictures = knowledge.contents, knowledge.embeddings
        if solved is None or pictures is None:
            return {"contents": np.full(len(knowledge.records), np.nan)}
        same = knowledge.labels[:, None] == solved.labels
        return {"contents": np.where(same, pictures @ solved.embeddings.T, -1.0).max(axis=1)}
