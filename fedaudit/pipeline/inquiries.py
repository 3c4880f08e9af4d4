"""What every adversary asks about every target: an inquiry for each model that it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attacks.answers import public_records
from attacks.attacked_models import CURVE, SHADOWS_ASKED, AttackedModel, Target, Wanted, state_digest
from attacks.base import View
from attacks.facts import ATTACKS
from attacks.messages.rebuild import Rebuilt
from attacks.questions.base import Questions
from attacks.questions.kinds import KINDS
from attacks.settings import Adversary, NovelRows, RebuiltWays
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.asking import (
    Ask,
    AskDrawn,
    AskModel,
    AskRebuilt,
    AskRecords,
    AskRound,
    AskShadows,
    AskVectors,
    ask,
)  # fmt: skip
from fedaudit.pipeline.inquiry import Inquiry
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.permitted import running
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, recipe_of
from fedaudit.pipeline.targets import targets_of
from fedaudit.pipeline.workers import Attackers
from fedaudit.tasks.base import Federation
from trainers.base import Method, State, Transcript

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, eq=False)
class SeenRun:
    """A run whose parties' views are asked about: the training under attack, or the adversary's twin of it."""

    transcript: Transcript
    folder: Path  # of the answers
    views: Mapping[str, View]  # by threat model
    rebuilt: dict[str, list[Rebuilt]]  # by threat model, of who replays messages


@dataclass(frozen=True, eq=False)
class Asking:
    """What the adversaries of a training ask. Weights are named by content, and read again when they are asked."""

    records: str  # their kind
    method: Method[Any] | None  # None: somebody else's training
    transcript: Transcript
    folder: Path  # of the answers
    targets: Sequence[Target]
    attacks: Mapping[str, Mapping[str, DataclassInstance]]  # by threat model, with their parameters
    adversary: Adversary
    dealt: Sequence[Sequence[str]]  # the candidates of every client
    recipe: ShadowRecipe | None = None  # of shadow models, and of a twin of the federation
    bank_folder: Path | None = None  # of what these answer
    stand_ins: int = SHADOWS_ASKED  # so many of the first shadows stand in for the attacked model
    states: dict[str, Callable[[], State]] = field(default_factory=dict)  # readers by what names the weights
    _weights: dict[tuple[object, ...], str] = field(default_factory=dict)

    @property
    def kind(self) -> Questions:
        """What can be asked about such records."""
        return KINDS[self.records]

    @functools.cached_property
    def training(self) -> SeenRun:
        """The run under attack."""
        return self._source(self.transcript, self.folder)

    @functools.cached_property
    def twin(self) -> SeenRun | None:
        """The run that attacks on messages are compared with."""
        if self.recipe is None or self.recipe.twin is None or self.bank_folder is None:
            return None
        return self._source(self.simulated(self.recipe, self.recipe.twin), self.bank_folder)

    def simulated(self, recipe: ShadowRecipe, shadow: int) -> Transcript:
        """The reader of a simulated federation."""
        return recipe.simulated(shadow)

    @property
    def sources(self) -> list[SeenRun]:
        """The training and its twin."""
        return [source for source in (self.training, self.twin) if source is not None]

    def _source(self, transcript: Transcript, folder: Path) -> SeenRun:
        return SeenRun(transcript, folder, {name: View(transcript, name) for name in self.attacks}, {})

    @property
    def novel(self) -> Sequence[str]:
        """Records of another distribution."""
        return next((target.candidates for target in self.targets if target.client is None), ())

    def asked(self, attackers: Callable[[], Attackers], progress: Progress) -> list[Inquiry]:
        """Every inquiry of every target, all of its questions answered. InputError: a parameter of an attack does not
        fit the records."""
        public = [self.public(self.training, target.records) for target in self.targets]
        first = [question for source in self.sources for question in self.rebuilds(source)]
        self.ask([*public, *first], attackers, progress)
        known = [public_records(question.read("public")) for question in public]
        self.kind.check([own for attacks in self.attacks.values() for own in attacks.values()], known)
        for source in self.sources:
            for question in self.rebuilds(source):
                source.rebuilt[question.view.threat_model] = rebuilt(question)
        found = [inquiry for target in self.targets for inquiry in self.inquiries(target)]
        curves = [question for target in self.targets for _, question in self.curve(target)]
        self.ask([*(q for inquiry in found for q in inquiry.questions()), *curves], attackers, progress)
        return found

    def ask(self, questions: Sequence[Ask], attackers: Callable[[], Attackers], progress: Progress) -> None:
        """Answer what is not answered yet."""
        ask(questions, self.states, self.records, self.method, attackers, progress)

    def rebuilds(self, source: SeenRun) -> list[AskRebuilt]:
        """What has to be answered before it is known which models there are."""
        asked = [view for name, view in source.views.items() if source is self.training or self._mirrored(name)]
        replayed = [view for view in asked if self.kind.replays and view.gives("sums of uploads")]
        return [AskRebuilt(source.folder, ("clients",), view) for view in replayed]

    def _mirrored(self, threat_model: str) -> bool:
        """Whether an attack of an adversary is compared with a twin of the federation."""
        return any(ATTACKS[name].facts.needs for name in self.attacks[threat_model])

    def inquiries(self, target: Target) -> Iterator[Inquiry]:
        """Of every adversary about one target."""
        for name in self.attacks:
            wanted = self.wanted(name)
            twins = self._twins(name, target, wanted) if self._mirrored(name) else {}
            for held in self._held(self.training, name, target, wanted):
                inquiry = self._inquiry(self.training, held, target, wanted)
                yield replace(inquiry, **twins[held.way]) if held.over_rounds and held.way in twins else inquiry

    def _twins(self, threat_model: str, target: Target, wanted: Wanted) -> dict[str, dict[str, Any]]:
        """By way what an inquiry about the training is compared with."""
        if (source := self.twin) is None or self.recipe is None or target.client is None:
            return {}
        drawn = AskDrawn(source.folder, ("drawn",), self.recipe, target.client)
        wanted = replace(wanted, norms=False, vectors=False)
        return {
            held.way: {"twin": self._inquiry(source, held, target, wanted), "drawn": drawn}
            for held in self._held(source, threat_model, target, wanted)
            if held.over_rounds
        }

    def _held(self, source: SeenRun, name: str, target: Target, wanted: Wanted) -> list[AttackedModel]:
        rebuilt = source.rebuilt.get(name, ())
        return [*self.kind.collect_models(source.views[name], self.method, target, wanted, self.novel, rebuilt)]

    def wanted(self, threat_model: str) -> Wanted:
        """What its attacks need."""
        attacks = self.attacks[threat_model]
        known, params = [ATTACKS[name] for name in attacks], list(attacks.values())
        alone = self.kind.over_rounds_alone
        return Wanted(
            answers=any(not plugin.facts.shadows for plugin in known),
            arithmetics=self.kind.arithmetics([getattr(own, "compat", "exact") for own in params]),
            norms=any(plugin.facts.gradients for plugin in known),
            states=any(plugin.facts.needs or (plugin.facts.rounds and alone) for plugin in known),
            messages=any({"uploads", "sums of uploads"} & {*plugin.facts.needs} for plugin in known),
            solved=any(plugin.facts.mixtures for plugin in known),
            sequences=any(plugin.facts.sequences for plugin in known),
            vectors=any(plugin.facts.vectors for plugin in known),
            novel_of_clients=any(isinstance(own, NovelRows) and own.novel_rows == "all" for own in params),
            ways=frozenset(own.ways for own in params if isinstance(own, RebuiltWays)) - {"all"},
        )

    def _inquiry(self, source: SeenRun, held: AttackedModel, target: Target, wanted: Wanted) -> Inquiry:
        view, k, more = source.views[held.threat_model], target.client, dict[str, Any]()
        arithmetics, norms = wanted.arithmetics, ("norms",) * wanted.norms
        begun = functools.partial(self.kind.public, view, self.method)
        start = self._model(source, ("public",), begun, held.records, arithmetics + norms)
        place = held.threat_model, held.way, held.client, held.round
        model = self._model(source, place, held.read, held.records, arithmetics + norms)
        if k is not None and held.over_rounds and wanted.states:
            more |= self._over_rounds(source, held, target, wanted)
        if k is not None and wanted.sequences and view.gives("broadcasts"):
            after = shadow_models.sequence_rounds(view.rounds)
            more["sequence"] = [self._released(source, view, k, r, held.records) for r in after]
        if k is not None and source is self.training and held.of_target:
            more["before"] = self._before(k, held.records, arithmetics)
            more |= self._shadows(held, target, wanted, model, start)
        return Inquiry(
            held.threat_model, held.way, held.client, held.round, target, held.records, len(view.clients),
            self.public(source, held.records), model, start, held.over_rounds, **more,
        )  # fmt: skip

    def _over_rounds(self, source: SeenRun, held: AttackedModel, target: Target, wanted: Wanted) -> dict[str, Any]:
        """What is known of rounds: of messages where they are seen, else of broadcasts."""
        view, k, most = source.views[held.threat_model], target.client, self.adversary.observed_rounds
        assert k is not None
        if not view.gives("sums of uploads"):
            seen = self.kind.history(view, held, most) if view.gives("broadcasts") else []
            return {"history": [self._released(source, view, k, r, held.records) for r in seen]}

        def ask(parts: tuple[str, ...], rounds: Sequence[int]) -> list[AskRound]:
            return [AskRound(source.folder, parts, view, target, r) for r in rounds]

        found = {"heard": ask(self.kind.parts(wanted), self.kind.heard_rounds(view, k, most))}
        if wanted.solved:
            rounds = self.adversary.solved_rounds
            found["solved"] = ask(("solved",), self.kind.solved_rounds(view, self.method, k, self.dealt, rounds))
        return found

    def _shadows(
        self, held: AttackedModel, target: Target, wanted: Wanted, model: AskModel, start: AskModel
    ) -> dict[str, Any]:
        """The shadow models that stand beside it."""
        if self.recipe is None or self.bank_folder is None or held.role is None:
            return {}
        parts = wanted.arithmetics + ("drawn",) + ("norms",) * wanted.norms + ("sequence",) * wanted.sequences
        shadows = AskShadows(self.bank_folder, parts, self.recipe, target, held.role, self.stand_ins)
        if not wanted.vectors:
            return {"shadows": shadows}
        weights = model.weights[0], start.weights[0]
        return {"shadows": shadows, "vectors": AskVectors(self.training.folder, ("projections",), shadows, weights)}

    def public(self, source: SeenRun, records: Sequence[str]) -> AskRecords:
        """What everybody knows of some records."""
        return AskRecords(source.folder, ("public",), records)

    def curve(self, target: Target) -> list[tuple[int, AskModel]]:
        """By how many rounds had gone the true models of a target, which no adversary sees whole: for readers."""
        if (k := target.client) is None or not self.kind.curves:
            return []
        transcript, source, ask = self.training.transcript, self.training, self._model
        own = transcript.participations(k)
        chosen = sorted({own[int(i)] for i in np.linspace(0, len(own) - 1, CURVE).round()}) if own else []
        start = functools.partial(transcript.model, transcript.broadcast(0))
        reads = [(0, ("start",), start)] + [
            (r + 1, ("personal", k, r), functools.partial(transcript.personal, r, k)) for r in chosen
        ]
        return [(r, ask(source, key, read, target.records, ("exact",))) for r, key, read in reads]

    def _released(self, source: SeenRun, view: View, client: int, r: int, records: Sequence[str]) -> AskModel:
        """The released model after r rounds, as an adversary has it."""

        def read() -> State:
            return self.kind.released(self.method, client, view.public, view.broadcast(r))

        key = view.gives("others' parts"), self._selector(client), r
        return self._model(source, key, read, records, ("exact",))

    def _before(self, client: int, records: Sequence[str], arithmetics: tuple[str, ...]) -> AskModel | None:
        """The released model before a client first took part, which has learnt other clients' records and none of its
        own; None if the client began with the public start."""
        transcript = self.training.transcript
        if not (first := next(iter(transcript.participations(client)), 0)):
            return None

        def read() -> State:
            return self.kind.released(self.method, client, transcript.broadcast(0), transcript.broadcast(first))

        return self._model(self.training, ("before", self._selector(client), first), read, records, arithmetics)

    def _selector(self, client: int) -> int | None:
        """A client that reads the server's state in a way of its own."""
        return client if self.method is not None and self.method.messages.model_selector(client) else None

    def _model(
        self, source: SeenRun, key: tuple[object, ...], read: Callable[[], State], records: Sequence[str],
        parts: tuple[str, ...],
    ) -> AskModel:  # fmt: skip
        """A question to a model, which is known by its key; its weights are named by content."""
        place = source.folder, *key
        if place not in self._weights:
            self._weights[place] = self.digest(place, read)
            self.states[self._weights[place]] = read
        return AskModel(source.folder, parts, (self._weights[place],), records)

    def digest(self, place: tuple[object, ...], read: Callable[[], State]) -> str:
        """What names some weights."""
        return state_digest(read())


