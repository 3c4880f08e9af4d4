"""FedPara: a shared and a private pair of factors, joined by the Hadamard product (Hyeon-Woo et al. 2022; FedRand A.3).

Only the shared pair is sent and averaged. Two forms, `s` being the LoRA scale alpha / rank:

- `personal` (default), as in pFedPara: W = W0 + s (B A) o (1 + B' A'). The server's model is W0 + s B A.
- `product`, FedRand's text taken literally: W = W0 + s (B A) o (B' A') of two standard LoRA pairs. Both start with B =
  B' = 0, so that the product's gradient with respect to each of the four factors is zero: it never trains. The option
  exists to show this.

The private A' starts like any LoRA A, uniform in +-1/sqrt(in); each client draws its own. In the personal form B' is
uniform in +-1/sqrt(rank): from zero, A' would have no gradient before the third step. B = 0 is enough to start at the
public model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, choice
from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, mean_by_records
from fedaudit.trainers.learners import MethodFacts

OWN = ".own"  # marks the private pair: layers.0.self_attn.q_proj.own.A


class Facts(MethodFacts):
    learner = "lora"
    title = "FedPara"


@dataclass(frozen=True)
class Params(Parameters):
    form: str = choice("personal", "personal trains, product does not (see the docs)", ("personal", "product"))


@dataclass(frozen=True)
class FedPara(Method[Participation]):
    params: Params

    def update(self, server: State, own: State, client: Participation) -> Update:
        pair = {name: t for name, t in own.items() if OWN in name} or self.private_pair(server, client)
        trained = client.train(server | pair, self.model)
        return Update(upload={name: t for name, t in trained.items() if OWN not in name}, private=trained)

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return mean_by_records(uploads)

    def model(self, state: State) -> State:
        """A plain adapter, A and B per layer, that computes exactly the same: (B A) o (B' A') has rank r^2, and its
        factors are row- and column-wise products. States without a private pair are returned as they are."""
        plain: State = {}
        for layer in sorted({name[:-2] for name in state if OWN not in name}):
            a, b = state[f"{layer}.A"], state[f"{layer}.B"]
            if f"{layer}{OWN}.A" in state:
                a2, b2 = state[f"{layer}{OWN}.A"], state[f"{layer}{OWN}.B"]
                product_a, product_b = hadamard_factors(a, b, a2, b2)
                personal = self.params.form == "personal"
                a = torch.cat([a, product_a]) if personal else product_a
                b = torch.cat([b, product_b], dim=1) if personal else product_b
            plain |= {f"{layer}.A": a, f"{layer}.B": b}
        return plain

    def private_pair(self, server: State, client: Participation) -> State:
        """The factors A' and B' with which a client's first participation starts, drawn at random, as LAYER.own.A and
        LAYER.own.B."""
        generator, pair = client.generator("private pair"), {}
        for name, t in sorted(server.items()):
            width = t.shape[1] ** 0.5  # A is [rank, in], B is [out, rank]
            draw = (2 * torch.rand(t.shape, generator=generator) - 1) / width
            zero = self.params.form == "product" and name.endswith(".B")
            pair[f"{name[:-2]}{OWN}{name[-2:]}"] = torch.zeros_like(t) if zero else draw
        return pair


def hadamard_factors(a: Tensor, b: Tensor, a2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """A* [r r', in] and B* [out, r r'] with B* A* = (B A) o (B' A')."""
    return torch.einsum("ri,si->rsi", a, a2).flatten(0, 1), torch.einsum("or,os->ors", b, b2).flatten(1)
