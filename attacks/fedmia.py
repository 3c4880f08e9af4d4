"""FedMIA: the other clients of a round show how a model looks that never saw the record (Zhu et al. 2025).

Clients hold different records, so the values of the other clients in the same round are a sample of "not trained on
it". Per record and round they give a Gaussian, and the target client's value x its one-tailed likelihood P(other < x) =
Phi((x - mean) / std); the score is its mean over the observed rounds.

fedmia/2     FedMIA-II: x = the cosine of the client's update with the direction in which the record's loss falls
             fastest.
fedmia/1     FedMIA-I: x = -loss under the client's model right after its step.

Needs the server's view (uploads) with a second client in the round. Where clients have different classes the others are
no fair sample: the score is then high for every record of the client's classes, and only its order among these says
something.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("uploads",)
    signals = (("fedmia/2", "FedMIA-II", "FedMIA-II"), ("fedmia/1", "FedMIA-I", "FedMIA-I"))


@dataclass(frozen=True)
class Params:
    """FedMIA has no parameters."""


class FedMIA:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.rounds is None:
            raise ValueError("FedMIA needs what was seen of rounds")
        values = {"fedmia/2": seen.rounds.cosine, "fedmia/1": -seen.rounds.loss}
        return {name: all_for_one(value, seen.rounds.client) for name, value in values.items()}


def all_for_one(values: Floats, client: int) -> Floats:
    """Scores [n] of values [T, K, n]: nan entries are clients that were away; a round with the target or all others
    away is left out.

    Others that agree exactly, or a single one, have no spread: the likelihood is then that of the limit, 0, 1/2 or 1.
    """
    x, others = values[:, client], np.ma.masked_invalid(values)
    others[:, client] = np.ma.masked
    mean, std, low, high = (
        found.filled(np.nan) for found in (others.mean(1), others.std(1, ddof=1), others.min(1), others.max(1))
    )
    flat = low == high
    likelihood = np.where(flat, np.heaviside(x - low, 0.5), norm.cdf(x, mean, np.where(flat, 1, std)))  # [T, n]
    found: Floats = np.ma.masked_invalid(likelihood).mean(0).filled(np.nan)
    return found
