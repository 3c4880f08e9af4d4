"""How prompts are queried about classifications: encoding a prompt is expensive, a further record is almost free."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedaudit.attacks.answers import Arrays, Classifications, PublicRecords
from fedaudit.attacks.attacked_models import AttackedModel, Read, Target, Wanted, evenly_spaced
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.prompts import ReplayedMessages, solved_rounds
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.terms.held_models import FINAL
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.protocols import Classifier


class ClassQuestions:
    """See `attacks.questions.base.Questions`."""

    over_rounds_alone = False
    others = True
    curves = True
    replays = True
    unasked: Mapping[str, str] = MappingProxyType({
        "last-round members, earlier rounds": "of models that all clients share; each target's own is attacked here",
        "records of another distribution": "the tasks of prompts have none",
        "loss over all rounds (loss/rounds)": "asked of texts; here trajectory and slope look at rounds",
    })  # fmt: skip

    def parts(self, wanted: Wanted) -> tuple[str, ...]:
        return ("heard",)

    def arithmetics(self, compats: Sequence[str]) -> tuple[str, ...]:
        return ("exact",)

    def released(self, method: Method[Any], client: int, public: State, broadcast: State) -> State:
        return method.model(public | broadcast | method.messages.model_selector(client))

    def public(self, view: View, method: Method[Any]) -> State:
        return method.model(view.public)

    def collect_models(
        self, view: View, method: Method[Any], target: Target, wanted: Wanted, novel: Sequence[str],
        rebuilt: Sequence[Rebuilt],
    ) -> Iterator[AttackedModel]:  # fmt: skip
        """Yield the one model of the target that the adversary attacks, the client's or the released one, with the
        records to ask about; nothing if it has none, or if `target.client` is None."""
        if (k := target.client) is None or (read := self._read(view, method, k, rebuilt)) is None:
            return
        model_kind = view.threat_model.attacks
        role = "released" if model_kind == FINAL else "personal"
        yield AttackedModel(view.threat_model, model_kind, k, view.rounds, read, target.records, role)

    def _read(self, view: View, method: Method[Any], client: int, rebuilt: Sequence[Rebuilt]) -> Read | None:
        if view.gives("personal prompts"):
            return functools.partial(view.personal, client)
        if rebuilt:
            state = rebuilt[client].state
            return None if state is None else lambda: state
        if view.gives("private states"):
            private = view.private(client)
            return None if private is None else lambda: private
        if view.gives("others' parts"):
            return lambda: method.model(view.public | view.others_part(method, client))
        return lambda: self.released(method, client, view.public, view.broadcast(view.rounds))

    def history(self, view: View, held: AttackedModel, most: int) -> list[int]:
        return evenly_spaced(view.rounds, most)

    def heard_rounds(self, view: View, client: int, most: int) -> list[int]:
        return evenly_spaced(view.rounds, most)

    def solved_rounds(
        self, view: View, method: Method[Any], client: int, candidates: Sequence[Sequence[str]], rounds: int
    ) -> list[int]:
        return solved_rounds(view, method, client, candidates, rounds)

    def solved_for(self, target: Target) -> int:
        return len(target.own)

    def public_records(self, learner: Classifier, records: Sequence[str]) -> Arrays:
        return Classifications(learner.labels(records).numpy(), learner.untrained(records)).arrays()

    def answers(
        self, learner: Classifier, method: Method[Any], models: Sequence[State], records: Sequence[str],
        arithmetics: Sequence[str],
    ) -> list[dict[str, Arrays]]:  # fmt: skip
        return [{"exact": {"log_probs": log_probs}} for log_probs in learner.log_probs(method, models, records)]

    def check(self, attacks: Sequence[object], records: Sequence[PublicRecords]) -> None:
        """Do nothing: every parameter fits."""

    def messages(
        self, view: View, method: Method[Any], learner: Classifier, candidates: Sequence[Sequence[str]]
    ) -> ReplayedMessages:
        return ReplayedMessages(view, method, learner, candidates)
