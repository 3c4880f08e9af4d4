"""Source inference: the client that owns a record has the model that fits it best (Hu et al., ICDM 2021).

With the same prior for all clients, the posterior of "client k owns it" rises as the loss under its local model falls.
The score is log (e^(-loss_target) / sum_k e^(-loss_k)), over the clients of a round, averaged over the observed rounds;
`attribution` gives the most probable owner, `record_owner` also the number of clients that were compared.

Needs the server's view (uploads). If clients have different classes the label alone tells the owner, so that a right
attribution is no leak: compare members with held-out records of the same client.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, Rounds, mean_of_finite


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("uploads",)
    signals = (("source", "source inference", "source inference"),)


@dataclass(frozen=True)
class Params:
    """Source inference has no parameters."""


class Source(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.rounds is None:
            raise ValueError("source inference needs what was seen of rounds")
        return {"source": log_posterior(knowledge.rounds)[knowledge.rounds.client]}


def log_posterior(rounds: Rounds) -> Floats:
    """log P(client k owns the record) [K, n] in nats, for K clients and n records, averaged over k's rounds; NaN if
    client k never sent anything."""
    fit = np.where(np.isnan(rounds.loss), -np.inf, -rounds.loss)
    logs = -rounds.loss - logsumexp(fit, axis=1, keepdims=True)  # [T, K, n]
    return mean_of_finite(logs)


def attribution(rounds: Rounds) -> NDArray[np.int64]:
    """Number [n] of the most probable owner of each record, the first of equals; -1 if no client sent anything."""
    logs = log_posterior(rounds)
    sent = ~np.isnan(logs)
    return np.where(sent.any(0), np.where(sent, logs, -np.inf).argmax(0), -1)


def record_owner(rounds: Rounds) -> dict[str, NDArray[np.int64]]:
    """Columns of the table of records: "owner" [n], see `attribution`, and "owners" [n], the number of clients
    compared."""
    return {"owner": attribution(rounds), "owners": (~np.isnan(log_posterior(rounds))).sum(0)}
