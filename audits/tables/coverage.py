"""The table of a report about reconstruction: the clients that the server can rebuild from messages, and how well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd
import torch

from fedaudit.tasks.base import client_name
from fedaudit.trainers.base import State
from fedaudit.trainers.transcript import Transcript

COVERAGE = "way client reconstructable why stale_rounds stale_participations distance".split()


class RebuiltClient(Protocol):
    """One client as a server rebuilt it: see `attacks.messages.rebuild.Rebuilt`."""

    @property
    def client(self) -> int: ...
    @property
    def way(self) -> str: ...
    @property
    def state(self) -> State | None: ...
    @property
    def last_round(self) -> int | None: ...
    @property
    def stale_rounds(self) -> int | None: ...
    @property
    def stale_participations(self) -> int | None: ...
    @property
    def why(self) -> str: ...


def coverage_table(rebuilt: Sequence[RebuiltClient], transcript: Transcript) -> pd.DataFrame:
    """A row per rebuilt client with the columns way (how it was rebuilt), client, reconstructable, why (not),
    stale_rounds, stale_participations, and `distance` from the client's true model after the same round, see
    `distance_of`; None: the client could not be rebuilt, or the true model is not kept."""
    rows = []
    start = transcript.model(transcript.broadcast(0))
    for one in rebuilt:
        distance = None
        if one.state is not None and one.last_round is not None:
            true = transcript.own_model(one.last_round, one.client)
            distance = None if true is None else distance_of(one.state, true, start)
        possible = one.state is not None
        rows.append((one.way, client_name(one.client), possible, one.why, one.stale_rounds, one.stale_participations,
                     distance))  # fmt: skip
    return pd.DataFrame(rows, columns=COVERAGE)


def distance_of(rebuilt: State, true: State, start: State) -> float:
    """Distance of a rebuilt model from the true one over that of the start of training, Frobenius norms: 0 is exact, 1
    is as far as no training at all; NaN if training changed nothing.

    For adapters it is that of the weight updates B A: many pairs have the same product.
    """
    squared = norm = 0.0
    for name in sorted({name.removesuffix(".A").removesuffix(".B") for name in true}):
        squared += _squared_difference(rebuilt, true, name)
        norm += _squared_difference(start, true, name)
    return (squared / norm) ** 0.5 if norm else float("nan")


def _squared_difference(one: State, other: State, name: str) -> float:
    """The squared Frobenius norm of the difference of two states' tensors of a name, or of the products B A of their
    pairs, in double precision. Products of a large model's layers take gigabytes, so they are not formed:
    B1 A1 - B2 A2 = [B1 - B2, B2] [A1; A1 - A2], whose norm needs the small Gram matrices of both factors only. Equal
    pairs are exactly 0 apart."""
    if name in other:
        return float((one[name].double() - other[name].double()).square().sum())
    (B1, A1), (B2, A2) = ((state[f"{name}.B"].double(), state[f"{name}.A"].double()) for state in (one, other))
    if B1.shape != B2.shape:  # of other ranks
        left, right = torch.cat([B1, -B2], 1), torch.cat([A1, A2])
    else:
        left, right = torch.cat([B1 - B2, B2], 1), torch.cat([A1, A1 - A2])
    return max(0.0, float(((left.mT @ left) * (right @ right.mT)).sum()))
