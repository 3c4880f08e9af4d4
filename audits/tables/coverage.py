"""The table of a report about reconstruction: the clients that the server can rebuild from messages, and how well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd
from torch import Tensor

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
        guess, truth, before = (_weight(state, name) for state in (rebuilt, true, start))  # large: one at a time
        squared += float((guess - truth).square().sum())
        norm += float((before - truth).square().sum())
    return (squared / norm) ** 0.5 if norm else float("nan")


def _weight(state: State, name: str) -> Tensor:
    """The tensor of that name, or the product B A of an adapter's pair, in double precision."""
    if name in state:
        return state[name].double()
    return state[f"{name}.B"].double() @ state[f"{name}.A"].double()
