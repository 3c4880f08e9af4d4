"""Analysis of messages on adapters: losses, gradient cosines, projection residuals and regression weights of records.

**A message** is the change of what a client sends: its upload minus the round's broadcast, from which every sent tensor
started, with all methods. It is the whole pair A and B of every layer (FedAvg), the top layers' pairs (FedPer; all in
the first round), the shared pair (FedPara), or one half, all A or all B (FedRand). It is the sum of many AdamW steps
and no gradient: records are compared with its direction, never with its size.

**A record's gradient** is that of its caption loss with respect to the tensors in the message, in the model from which
the client started as far as the server can tell (`rebuild.round_start`). FedPara's private pair is never sent, and left
out of that model. Where B is zero the gradient with respect to A is zero: in FedRand's first round A has no direction,
and gives NaN. Gradients are taken once, for cosines and regression alike.

**A change of the broadcast** is the mean of a cohort's messages: who sees no messages explains it by the records of all
whose messages may be in it.

**A client's model** after a round is rebuilt from the messages up to then, in the same way as the attacked model; NaN
in rounds in which it cannot be.
"""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, linalg

from fedaudit.attacks.answers import Arrays, Floats
from fedaudit.attacks.base import View
from fedaudit.attacks.messages import ridge
from fedaudit.attacks.messages.rebuild import rebuild, round_start
from fedaudit.machinery.devices import double
from fedaudit.terms.held_models import EXACT, REBUILDINGS
from fedaudit.trainers.base import State
from fedaudit.trainers.protocols import AdaptedModel

STILL = 1e-6  # times the norm of A: a smaller change is weight decay or rounding
FLAT = 1e-6  # times the largest singular value: smaller ones are rounding


@dataclass(frozen=True)
class AdapterMessages:
    """Reader of all messages and broadcasts of a run; LacksCapability when it reads what the threat model does not
    see."""

    view: View
    learner: AdaptedModel

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], solved_for: int, complete: bool
    ) -> Arrays:
        """Compute arrays about n records of a client from round r, in which it took part: those of `parts` ("own",
        "heard", "solved"); see `Messages.round`. K is the number of clients; `complete` makes no difference.

        - "own/loss/WAY" [n]: losses under its own model after the round, rebuilt in that way (`rebuild.rebuild`); NaN
          if impossible
        - "own/began" [n]: losses in the model from which it started
        - "heard/loss/WAY" [K, n]: losses under the other clients' models; NaN for the client itself
        - "heard/cosine" [K, n]: of each client's message with the direction in which the record's loss falls fastest;
          NaN for clients that sent nothing
        - "heard/residual" [n]: relative residual of the record's inputs on the rows of the change of A
        - "solved/FIELD": the fields of the client's message as `Explained` by the first `solved_for` records
        """
        start, arrays = round_start(self.view, client, r), Arrays()
        if "own" in parts:
            arrays = {f"own/loss/{rebuilding}": loss for rebuilding, loss in self._losses(client, r, records).items()}
            arrays["own/began"] = np.array(self.learner.losses(start, records))
        if "heard" in parts:
            arrays |= self._heard(client, r, records, start)
        if "heard" in parts or "solved" in parts:
            arrays |= self._of_gradients(client, r, records, start, parts, solved_for)
        return arrays

    def change(self, r: int, records: Sequence[str]) -> Arrays:
        """The fields of the change of the broadcast in round r as `Explained` by n records, the last ones known
        non-members. Only tensors that changed are looked at."""
        start = self.view.broadcast(r)
        change = {name: t for name, t in _change(self.view.broadcast(r + 1), start).items() if t.any()}
        descents = Descents(self.learner, start)
        regression = descents.regression(change, records)
        for part in descents.parts(records):
            regression.add(descents.over(change, part))
        return regression.explain(r).arrays()

    def _heard(self, client: int, r: int, records: Sequence[str], start: State) -> Arrays:
        """Losses under the other clients' models, and residuals."""
        sent, shape = self.view.uploads(r), (len(self.view.clients), len(records))
        loss: dict[str, Floats] = {name: np.full(shape, np.nan) for name in (EXACT, *REBUILDINGS)}
        for k in (k for k in sent if k != client):
            for rebuilding, of_client in self._losses(k, r, records).items():
                loss[rebuilding][k] = of_client
        residual = projections(self.learner, start, _change(sent[client], self.view.broadcast(r)), records)
        return {f"heard/loss/{rebuilding}": of_all for rebuilding, of_all in loss.items()} | {
            "heard/residual": residual
        }

    def _of_gradients(
        self, client: int, r: int, records: Sequence[str], start: State, parts: Collection[str], solved_for: int
    ) -> Arrays:
        """The arrays of `round` that come of gradients, "heard/cosine" and "solved/FIELD": each gradient is computed
        once for both."""
        broadcast, descents = self.view.broadcast(r), Descents(self.learner, start)
        changes = {k: _change(upload, broadcast) for k, upload in self.view.uploads(r).items()}
        heard, sent = "heard" in parts, changes[client]
        regression = descents.regression(sent, records[:solved_for]) if "solved" in parts else None
        cosine: list[Tensor] = []
        for part in descents.parts(records if heard else records[:solved_for]):
            if heard:
                cosine.append(torch.stack([_cosine(descents.over(c, part), c) for c in changes.values()]))
            if regression is not None:
                regression.add(descents.over(sent, part))
        arrays = Arrays()
        if heard:
            arrays["heard/cosine"] = np.full((len(self.view.clients), len(records)), np.nan)
            arrays["heard/cosine"][[*changes]] = double(torch.cat(cosine, 1)).cpu().numpy()
        if regression is not None:
            arrays |= {f"solved/{name}": array for name, array in regression.explain(r).arrays().items()}
        return arrays

    def _losses(self, client: int, r: int, records: Sequence[str]) -> dict[str, Floats]:
        """Losses [n] of the records under a client's model after round r, by the way in which the server rebuilds that
        model; NaN if impossible. Equal states run once."""
        computed: list[tuple[State, Floats]] = []
        losses: dict[str, Floats] = {}
        for rebuilding in (EXACT, *REBUILDINGS):
            losses[rebuilding] = np.full(len(records), np.nan)
            if (state := rebuild(self.view, client, rebuilding, until=r + 1).state) is not None:
                equal = (loss for other, loss in computed if _equal(state, other))
                if (loss := next(equal, None)) is None:
                    computed.append((state, loss := np.array(self.learner.losses(state, records))))
                losses[rebuilding] = loss
        return losses


