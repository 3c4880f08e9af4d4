"""The questions that the adversaries of a training ask: for every target a set of questions per attacked model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from fedaudit.attacks.answers import public_records
from fedaudit.attacks.attacked_models import CURVE, SHADOWS_ASKED, AttackedModel, Target, Wanted, state_digest
from fedaudit.attacks.base import View
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import SUMS
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.attacks.messages.ridge import REFERENCES
from fedaudit.attacks.questions.base import Questions
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.attacks.settings import Adversary, NovelRows, RebuiltWays
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.contents import EmbeddingQuestion
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.permitted import permitted_attacks
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.pooled import PooledQuestion
from fedaudit.pipeline.probing import ProbeFile, ProbeQuestion, probe_files
from fedaudit.pipeline.question_set import QuestionSet
from fedaudit.pipeline.questions import (
    ChangeQuestion,
    MessageQuestion,
    ModelQuestion,
    ProjectionQuestion,
    RecordQuestion,
    ReplayQuestion,
    ShadowQuestion,
    StoredQuestion,
    TwinQuestion,
    answer_questions,
)  # fmt: skip
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, recipe_of
from fedaudit.pipeline.targets import targets_of
from fedaudit.pipeline.workers import Attackers
from fedaudit.tasks.base import Federation
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.transcript import Transcript

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """A run as its adversaries observe it: the training under attack, or the simulated twin of it."""

    transcript: Transcript
    folder: Path  # of the answers
    views: Mapping[str, View]  # by threat model
    rebuilt: dict[str, list[Rebuilt]]  # by threat model that replays messages; filled in once replays are answered


@dataclass(frozen=True, eq=False)
class QuestionPlan:
    """Everything that the adversaries of a training ask, and where the answers lie. Models' weights stay on disk: a
    question names them by a digest, and they are read when it is answered."""

    records: str  # their kind: a key of `attacks.questions.kinds.KINDS`
    method: Method[Any] | None  # None: somebody else's training
    transcript: Transcript
    folder: Path  # of the answers of the training's models
    targets: Sequence[Target]
    attacks: Mapping[str, Mapping[str, DataclassInstance]]  # parameters by threat model and attack
    adversary: Adversary
    candidates: Sequence[Sequence[str]]  # of every client
    recipe: ShadowRecipe | None = None  # of shadow models and twin; None: no attack needs them
    bank_folder: Path | None = None  # of the answers of shadow models and twin
    stand_ins: int = SHADOWS_ASKED  # how many of the shadows, the first ones, play the attacked model
    probes: Mapping[str, ProbeFile] = field(default_factory=dict)  # of active attacks, by attack
    pictures: Sequence[str] = ()  # all records of the data set
    states: dict[str, Callable[[], State]] = field(default_factory=dict)  # reads weights by digest; filled in later
    _digests: dict[tuple[object, ...], str] = field(default_factory=dict)  # by what identifies a model in its run

    @classmethod
    def of(cls, cell: Cell, federation: Federation, transcript: Transcript | None = None) -> Self:
        """The plan of what a cell's adversaries ask of its training's models; `transcript` stands in for the training's
        own."""
        recipe = recipe_of(cell, federation)
        return cls(
            records=cell.plan.trained.records,
            method=method_of(cell, federation.sizes) if cell.variant else None,
            transcript=transcript or transcript_of(cell),
            folder=cell.answers_folder,
            targets=targets_of(cell, federation),
            attacks=permitted_attacks(cell),
            adversary=cell.plan.adversary,
            candidates=[client.candidates for client in federation.clients],
            probes=probe_files(cell),
            pictures=list(federation.records),
            recipe=recipe,
            bank_folder=cell.bank_answers_folder if recipe else None,
        )

    @property
    def kind(self) -> Questions:
        """The questions that this kind of records allows."""
        return KINDS[self.records]

    @functools.cached_property
    def training(self) -> ObservedRun:
        """The run under attack."""
        return self._observe(self.transcript, self.folder, self.probes)

    @functools.cached_property
    def twin(self) -> ObservedRun | None:
        """The simulated run that attacks on messages are compared with; None where none is simulated."""
        if self.recipe is None or self.recipe.twin is None or self.bank_folder is None:
            return None
        return self._observe(self.simulated(self.recipe, self.recipe.twin), self.bank_folder)

    def simulated(self, recipe: ShadowRecipe, shadow: int) -> Transcript:
        """The transcript of a simulated federation, by its number."""
        return recipe.simulated(shadow)

    @property
    def sources(self) -> list[ObservedRun]:
        """The training, and its twin if there is one."""
        return [source for source in (self.training, self.twin) if source is not None]

    def _observe(self, transcript: Transcript, folder: Path, probes: Mapping[str, ProbeFile] = {}) -> ObservedRun:
        views = {name: View(transcript, name, probes=probes) for name in self.attacks}
        return ObservedRun(transcript, folder, views, {})

    @property
    def out_of_distribution(self) -> Sequence[str]:
        """Records of another distribution; empty where the task has none."""
        return next((target.candidates for target in self.targets if target.client is None), ())

    def answer_all(self, attackers: Callable[[], Attackers], progress: Progress) -> list[QuestionSet]:
        """Answer all questions about all targets; returns them, a set per target, adversary and attacked model.
        `attackers` starts the workers, and is called only if an answer is missing. InputError: a parameter of an attack
        does not fit the records."""
        public = [self.public(self.training, target.records) for target in self.targets]
        replays = [question for source in self.sources for question in self.replay_questions(source)]
        self.answer([*public, *replays], attackers, progress)
        records = [public_records(question.read("public")) for question in public]
        self.kind.check([params for attacks in self.attacks.values() for params in attacks.values()], records)
        for source in self.sources:
            for question in self.replay_questions(source):
                source.rebuilt[question.view.threat_model] = read_rebuilt(question)
        question_sets = [question_set for target in self.targets for question_set in self.question_sets(target)]
        curves = [question for target in self.targets for _, question in self.curve(target)]
        self.answer([*(q for one in question_sets for q in one.questions()), *curves], attackers, progress)
        return question_sets

    def answer(
        self, questions: Sequence[StoredQuestion], attackers: Callable[[], Attackers], progress: Progress
    ) -> None:
        """Compute and write the answers that are not on disk."""
        answer_questions(questions, self.states, self.records, self.method, attackers, progress)

    def replay_questions(self, source: ObservedRun) -> list[ReplayQuestion]:
        """The questions that ask for a replay of a run's messages, one per server that replays them. Their answers say
        which clients' models the server can attack, so they come before all other questions about models."""
        views = [v for name, v in source.views.items() if source is self.training or self._needs_twin(name)]
        replaying = [v for v in views if self.kind.replays and v.gives("sums of uploads") and not v.gives("probes")]
        return [ReplayQuestion(source.folder, ("clients",), view) for view in replaying]

    def _needs_twin(self, threat_model: str) -> bool:
        """Whether an attack of this adversary is compared with a twin of the federation."""
        return any({*ATTACKS[name].facts.needs} - {"probes"} for name in self.attacks[threat_model])

    def question_sets(self, target: Target) -> Iterator[QuestionSet]:
        """Yield the sets of questions about one target, one per adversary and model that it attacks, with those about
        the twin."""
        for name in self.attacks:
            wanted = self.wanted(name)
            twins = self._twins(name, target, wanted) if self._needs_twin(name) else {}
            for attacked in self._held(self.training, name, target, wanted):
                question_set = self._question_set(self.training, attacked, target, wanted)
                has_twin = attacked.over_rounds and attacked.way in twins
                yield replace(question_set, **twins[attacked.way]) if has_twin else question_set

    def _twins(self, threat_model: str, target: Target, wanted: Wanted) -> dict[str, dict[str, Any]]:
        """The fields `twin` and `drawn` of a `QuestionSet` about the simulated twin federation, by the kind of model
        (`way`); {} where there is no twin."""
        if (source := self.twin) is None or self.recipe is None or target.client is None:
            return {}
        drawn = TwinQuestion(source.folder, ("drawn",), self.recipe, target.client)
        wanted = replace(wanted, norms=False, vectors=False)
        return {
            attacked.way: {"twin": self._question_set(source, attacked, target, wanted), "drawn": drawn}
            for attacked in self._held(source, threat_model, target, wanted)
            if attacked.over_rounds
        }

    def _held(self, source: ObservedRun, name: str, target: Target, wanted: Wanted) -> list[AttackedModel]:
        """The models of a run that the adversary `name` attacks for this target."""
        rebuilt = source.rebuilt.get(name, ())
        view = source.views[name]
        return [*self.kind.collect_models(view, self.method, target, wanted, self.out_of_distribution, rebuilt)]

    def wanted(self, threat_model: str) -> Wanted:
        """Which kinds of answers (outputs, norms of gradients, messages, ...) this adversary's attacks need."""
        attacks = self.attacks[threat_model]
        facts, parameters = [ATTACKS[name].facts for name in attacks], list(attacks.values())
        return Wanted(
            answers=any(not f.shadows for f in facts),
            arithmetics=self.kind.arithmetics([getattr(params, "compat", "exact") for params in parameters]),
            norms=any(f.gradients for f in facts),
            states=any((f.needs and not f.reads) or (f.rounds and self.kind.over_rounds_alone) for f in facts),
            messages=any({"uploads", "sums of uploads"} & {*f.needed(self.records)} for f in facts),
            solved=any(f.mixtures for f in facts),
            contents=any(f.contents for f in facts),
            pooled=any(f.reads for f in facts),
            sequences=any(f.sequences for f in facts),
            vectors=any(f.vectors for f in facts),
            novel_of_clients=any(isinstance(p, NovelRows) and p.novel_rows == "all" for p in parameters),
            ways=frozenset(params.ways for params in parameters if isinstance(params, RebuiltWays)) - {"all"},
        )

    def _question_set(
        self, source: ObservedRun, attacked: AttackedModel, target: Target, wanted: Wanted
    ) -> QuestionSet:
        """All questions about one attacked model of a run, but those about its twin, which `question_sets` adds."""
        view, k, more = source.views[attacked.threat_model], target.client, dict[str, Any]()
        arithmetics, norms = wanted.arithmetics, ("norms",) * wanted.norms
        read_start = functools.partial(self.kind.public, view, self.method)
        start = self._model(source, ("public",), read_start, attacked.records, arithmetics + norms)
        key = attacked.threat_model, attacked.way, attacked.client, attacked.round
        model = self._model(source, key, attacked.read, attacked.records, arithmetics + norms)
        if k is not None and view.gives("probes"):
            more["probed"] = self._probed(view, k, target)
        elif k is not None and attacked.over_rounds and wanted.states:
            more |= self._over_rounds(source, attacked, target, wanted)
        if k is not None and wanted.pooled and attacked.over_rounds and self.method and self.method.reveals:
            more["pooled"] = PooledQuestion(source.folder, SUMS, view, k, target.candidates)
        if k is not None and wanted.sequences and view.gives("broadcasts"):
            rounds = shadow_models.sequence_rounds(view.rounds)
            more["sequence"] = [self._released(source, view, k, r, attacked.records) for r in rounds]
        if k is not None and source is self.training and attacked.of_target:
            more["before"] = self._before(k, attacked.records, arithmetics)
            more |= self._shadows(attacked, target, wanted, model, start)
        return QuestionSet(
            attacked.threat_model, attacked.way, attacked.client, attacked.round, target, attacked.records,
            len(view.clients), self.public(source, attacked.records), model, start, attacked.over_rounds, **more,
        )  # fmt: skip

    def _over_rounds(
        self, source: ObservedRun, attacked: AttackedModel, target: Target, wanted: Wanted
    ) -> dict[str, Any]:
        """The questions about several rounds, {field of a `QuestionSet`: questions}: about messages (`heard`, `solved`)
        if the adversary sees sums of them, else about broadcasts (`history`)."""
        view, k, most = source.views[attacked.threat_model], target.client, self.adversary.observed_rounds
        assert k is not None
        if not view.gives("sums of uploads"):
            rounds = self.kind.history(view, attacked, most) if view.gives("broadcasts") else []
            history = [self._released(source, view, k, r, attacked.records) for r in rounds]
            return {"history": history, "solved": self._changes(source, view, attacked) if wanted.solved else ()}

        def messages(parts: tuple[str, ...], rounds: Sequence[int]) -> list[MessageQuestion]:
            return [MessageQuestion(source.folder, parts, view, target, r) for r in rounds]

        questions: dict[str, Any] = {"heard": messages(self.kind.parts(wanted), self.kind.heard_rounds(view, k, most))}
        if wanted.solved:
            most = self.adversary.solved_rounds
            rounds = self.kind.solved_rounds(view, self.method, k, self.candidates, most)
            questions["solved"] = messages(("solved",), rounds)
        if wanted.contents:
            questions["contents"] = messages(("contents",), view.participations(k)[:1])
            questions["pictures"] = EmbeddingQuestion(self.folder, ("embeddings",), self.pictures)
        return questions

    def _probed(self, view: View, client: int, target: Target) -> dict[str, ProbeQuestion]:
        """The questions about a client's answers to probes, by attack; without those that it did not answer."""
        answered = {name: file for name, file in self.probes.items() if file.answer(client)}
        return {name: ProbeQuestion(self.folder, ("mixture",), view, name, f, target) for name, f in answered.items()}

    def _changes(self, source: ObservedRun, view: View, attacked: AttackedModel) -> list[ChangeQuestion]:
        """The questions about the changes of what was broadcast until the attacked model, each to be explained by the
        candidates of the round's cohort, or of all clients in a training elsewhere, which need not tell who took
        part."""
        rounds = range(attacked.round)[: self.adversary.solved_rounds or None]
        clients = [view.clients if self.method is None else view.cohort(r) for r in rounds]
        in_turn = itertools.zip_longest(*(target.reference for target in self.targets))
        references = [record for row in in_turn for record in row if record is not None][:REFERENCES]
        return [
            ChangeQuestion(
                source.folder, ("solved",), view, r, [*(i for k in some for i in self.candidates[k]), *references]
            )
            for r, some in zip(rounds, clients, strict=True)
        ]

    def _shadows(
        self, attacked: AttackedModel, target: Target, wanted: Wanted, model: ModelQuestion, start: ModelQuestion
    ) -> dict[str, Any]:
        """The fields `shadows` and, if wanted, `vectors` of a `QuestionSet` about shadow models; {} where none fit the
        model."""
        if self.recipe is None or self.bank_folder is None or attacked.role is None:
            return {}
        parts = wanted.arithmetics + ("drawn",) + ("norms",) * wanted.norms + ("sequence",) * wanted.sequences
        shadows = ShadowQuestion(self.bank_folder, parts, self.recipe, target, attacked.role, self.stand_ins)
        if not wanted.vectors:
            return {"shadows": shadows}
        weights = model.weights[0], start.weights[0]
        return {
            "shadows": shadows,
            "vectors": ProjectionQuestion(self.training.folder, ("projections",), shadows, weights),
        }

    def public(self, source: ObservedRun, records: Sequence[str]) -> RecordQuestion:
        """The question for public facts of some records (what needs no trained model); its answer lies with those of
        `source`."""
        return RecordQuestion(source.folder, ("public",), records)

    def curve(self, target: Target) -> list[tuple[int, ModelQuestion]]:
        """Questions about a client's true models, as (rounds that have passed, question), the start and at most `CURVE`
        more: for the report's loss curves, not for attacks. [] where the kind of records has no curves, or the target
        is no client."""
        if (k := target.client) is None or not self.kind.curves:
            return []
        transcript, source = self.training.transcript, self.training
        rounds = transcript.participations(k)
        chosen = sorted({rounds[int(i)] for i in np.linspace(0, len(rounds) - 1, CURVE).round()}) if rounds else []
        start = functools.partial(transcript.model, transcript.broadcast(0))
        readers = [(0, ("start",), start)] + [
            (r + 1, ("personal", k, r), functools.partial(transcript.personal, r, k)) for r in chosen
        ]
        return [(r, self._model(source, key, read, target.records, ("exact",))) for r, key, read in readers]

    def _released(self, source: ObservedRun, view: View, client: int, r: int, records: Sequence[str]) -> ModelQuestion:
        """The question about the released model after r rounds, as this adversary can put it together for a client."""

        def read() -> State:
            return self.kind.released(self.method, client, view.public, view.broadcast(r))

        key = view.gives("others' parts"), self._selector(client), r
        return self._model(source, key, read, records, ("exact",))

    def _before(self, client: int, records: Sequence[str], arithmetics: tuple[str, ...]) -> ModelQuestion | None:
        """The question about the released model before the client's first round: trained on other clients' records, not
        on its own. None if the client takes part in the first round or in none."""
        transcript = self.training.transcript
        if not (first := next(iter(transcript.participations(client)), 0)):
            return None

        def read() -> State:
            return self.kind.released(self.method, client, transcript.broadcast(0), transcript.broadcast(first))

        return self._model(self.training, ("before", self._selector(client), first), read, records, arithmetics)

    def _selector(self, client: int) -> int | None:
        """The client if it picks its model out of several that the server sends; None where all get the same."""
        return client if self.method is not None and self.method.messages.model_selector(client) else None

    def _model(
        self, source: ObservedRun, key: tuple[object, ...], read: Callable[[], State], records: Sequence[str],
        parts: tuple[str, ...],
    ) -> ModelQuestion:  # fmt: skip
        """The question about one model's outputs on these records. `key` identifies the model within its run; `read`,
        which reads its weights, is called once for their digest and later to answer."""
        place = source.folder, *key
        if place not in self._digests:
            self._digests[place] = self.digest(place, read)
            self.states[self._digests[place]] = read
        return ModelQuestion(source.folder, parts, (self._digests[place],), records)

    def digest(self, place: tuple[object, ...], read: Callable[[], State]) -> str:
        """A hash of the weights that `read` returns. `place`, the run's folder and what identifies the model there, is
        for subclasses that have no weights to read."""
        return state_digest(read())


def read_rebuilt(question: ReplayQuestion) -> list[Rebuilt]:
    """Every client as the server rebuilt it, read from the stored answer. A client that is not in the answer is listed
    too, without a state and with the reason "never sent anything"."""
    states: dict[int, State] = {}
    for name, array in question.read("clients").items():
        client, _, tensor = name.partition("/")
        states.setdefault(int(client), {})[tensor] = torch.from_numpy(array)
    model_kind = question.view.threat_model.attacks
    return [
        Rebuilt(k, model_kind, state := states[k], int(state.pop("seen")), 0, 0)
        if k in states
        else Rebuilt(k, model_kind, None, None, None, None, "never sent anything")
        for k in question.view.clients
    ]