def asking_of(cell: Cell, federation: Federation) -> Asking:
    """What the adversaries of a cell ask."""
    return Asking(transcript=transcript_of(cell), **parts_of(cell, federation))


def parts_of(cell: Cell, federation: Federation) -> dict[str, Any]:
    """Fields of `Asking` but for the run."""
    return {
        "records": cell.plan.trained.records,
        "method": method_of(cell, federation.sizes) if cell.variant else None,
        "folder": cell.answers_folder,
        "targets": targets_of(cell, federation),
        "attacks": running(cell),
        "adversary": cell.plan.adversary,
        "dealt": [client.candidates for client in federation.clients],
        "recipe": (recipe := recipe_of(cell, federation)),
        "bank_folder": cell.bank_answers_folder if recipe else None,
    }


def rebuilt(question: AskRebuilt) -> list[Rebuilt]:
    """Every client as a server that replays messages rebuilds it, from what is kept."""
    states: dict[int, State] = {}
    for name, array in question.read("clients").items():
        client, _, tensor = name.partition("/")
        states.setdefault(int(client), {})[tensor] = torch.from_numpy(array)
    way = question.view.threat_model.attacks
    return [
        Rebuilt(k, way, state := states[k], int(state.pop("seen")), 0, 0)
        if k in states
        else Rebuilt(k, way, None, None, None, None, "never sent anything")
        for k in question.view.clients
    ]
