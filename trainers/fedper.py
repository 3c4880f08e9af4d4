"""FedPer: only the adapters of the top layers are shared (Arivazhagan et al. 2019; FedRand, section 4.1 and A.3).

In the first round clients upload every layer, and all clients' own layers start from the aggregate ("to ensure
training stability"): that round shows the server whole models. In later rounds only the top layers are sent; a client
that takes part for the first time also receives the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, whole
from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, mean_by_records
from fedaudit.trainers.learners import MethodFacts


class Facts(MethodFacts):
    learner = "lora"
    title = "FedPer"


@dataclass(frozen=True)
class Params(Parameters):
    shared_layers: int = whole(2, "top layers whose adapters are shared (the paper: 2 or 4)", least=1, most=1000)


@dataclass(frozen=True)
class FedPer(Method[Participation]):
    params: Params

    def download(self, server: State, client: Participation) -> State:
        return self.top(server) if personal(client) else server

    def update(self, server: State, own: State, client: Participation) -> Update:
        trained = client.train(own | server if personal(client) else server)
        first = client.round == 0
        upload = trained if first else self.top(trained)
        return Update(upload=upload, private=trained, facts={"layers": "all" if first else "shared"})

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return server | mean_by_records(uploads)

    def top(self, state: State) -> State:
        """The adapters of the top `shared_layers` layers; InputError if `state` has fewer."""
        depth = 1 + max(layer(name) for name in state)
        if self.params.shared_layers > depth:
            raise InputError(f"--shared-layers {self.params.shared_layers}: the language model has {depth} layers")
        return {name: t for name, t in state.items() if layer(name) >= depth - self.params.shared_layers}


def personal(client: Participation) -> bool:
    """Whether a client has layers of its own: it took part in a round after the first one."""
    return any(r > 0 for r in client.earlier_rounds)


def layer(name: str) -> int:
    """Index from the bottom of a tensor's layer: the first number in its name."""
    return next(int(part) for part in name.split(".") if part.isdigit())
