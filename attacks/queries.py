"""From a view to `Knowledge`: the adversary asks its model, and its shadows, about the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.base import View
from attacks.knowledge import Floats, Knowledge, Shadows
from attacks.replay import Messages, history_of
from trainers.base import Classifier, Method, State

Norms = Callable[[State], Floats]  # of each record's gradient in a model, [n]


@dataclass(frozen=True)
class Target:
    """Whom an adversary attacks, and the records that it asks about."""

    client: int
    candidates: Sequence[str]  # its members and held-out records, canaries at the end; unlabelled
    reference: Sequence[str]  # known non-members of the same distribution
    others: Sequence[str]  # records of other clients

    @property
    def records(self) -> tuple[str, ...]:
        return (*self.candidates, *self.reference, *self.others)


def attacked_model(view: View, method: Method[Any], client: int, messages: Messages | None) -> State | None:
    """The model that the adversary attacks: what it holds of the client (rebuilt from `messages` by the server), or the
    global one; None if there is none."""
    if view.threat_model == "prompt-user":
        return view.personal(client)
    if view.threat_model == "released-model":
        return method.model(view.public | view.broadcast(view.rounds))
    return messages.rebuilt(client).state if messages else view.private(client)


def see(
    view: View, method: Method[Any], learner: Classifier, asked: Target, *, messages: Messages | None,
    shadows: Shadows | None, norms: Norms | None, rounds: int,
) -> Knowledge | None:  # fmt: skip
    """Everything that attacks may use, of one target; None if the adversary has no model of it.

    `messages`: all that clients sent, where the adversary sees it; `norms`: how gradient norms are computed, if they
    are wanted; `rounds`: how many rounds are looked at, evenly spaced, 0 = none.
    """
    model = attacked_model(view, method, asked.client, messages)
    if model is None:
        return None
    ids, public = asked.records, method.model(view.public)
    attacked, base = learner.log_probs(method, [model, public], ids)
    lengths = [norms(m) if norms else None for m in (model, public)]
    chosen = np.unique(np.linspace(0, view.rounds - 1, min(rounds, view.rounds)).round().astype(int)).tolist()
    history = rounds > 0 and view.gives("broadcasts")
    return Knowledge(
        ids,
        learner.labels(ids).numpy(),
        np.isin(ids, asked.reference),
        attacked,
        base,
        learner.untrained(ids),
        gradient_norms=lengths[0],
        base_gradient_norms=lengths[1],
        shadows=shadows,
        history=history_of(view, method, learner, ids, chosen) if history else None,
        rounds=messages.rounds(asked.client, ids, chosen) if rounds and messages else None,
    )


def ask(
    method: Method[Any], learner: Classifier, asked: Target, models: Sequence[State], member: NDArray[np.bool_], *,
    norms: Norms | None, normed: int,
) -> Shadows:  # fmt: skip
    """What S shadow models say; of the first `normed` gradient norms are computed."""
    ids = asked.records
    trained = np.zeros((len(models), len(ids)), bool)
    trained[:, : len(asked.candidates)] = member
    lengths = None
    if norms:
        lengths = np.full(trained.shape, np.nan)
        for s, model in enumerate(models[:normed]):
            lengths[s] = norms(model)
    return Shadows(trained, learner.log_probs(method, models, ids), lengths)
