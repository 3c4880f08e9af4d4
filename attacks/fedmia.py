"""FedMIA: the other clients of a round show how a model looks that never saw the record (Zhu et al. 2025).

Clients hold different records, so the other clients of a round show how values are distributed without training on the
record. We fit a Gaussian to them per record and round, and judge the target client's value x by the one-tailed
likelihood P(other < x) = Phi((x - mean) / std); the score is its mean over the observed rounds.

fedmia/2     FedMIA-II: x = the cosine of the client's update with the direction in which the record's loss falls
             fastest.
fedmia/1     FedMIA-I: x = -loss under the client's model right after its step.

Needs the server's view (uploads) with a second client in the round. If clients have different classes the others are no
fair sample: the score is then high for every record of the client's classes, and only the order among these is
informative.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, mean_of_finite


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("uploads",)
    signals = (("fedmia/2", "FedMIA-II", "FedMIA-II"), ("fedmia/1", "FedMIA-I", "FedMIA-I"))


@dataclass(frozen=True)
class Params:
    """FedMIA has no parameters."""


class FedMIA(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.rounds is None:
            raise ValueError("FedMIA needs what was seen of rounds")
        values = {"fedmia/2": knowledge.rounds.cosine, "fedmia/1": -knowledge.rounds.loss}
        return {name: all_for_one(value, knowledge.rounds.client) for name, value in values.items()}


def all_for_one(values: Floats, client: int) -> Floats:
    """Scores [n] of one client, 0 to 1, from values [T, K, n] of all, in which NaN marks clients that were away: the
    mean likelihood over rounds. Rounds without this client, or without any other, are left out; NaN if none is left.

    If the others agree exactly, or there is one only, the likelihood is its limit for no spread: 0, 1/2 or 1.
    """
    x, others = values[:, client], np.ma.masked_invalid(values)
    others[:, client] = np.ma.masked
    mean, std, low, high = (
        masked.filled(np.nan) for masked in (others.mean(1), others.std(1, ddof=1), others.min(1), others.max(1))
    )
    flat = low == high
    likelihood = np.where(flat, np.heaviside(x - low, 0.5), norm.cdf(x, mean, np.where(flat, 1, std)))  # [T, n]
    return mean_of_finite(likelihood)
