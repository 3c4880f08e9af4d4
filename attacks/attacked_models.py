"""Whom an adversary attacks, which models it can put together from its view, and about which records it asks each of
them: what an attack may cost is decided here and in `attacks.asked`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainers.base import State

OTHERS = 150  # records of other clients that a target's model is asked about
# models of the adversary, of the usual trajectories one each, that stand in for the attacked one: for thresholds
SHADOWS_ASKED = 5
CURVE = 11  # rounds of a loss trajectory
NOVEL_PER_CLIENT = 75  # out-of-distribution records that a client's model is asked about
PER_ROUND = 8  # candidates per client that every earlier round's model is asked about

Read = Callable[[], State]


@dataclass(frozen=True)
class Target:
    """Whom an adversary attacks, and the records that it asks about; nobody's are records of another distribution."""

    client: int | None
    candidates: Sequence[str]  # its members and held-out records, canaries at the end; unlabelled
    reference: Sequence[str]  # known non-members of the same distribution
    others: Sequence[str] = ()  # records of other clients
    complete: bool = False  # whether its list holds candidates only, each with weight

    @property
    def own(self) -> tuple[str, ...]:
        """Those that could be in its list, for all that their distribution says."""
        return (*self.candidates, *self.reference)

    @property
    def records(self) -> tuple[str, ...]:
        return (*self.candidates, *self.reference, *self.others)

    def of_records(self, member: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the records [.., n] a model was trained on, from which of the candidates: on no others."""
        found = np.zeros((*member.shape[:-1], len(self.records)), bool)
        found[..., : len(self.candidates)] = member
        return found


@dataclass(frozen=True)
class Wanted:
    """What the attacks of one adversary need beside a model's answers."""

    answers: bool = True  # some attack looks at one model alone, without shadow models
    arithmetics: tuple[str, ...] = ("exact",)
    norms: bool = False
    states: bool = False  # all states that are seen of one model
    messages: bool = False  # what clients sent, not only their states
    solved: bool = False  # messages as mixtures
    sequences: bool = False
    vectors: bool = False
    novel_of_clients: bool = False  # clients' models are asked about another distribution too
    ways: frozenset[str] = frozenset()  # of rebuilding, that are looked at; empty: all


@dataclass(frozen=True, eq=False)
class Held:
    """One model in an adversary's hands, and what it asks it about. `client` is None for a model of everybody."""

    threat_model: str
    way: str
    client: int | None
    round: int  # how many rounds it has seen
    read: Read = field(repr=False)  # when it is asked for, and not kept: an adversary holds dozens of models
    records: Sequence[str]
    role: str | None = None  # which of a shadow's models stands beside it: "personal", "released"; None: none
    over_rounds: bool = True  # whether more may be known of it than what it answers
    of_target: bool = True  # whether the records are the target's own, and no others beside


@functools.cache
def records_digest(records: Sequence[str]) -> str:
    """Names a list of records."""
    return hashlib.sha256("\n".join(records).encode()).hexdigest()[:12]


def state_digest(state: State) -> str:
    """Names weights by content: equal models are asked once."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def evenly(rounds: int, most: int) -> list[int]:
    """At most so many of some rounds, evenly spaced."""
    chosen: list[int] = np.unique(np.linspace(0, rounds - 1, min(most, rounds)).round().astype(int)).tolist()
    return chosen