def _equal(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in state.items())


def _change(state: State, start: State) -> State:
    return {name: t - start[name] for name, t in state.items()}


@dataclass(frozen=True)
class Descents:
    """The directions in which records' losses fall fastest at the adapter `start`: vectors of all its numbers."""

    learner: AdaptedModel
    start: State

    def parts(self, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield the directions [R, P] of R records at a time, in order."""
        yield from (-part for part in self.learner.gradients(self.start, records, each=True))

    def over(self, change: State, directions: Tensor) -> Tensor:
        """Directions [R, Q] in what moves of the tensors of a change, of directions [R, P] in all."""
        ends = np.cumsum([t.numel() for t in self.start.values()])
        places = {name: slice(end - t.numel(), end) for (name, t), end in zip(self.start.items(), ends, strict=True)}
        parts = (
            _moving(name, t, directions[:, places[name]].unflatten(1, t.shape)).flatten(1) for name, t in change.items()
        )
        return torch.cat([directions[:, :0], *parts], 1)

    def regression(self, change: State, records: Sequence[str]) -> ridge.Regression:
        """The regression of a change on the directions of n records, which are still to be added; the last ones are
        known non-members."""
        references = (self.over(change, part) for part in self.parts(records[-ridge.REFERENCES :]))
        return ridge.Regression(_flat(change), len(records), references)


def _flat(change: State) -> Tensor:
    return torch.cat([torch.zeros(0), *(_moving(name, t, t).flatten() for name, t in change.items())])


def _moving(name: str, change: Tensor, values: Tensor) -> Tensor:
    """The `values` [.., *] of a factor without those components of the rank, rows of A and columns of B, that its
    `change` [*] leaves as they are: such as were never trained, in place of a backbone that was changed."""
    axis = 0 if name.endswith(".A") else 1
    moves = change.any(1 - axis)
    if moves.all():
        return values
    kept = moves.nonzero().flatten().to(values.device)
    return values.index_select(values.ndim - change.ndim + axis, kept)


def _cosine(directions: Tensor, change: State) -> Tensor:
    """Cosines [R] of directions [R, P] with a change of P parameters; NaN where one of the two is zero."""
    whole = _flat(change).to(directions)
    return directions @ whole / (directions.norm(dim=1) * whole.norm())


def projections(learner: AdaptedModel, start: State, change: State, records: Sequence[str]) -> Floats:
    """Mean relative residuals [n] of the records' layer inputs, in the model `start`, after projection on the rows of
    the change of each layer's A. The mean is over layers whose A moved, and over the tokens that predict the record's
    text; NaN if no A moved."""
    spaces = {name[:-2]: row_space(t, start[name]) for name, t in change.items() if name.endswith(".A")}
    moved = {layer: space for layer, space in spaces.items() if space is not None}
    means = np.full(len(records), np.nan)
    if not moved:
        return means
    for part, of_layers in learner.inputs(start, records, functools.partial(_layer_residuals, moved)):
        of_tokens = torch.stack([*of_layers.values()]).mean(0).cpu().numpy()  # [R, T]
        for i, row in zip(part, of_tokens, strict=True):
            encoded = learner.data[records[i]]
            means[i] = row[encoded.prompt - 1 : len(encoded.ids) - 1].mean()
    return means


def _layer_residuals(spaces: Mapping[str, Tensor], layer: str, inputs: Tensor) -> Tensor | None:
    return residuals(inputs, spaces[layer]) if layer in spaces else None


def row_space(change: Tensor, start: Tensor) -> Tensor | None:
    """Orthonormal basis [q, in] of the rows of a change [r, in] of A; None if A, which was `start`, did not move."""
    if linalg.norm(change) <= STILL * linalg.norm(start):
        return None
    _, sizes, directions = linalg.svd(change.double(), full_matrices=False)
    basis: Tensor = directions[sizes > FLAT * sizes[0]]
    return basis


def residuals(inputs: Tensor, directions: Tensor) -> Tensor:
    """|x - P x| / |x| [..], in float64, of inputs x [.., in]; P projects on orthonormal directions [q, in]."""
    x = double(inputs)
    directions = directions.to(x.device)
    rest = x - (x @ directions.T) @ directions
    relative: Tensor = linalg.vector_norm(rest, dim=-1) / linalg.vector_norm(x, dim=-1).clamp_min(1e-300)
    return relative
