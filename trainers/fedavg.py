"""FedAvg: every client trains the broadcast adapters and sends all of them back (McMahan et al. 2017).

The server averages by n_k (FedRand, eqs. 1-4); FedRand's tables call this the oracle. The server sees all that a client
trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, mean_by_records
from fedaudit.trainers.learners import MethodFacts


class Facts(MethodFacts):
    learner = "lora"
    title = "FedAvg"


@dataclass(frozen=True)
class Params:
    """FedAvg has no parameters of its own."""


@dataclass(frozen=True)
class FedAvg(Method[Participation]):
    params: Params

    def update(self, server: State, own: State, client: Participation) -> Update:
        trained = client.train(server)
        return Update(upload=trained, private=trained)

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return mean_by_records(uploads)
