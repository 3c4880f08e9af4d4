"""Scaled broadcast: a server that acts sends one global prompt many times too long, and reads each client's batch.

What hides a batch from an honest server is that it does not know where a client starts: a local part p_L that it never
sees, moved by noise. In p_G + p_L a p_G that is 10,000 times as long drowns p_L, and the layer norms of the text
encoder take the scale away again. So the gradients at the scaled p_G are known, whatever p_L is, and the client's
answer is solved for its records as in `decompose`. A noise that the server adds itself does not protect against it;
noise that the client adds to what it sends does. One round is enough, any.

scaled    the record's share of the client's answer.

Servers that send models of their own making are known from other networks (Boenisch et al. 2023, "When the curious
abandon honesty"; Wen et al. 2022, "Fishing for user data"). The scaled prompt is ours.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.attacks.probes import Probe
from fedaudit.attacks.settings import Probing
from fedaudit.machinery.parameters import number


class Facts(AttackFacts):
    records = ("classes",)
    strength = 5
    needs = ("probes",)
    mixtures = True
    signals = (("scaled", "scaled broadcast", "the share of the client's answer to a scaled broadcast"),)


@dataclass(frozen=True)
class Params(Probing):
    probe_scale: float = number(1e4, "factor of the global prompt that an active server sends", least=1.0, most=1e8)


class Scaled:
    def __init__(self, params: Params) -> None:
        self.params = params

    def craft(self, view: View) -> Probe:
        r = (self.params.probe_round or view.rounds) - 1
        return Probe(r, {name: self.params.probe_scale * tensor for name, tensor in view.broadcast(r).items()})

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        scores = np.full(len(knowledge.records), np.nan)
        if (mixture := knowledge.probed.get("scaled")) is not None:
            shares = solve(mixture).shares
            scores[: len(shares)] = np.abs(shares)
        return {"scaled": scores}
