"""What a server computes of the messages of a run on adapters.

**A message** is the change of what a client sends: its upload less the broadcast of the round, from which with every
method each tensor that is sent started. That is the whole pair A and B of every layer (FedAvg), the top layers' pairs
(FedPer; in the first round all), the shared pair (FedPara), or one half, all A or all B (FedRand). It is the sum of
many AdamW steps and no gradient: what is compared with it is a direction, never a size.

**A record's gradient** is that of its caption loss in the tensors that the message holds, where the client began as far
as the server can put that together (`began` of `rebuild.py`): what was sent, and of the parts that the client keeps
what its newest earlier message held, or else what the server holds. FedPara's private pair is never seen, and left out
of that model. Where B is zero the gradient in A is zero: FedRand's A of the first round has no direction, and says
nothing.

**A client's model** after a round is what was rebuilt of it by then, in the same way as the model that is attacked;
rounds in which it cannot be are nan.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, linalg

from attacks.answers import Arrays, Floats
from attacks.base import View
from attacks.messages.rebuild import began, rebuild
from fedaudit.terms.held_models import EXACT, REBUILDINGS
from trainers.base import State
from trainers.protocols import AdaptedModel

STILL = 1e-6  # of the length of A: a smaller change is weight decay's or rounding
FLAT = 1e-6  # of the largest singular value: directions below it are rounding


@dataclass(frozen=True)
class AdapterMessages:
    """All messages of a run. LacksCapability where the threat model does not see them."""

    view: View
    learner: AdaptedModel

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], own: int, complete: bool
    ) -> Arrays:
        """What round r, in which the client took part, says about n records of it, by name of the part and of the
        array.

        `own`: `loss/WAY` [n] under its own model after the round, rebuilt in that way (nan where it cannot be), and
        `began` [n] where it began. `heard`: `loss/WAY` [K, n] under the other clients' models, `cosine` [K, n] of each
        client's message with the direction in which the record's loss falls fastest, and `residual` [n], relative, of
        the record's inputs on the rows of the change of A; nan where one sent nothing.
        """
        start, found = began(self.view, client, r), Arrays()
        if "own" in parts:
            found = {f"own/loss/{way}": loss for way, loss in self._losses(client, r, records).items()}
            found["own/began"] = np.array(self.learner.losses(start, records))
        if "heard" in parts:
            found |= self._heard(client, r, records, start)
        return found

    def _heard(self, client: int, r: int, records: Sequence[str], start: State) -> Arrays:
        sent, broadcast, shape = self.view.uploads(r), self.view.broadcast(r), (len(self.view.clients), len(records))
        loss: dict[str, Floats] = {way: np.full(shape, np.nan) for way in (EXACT, *REBUILDINGS)}
        for k in (k for k in sent if k != client):
            for way, of_client in self._losses(k, r, records).items():
                loss[way][k] = of_client
        changes = {k: {name: t - broadcast[name] for name, t in upload.items()} for k, upload in sent.items()}
        cosine = np.full(shape, np.nan)
        cosine[[*changes]] = cosines(self.learner, start, [*changes.values()], records)
        residual = projections(self.learner, start, changes[client], records)
        return {f"heard/loss/{way}": of_way for way, of_way in loss.items()} | {
            "heard/cosine": cosine, "heard/residual": residual
        }  # fmt: skip

    def _losses(self, client: int, r: int, records: Sequence[str]) -> dict[str, Floats]:
        """By way the losses [n] under a client's model after round r; equal states are asked once."""
        states = {way: rebuild(self.view, client, way, until=r + 1).state for way in (EXACT, *REBUILDINGS)}
        known: list[tuple[State, Floats]] = []
        found: dict[str, Floats] = {way: np.full(len(records), np.nan) for way in states}
        for way, state in states.items():
            if state is not None:
                same = (loss for other, loss in known if _equal(state, other))
                if (loss := next(same, None)) is None:
                    known.append((state, loss := np.array(self.learner.losses(state, records))))
                found[way] = loss
        return found


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


def row_space(change: Tensor, start: Tensor) -> Tensor | None:
    """Orthonormal directions [q, in] of the rows of a change [r, in] of A, q <= r; None if A, [r, in], did not move."""
    if linalg.norm(change) <= STILL * linalg.norm(start):
        return None
    _, sizes, directions = linalg.svd(change.double(), full_matrices=False)
    found: Tensor = directions[sizes > FLAT * sizes[0]]
    return found


def residuals(inputs: Tensor, directions: Tensor) -> Tensor:
    """|x - P x| / |x| of inputs [.., in] by the projection P on directions [q, in], [..] in double precision."""
    x = inputs.double()
    left = x - (x @ directions.T) @ directions
    found: Tensor = linalg.vector_norm(left, dim=-1) / linalg.vector_norm(x, dim=-1).clamp_min(1e-300)
    return found
