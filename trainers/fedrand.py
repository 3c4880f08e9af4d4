"""FedRand: each client sends back only A or only B of its adapters, by a coin (Park et al. 2025, Algorithms 1 and 2).

Departs from the paper: in round 0 all clients start from the public A_0, where Algorithm 2 draws an A for each client.
Where the paper is silent: "the previous round" of eqs. 6 and 7 is a client's own last participation, as only some take
part in a round; at its first one its own half is the public A_0, or B = 0: a new random A would not fit the B that the
server has by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedaudit.machinery.parameters import Parameters, flag, number
from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, weighted_mean
from fedaudit.trainers.learners import MethodFacts


class Facts(MethodFacts):
    learner = "lora"
    title = "FedRand"


@dataclass(frozen=True)
class Params(Parameters):
    rho: float = number(0.5, "probability that a client chooses A rather than B", least=0, most=1)
    past: bool = flag(True, "keep the other half from the last participation (Table 3)")
    normalise: bool = flag(True, "divide by alpha and beta in eqs. 9 and 10 (Table 3)")


@dataclass(frozen=True)
class FedRand(Method[Participation]):
    params: Params

    @property
    def aggregation(self) -> str:
        return "mean" if self.params.normalise else "other"  # without eq. 8 weights sum to less than 1

    def update(self, server: State, own: State, client: Participation) -> Update:
        """Algorithm 2: a_k = 1 means A from the server, B its own; only the half from the server is sent back."""
        u = torch.rand((), generator=client.generator("coin")).item()
        chosen = "A" if u < self.params.rho else "B"  # eq. 5: a_k = 1 is A
        start = dict(server)
        if self.params.past:
            start |= {name: t for name, t in own.items() if half(name) != chosen}  # eqs. 6 and 7
        trained = client.train(start)
        sent = {name: t for name, t in trained.items() if half(name) == chosen}
        return Update(upload=sent, private=trained, facts={"half": chosen})  # line 12: A and B are kept

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        """Algorithm 1, lines 10-22: each half is averaged over its senders; one that nobody sent is unchanged."""
        m = sum(upload.records for upload in uploads)  # line 8
        result = dict(server)
        for which in ("A", "B"):
            senders = [upload for upload in uploads if upload.facts["half"] == which]
            if senders:
                share = sum(upload.records / m for upload in senders) if self.params.normalise else 1.0  # eq. 8
                weights = [upload.records / (share * m) for upload in senders]
                result |= weighted_mean([upload.state for upload in senders], weights)  # eqs. 9 and 10
        return result


def half(name: str) -> str:
    """ "A" or "B": the factor that a tensor is, from its name."""
    return name[-1]
