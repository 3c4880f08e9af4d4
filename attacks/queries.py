"""From a view to `Knowledge`: the adversary asks its model, and its shadows, about the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.base import View
from attacks.knowledge import Floats, Knowledge, Shadows
from attacks.replay import Messages, history_of
from trainers.prompts import HARD_PROMPT, Learner, PromptMethod

Norms = Callable[[Tensor], Floats]  # of each record's gradient in a prompt [.., b, d], [n]


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


def attacked_prompt(view: View, method: PromptMethod, client: int, messages: Messages | None) -> Tensor | None:
    """The prompt [.., b, d] that the adversary attacks: what it holds of the client (rebuilt from `messages` by the server), or the
    global one; None if there is none."""
    if view.threat_model == "prompt-user":
        return view.personal(client)["prompt"]
    if view.threat_model == "released-model":
        return method.prompt(view.public | view.broadcast(view.rounds))
    found = messages.rebuilt(client) if messages else view.private(client)
    return None if found is None else found["prompt"]


def see(
    view: View, method: PromptMethod, learner: Learner, asked: Target, *, messages: Messages | None,
    shadows: Shadows | None, norms: Norms | None, rounds: int,
) -> Knowledge | None:  # fmt: skip
    """Everything that attacks may use, of one target; None if the adversary has no model of it.

    `messages`: all that clients sent, where the adversary sees it; `norms`: how gradient norms are computed, if they are wanted; `rounds`: how
    many rounds are looked at, evenly spaced, 0 = none.
    """
    prompt = attacked_prompt(view, method, asked.client, messages)
    if prompt is None:
        return None
    ids, public = asked.records, method.prompt(view.public)
    attacked, base = log_probs(learner, method, torch.stack([prompt, public]), ids)
    lengths = [norms(p) if norms else None for p in (prompt, public)]
    chosen = np.unique(np.linspace(0, view.rounds - 1, min(rounds, view.rounds)).round().astype(int)).tolist()
    history = rounds > 0 and view.gives("broadcasts")
    return Knowledge(
        ids,
        learner.labels(ids).numpy(),
        np.isin(ids, asked.reference),
        attacked,
        base,
        _hard(learner, ids),
        gradient_norms=lengths[0],
        base_gradient_norms=lengths[1],
        shadows=shadows,
        history=history_of(view, method, learner, ids, chosen) if history else None,
        rounds=messages.rounds(asked.client, ids, chosen) if rounds and messages else None,
    )


def ask(
    method: PromptMethod, learner: Learner, asked: Target, prompts: Tensor, member: NDArray[np.bool_], *,
    norms: Norms | None, normed: int,
) -> Shadows:  # fmt: skip
    """What shadows [S, ..] say; of the first `normed` gradient norms are computed."""
    ids = asked.records
    trained = np.zeros((len(prompts), len(ids)), bool)
    trained[:, : len(asked.candidates)] = member
    lengths = None
    if norms:
        lengths = np.full(trained.shape, np.nan)
        for s, prompt in enumerate(prompts[:normed]):
            lengths[s] = norms(prompt)
    return Shadows(trained, log_probs(learner, method, prompts, ids), lengths)


@torch.no_grad()
def log_probs(learner: Learner, method: PromptMethod, prompts: Tensor, records: Sequence[str]) -> Floats:
    """Log-probabilities [M, n, C] of the classes, float64, by prompts [M, .., b, d]."""
    images = learner.images(records, patches=method.patches)
    found = [
        learner.scale * method.scores(learner.text(part), images[None]).double()
        for part in prompts.split(learner.settings.crowd)
    ]
    logs: Floats = torch.cat(found).log_softmax(-1).numpy()
    return logs


@torch.no_grad()
def _hard(learner: Learner, records: Sequence[str]) -> Floats:
    """Of the public hard prompt [n, C], which looks at whole images."""
    text = learner.text(learner.clip.words(HARD_PROMPT)[None])
    logs: Floats = (
        (learner.scale * PromptMethod.scores(text, learner.images(records)[None]).double())[0].log_softmax(-1).numpy()
    )
    return logs
