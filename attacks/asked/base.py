"""What can be asked about records of one kind, of everything that an adversary holds: the one place where attacks
meet what was trained."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attacks.answers import Arrays, PublicRecords
from attacks.attacked_models import Held, Target, Wanted
from attacks.base import View
from attacks.messages.rebuild import Rebuilt
from trainers.base import State


class Messages(Protocol):
    """All messages of a run, as a server reads them."""

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], own: int, complete: bool
    ) -> Arrays:
        """What round r says about some records of a client, by name: those of a part begin with its name.

        Parts: `own` (the client's own states), `heard` (what all clients sent), `solved` (its message as a mixture of
        the first `own` records; `complete`: its list holds candidates only, each with weight).
        """


class Askable(Protocol):
    """Of one kind of records. A method is None where somebody else trained."""

    over_rounds_alone: bool  # whether attacks on one model also have a score over all states that are seen of it
    others: bool  # whether other clients' records are asked about too
    curves: bool  # whether the true models' losses by round are asked for, which readers see
    unasked: Mapping[str, str]  # what is not asked for although it is of other records, and why
    replays: bool  # whether a server rebuilds clients by replaying all messages, and not by reading the last ones

    def parts(self, wanted: Wanted) -> tuple[str, ...]:
        """Of a round's messages, which are asked for."""

    def arithmetics(self, compats: Sequence[str]) -> tuple[str, ...]:
        """In which its answers are kept, of those that attacks ask for."""

    def public(self, view: View, method: Any) -> State:
        """The public start, as a model."""

    def released(self, method: Any, client: int, public: State, broadcast: State) -> State:
        """What was sent to all, as a client's model; `public` is the start of training."""

    def held(
        self, view: View, method: Any, target: Target, wanted: Wanted, novel: Sequence[str], rebuilt: Sequence[Rebuilt]
    ) -> Iterator[Held]:  # fmt: skip
        """Everything that an adversary attacks of a target; `novel` are records of another distribution, `rebuilt` the
        clients as a server that replays messages has them."""

    def history(self, view: View, held: Held, most: int) -> list[int]:
        """After how many rounds the released models are whose losses are the history of a model that is held."""

    def heard_rounds(self, view: View, client: int, most: int) -> list[int]:
        """The rounds whose messages are looked at for a client's records."""

    def solved_rounds(
        self, view: View, method: Any, client: int, candidates: Sequence[Sequence[str]], rounds: int
    ) -> list[int]:
        """The rounds whose messages are solved for their batches."""

    def public_records(self, learner: Any, records: Sequence[str]) -> Arrays:
        """What everybody knows of the records, see `attacks.answers.public_records`."""

    def answers(
        self, learner: Any, method: Any, models: Sequence[State], records: Sequence[str], arithmetics: Sequence[str]
    ) -> list[dict[str, Arrays]]:
        """What each of the models says, by arithmetic, see `attacks.answers.PublicRecords.answers`."""

    def check(self, attacks: Sequence[object], records: Sequence[PublicRecords]) -> None:
        """InputError: a parameter of an attack does not fit any of the records."""

    def messages(self, view: View, method: Any, learner: Any, candidates: Sequence[Sequence[str]]) -> Messages:
        """All messages, for whoever sees at least sums of them."""
