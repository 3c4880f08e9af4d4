"""Interface to records of one kind, "texts" or "classes": which models an adversary has, and how they are queried. Only
these classes bring attacks and trained models together."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fedaudit.attacks.answers import Arrays, PublicRecords
from fedaudit.attacks.attacked_models import AttackedModel, Target, Wanted
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.trainers.base import State


class Messages(Protocol):
    """All messages of a run, read as a server (or whoever sees sums of uploads) does."""

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], solved_for: int, complete: bool
    ) -> Arrays:
        """Compute arrays about n records of a client from the messages of round r; names begin with "PART/".

        `parts` selects from "own" (losses under the client's own models), "heard" (what all clients sent), "contents"
        (what its first message held, solved by the records between its candidates and `solved_for`), and "solved"
        (its message as a `Mixture` of the first `solved_for` records, on texts as `Explained` by them; `complete`: the
        client trains on candidates only, each with a weight above 0).
        """


class Questions(Protocol):
    """Queries about records of one kind. `method` is None for a run that was trained elsewhere."""

    over_rounds_alone: bool  # whether attacks with `rounds = True` get losses over rounds without seeing messages
    others: bool  # whether models are also queried with other clients' records
    curves: bool  # whether losses under the true model of each round are computed, for reports
    unasked: Mapping[str, str]  # why a table is missing that the other kind of records has, by name of the table
    replays: bool  # whether a server rebuilds clients by replaying all messages, not from their last ones

    def parts(self, wanted: Wanted) -> tuple[str, ...]:
        """The parts that are computed of each observed round, see `Messages.round`."""

    def arithmetics(self, compats: Sequence[str]) -> tuple[str, ...]:
        """Arithmetics in which answers are stored: "exact", and on texts also `compats`, for which attacks ask."""

    def public(self, view: View, method: Any) -> State:
        """The public state before training, as a model that can be queried."""

    def released(self, method: Any, client: int, public: State, broadcast: State) -> State:
        """A broadcast as a client's model that can be queried; `public` is the state before training."""

    def collect_models(
        self, view: View, method: Any, target: Target, wanted: Wanted, novel: Sequence[str], rebuilt: Sequence[Rebuilt]
    ) -> Iterator[AttackedModel]:  # fmt: skip
        """Yield every model of a target that an adversary attacks, with the records to query it with. `novel`: records
        of another distribution; `rebuilt`: all clients as replayed by a server, empty unless `replays`."""

    def history(self, view: View, held: AttackedModel, most: int) -> list[int]:
        """Rounds r whose `View.broadcast(r)` gives the losses in `Knowledge.history`; `most` caps them on classes."""

    def heard_rounds(self, view: View, client: int, most: int) -> list[int]:
        """At most `most` rounds whose messages are used to attack a client's records."""

    def solved_rounds(
        self, view: View, method: Any, client: int, candidates: Sequence[Sequence[str]], rounds: int
    ) -> list[int]:
        """Rounds of the client whose messages are solved: its first `rounds`, 0 = those of two epochs, on texts all.
        `candidates` are those of every client."""

    def solved_for(self, target: Target) -> int:
        """By how many of a target's records, the first ones, its messages are solved."""

    def public_records(self, learner: Any, records: Sequence[str]) -> Arrays:
        """Stored form of the public facts about records, which `attacks.answers.public_records` reads."""

    def answers(
        self, learner: Any, method: Any, models: Sequence[State], records: Sequence[str], arithmetics: Sequence[str]
    ) -> list[dict[str, Arrays]]:
        """Query models with records: for each model its arrays by arithmetic, which `PublicRecords.answers` reads."""

    def check(self, attacks: Sequence[object], records: Sequence[PublicRecords]) -> None:
        """Raise InputError if a parameter of an attack fits none of the records. `attacks` are their `Params`."""

    def messages(self, view: View, method: Any, learner: Any, candidates: Sequence[Sequence[str]]) -> Messages:
        """Reader of all messages. LacksCapability, here or when it reads: the view does not see them. `candidates` are
        those of every client."""
