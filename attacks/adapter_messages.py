"""What a server computes of the messages of a run on adapters.

**A message** is the change of what a client sends: its upload less the broadcast of the round, from which with every
method each tensor that is sent started. That is the whole pair A and B of every layer (FedAvg), the top layers' pairs
(FedPer; in the first round all), the shared pair (FedPara), or one half, all A or all B (FedRand). It is the sum of
many AdamW steps and no gradient: what is compared with it is a direction, never a size.

**A record's gradient** is that of its caption loss in the tensors that the message holds, where the client began as far
as the server can put that together (`attacks.rebuild.began`): what was sent, and of the parts that the client keeps
what its newest earlier message held, or else what the server holds. FedPara's private pair is never seen, and left out
of that model. Where B is zero the gradient in A is zero: FedRand's A of the first round has no direction, and says
nothing.

**A client's model** after a round is what was rebuilt of it by then, in the same way as the model that is attacked;
rounds in which it cannot be are nan.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.base import View
from attacks.knowledge import Floats, Rounds
from attacks.projres import residuals, row_space
from attacks.rebuild import began, rebuild
from fedaudit.terms.held_models import EXACT, REBUILDINGS
from trainers.base import AdaptedModel, State


@dataclass(frozen=True, eq=False)
class Heard:
    """What one round says about n records of a client of K; nan where one sent nothing, or could not be rebuilt."""

    loss: Mapping[str, Floats]  # by way of rebuilding [K, n], under each client's model after the round
    began: Floats  # [n], loss where the client began
    cosine: Floats  # [K, n], of each client's message with the direction in which the record's loss falls fastest
    residual: Floats  # [n], relative, of the record's inputs on the rows of the change of A


def hear(view: View, learner: AdaptedModel, client: int, r: int, records: Sequence[str], *, messages: bool) -> Heard:
    """What the messages of round r, in which the client took part, say about some records, in every way of rebuilding.

    Without `messages` of the client's own losses only.
    """
    n, sent = len(records), view.uploads(r)
    asked = [*sent] if messages else [client]
    loss: dict[str, Floats] = {way: np.full((len(view.clients), n), np.nan) for way in (EXACT, *REBUILDINGS)}
    for k in asked:
        known: list[tuple[State, Floats]] = []  # equal states are asked once
        for way, of_way in loss.items():
            state = rebuild(view, k, way, until=r + 1).state
            if state is not None:
                of_way[k] = next((found for other, found in known if _equal(state, other)), np.nan)
                if np.isnan(of_way[k]).all():
                    of_way[k] = learner.losses(state, records)
                    known.append((state, of_way[k]))
    start = began(view, client, r)
    heard = Heard(
        loss, np.array(learner.losses(start, records)), np.full((len(view.clients), n), np.nan), np.full(n, np.nan)
    )
    if messages:
        broadcast = view.broadcast(r)
        changes = {k: {name: t - broadcast[name] for name, t in upload.items()} for k, upload in sent.items()}
        heard.cosine[[*changes]] = cosines(learner, start, [*changes.values()], records)
        heard.residual[:] = projections(learner, start, changes[client], records)
    return heard


def _equal(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in state.items())


def cosines(learner: AdaptedModel, start: State, changes: Sequence[State], records: Sequence[str]) -> Floats:
    """Cosines [M, n] of M changes of adapters with the records' descent directions in the same tensors, at one state;
    nan where a change or a gradient is zero."""
    ends = np.cumsum([t.numel() for t in start.values()])
    places = {name: slice(end - t.numel(), end) for (name, t), end in zip(start.items(), ends, strict=True)}
    found = []
    for part in learner.gradients(start, records, each=True):
        rows = [_cosine(-torch.cat([part[:, places[name]] for name in change], 1), change) for change in changes]
        found.append(torch.stack(rows))
    return torch.cat(found, 1).double().cpu().numpy()


def _cosine(directions: Tensor, change: State) -> Tensor:
    """Of directions [R, P] with a change of as many numbers, [R]."""
    whole = torch.cat([t.flatten() for t in change.values()]).to(directions)
    return directions @ whole / (directions.norm(dim=1) * whole.norm())


def projections(learner: AdaptedModel, start: State, change: State, records: Sequence[str]) -> Floats:
    """Mean relative residuals [n] of what enters the layers at the tokens that predict the records' texts, where the
    client began, on the rows of the changes of A; nan where no A moved."""
    spaces = {name[:-2]: row_space(t, start[name]) for name, t in change.items() if name.endswith(".A")}
    moved = {layer: space for layer, space in spaces.items() if space is not None}
    found = np.full(len(records), np.nan)
    if not moved:
        return found
    for part, of_layers in learner.inputs(start, records, functools.partial(_left, moved)):
        of_tokens = torch.stack([*of_layers.values()]).mean(0).cpu().numpy()  # [R, T]
        for i, row in zip(part, of_tokens, strict=True):
            encoded = learner.data[records[i]]
            found[i] = row[encoded.prompt - 1 : len(encoded.ids) - 1].mean()
    return found


def _left(spaces: Mapping[str, Tensor], layer: str, inputs: Tensor) -> Tensor | None:
    return residuals(inputs, spaces[layer].to(inputs.device)) if layer in spaces else None


def joined(client: int, way: str, heard: Sequence[Heard]) -> Rounds:
    """What T > 0 rounds say together about a client's records, its models rebuilt in one way."""
    return Rounds(
        client,
        np.stack([one.loss[way] for one in heard]),
        np.stack([one.cosine for one in heard]),
        began=np.stack([one.began for one in heard]),
        residual=np.stack([one.residual for one in heard]),
    )
