"""Which client is attacked, through which models, and which records each model is queried with. The constants here, and
`attacks.questions`, bound the cost of attacks."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedaudit.trainers.base import State

OTHERS = 150  # records of other clients with which a target's model is queried
SHADOWS_ASKED = 5  # shadow models that play the attacked model, from which thresholds are set
CURVE = 11  # rounds of a loss trajectory
NOVEL_PER_CLIENT = 75  # out-of-distribution records with which a client's model is queried
PER_ROUND = 8  # candidates per client with which every earlier round's model is queried

Read = Callable[[], State]


@dataclass(frozen=True)
class Target:
    """An attacked client and the records to attack; `client` None: records of a distribution that nobody trained on."""

    client: int | None
    candidates: Sequence[str]  # its members and held-out records mixed, canaries at the end
    reference: Sequence[str]  # known non-members of the same distribution
    others: Sequence[str] = ()  # records of other clients
    complete: bool = False  # whether the client trains on candidates only, each with a weight above 0

    @property
    def own(self) -> tuple[str, ...]:
        """Candidates and reference records: those of the client's own distribution."""
        return (*self.candidates, *self.reference)

    @property
    def records(self) -> tuple[str, ...]:
        """All records: candidates, reference records, then other clients' records."""
        return (*self.candidates, *self.reference, *self.others)

    def of_records(self, member: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Extend membership of the candidates [.., c] to all records [.., n]: the others are no members."""
        extended = np.zeros((*member.shape[:-1], len(self.records)), bool)
        extended[..., : len(self.candidates)] = member
        return extended


@dataclass(frozen=True)
class Wanted:
    """Everything that the attacks of one threat model need to be computed, all attacks together."""

    answers: bool = True  # whether some attack works without shadow models
    arithmetics: tuple[str, ...] = ("exact",)  # of token signals: "exact", "vlmia"
    norms: bool = False  # gradient norms
    states: bool = False  # answers of the attacked model over rounds
    messages: bool = False  # what clients sent, not only their models
    solved: bool = False  # messages as `Mixture`s
    contents: bool = False  # the first message solved without candidates
    pooled: bool = False  # sums over all users that a protocol reveals
    sequences: bool = False  # released models of many rounds, of shadows too
    vectors: bool = False  # the attacked vectors themselves
    novel_of_clients: bool = False  # clients' models are also queried with records of another distribution
    ways: frozenset[str] = frozenset()  # of rebuilding a client; empty: all


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """One model that an adversary has, and the records to query it with; `client` None: a model that all clients
    share."""

    threat_model: str
    way: str  # how the adversary got it, see `fedaudit.terms.held_models`
    client: int | None
    round: int  # rounds of training that it has seen
    read: Read = field(repr=False)  # loads the state on each call: dozens of models do not fit into memory
    records: Sequence[str]
    role: str | None = None  # the shadows' model to compare with: "personal" or "released"; None: no shadows
    over_rounds: bool = True  # whether attacks that look at rounds apply to it
    of_target: bool = True  # whether all records are the target's own


@functools.cache
def records_digest(records: Sequence[str]) -> str:
    """Short hash that identifies a list of records."""
    return hashlib.sha256("\n".join(records).encode()).hexdigest()[:12]


def state_digest(state: State) -> str:
    """Short hash of weights, so that equal models are queried once."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def evenly_spaced(rounds: int, most: int) -> list[int]:
    """At most `most` of the rounds 0 to `rounds` - 1, evenly spaced from the first to the last; [0] if `most` is 1."""
    chosen: list[int] = np.unique(np.linspace(0, rounds - 1, min(most, rounds)).round().astype(int)).tolist()
    return chosen
