"""Source inference: the client that owns a record has the model that fits it best (Hu et al., ICDM 2021).

With the same prior for all clients, the posterior of "client k owns it" rises as the loss under its local model falls.
The score is log (e^(-loss_target) / sum_k e^(-loss_k)), over the clients of a round, averaged over the observed rounds;
`attribution` names the most probable owner, `whose` also among how many clients it was looked for.

Needs the server's view (uploads). Where clients have different classes the label alone names the owner, so that
attributing a record to it is no leak: what counts are members against held-out records of the same client.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge, Rounds


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("uploads",)
    signals = (("source", "source inference", "source inference"),)


@dataclass(frozen=True)
class Params:
    """Source inference has no parameters."""


class Source:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.rounds is None:
            raise ValueError("source inference needs what was seen of rounds")
        return {"source": log_posterior(seen.rounds)[seen.rounds.client]}


def log_posterior(rounds: Rounds) -> Floats:
    """log P(client k owns the record) [K, n] in nats, a mean over the rounds in which it sent something; nan if it
    never did."""
    fit = np.where(np.isnan(rounds.loss), -np.inf, -rounds.loss)
    logs = -rounds.loss - logsumexp(fit, axis=1, keepdims=True)  # [T, K, n]
    found: Floats = np.ma.masked_invalid(logs).mean(0).filled(np.nan)
    return found


def attribution(rounds: Rounds) -> NDArray[np.int64]:
    """The most probable owner of each record [n], the first of equals; -1 where no client sent anything."""
    logs = log_posterior(rounds)
    known = ~np.isnan(logs)
    return np.where(known.any(0), np.where(known, logs, -np.inf).argmax(0), -1)


def whose(rounds: Rounds) -> dict[str, NDArray[np.int64]]:
    """What a report says of each record [n]: its most probable "owner", and how many "owners" are told apart."""
    return {"owner": attribution(rounds), "owners": (~np.isnan(log_posterior(rounds))).sum(0)}
