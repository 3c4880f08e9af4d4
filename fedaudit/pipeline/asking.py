"""What is dear is asked once: every answer lies under `answers/`, by what was asked, never by who asked.

Two folders hold them, one by the key of the training and one by that of the shadow models: another attack, another
order of attacks or another confidence finds there what was asked before. Questions are named by content: the weights
that were asked, the records, the arithmetic.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from attacks import gradients
from attacks.answers import Arrays, Floats, public_records
from attacks.attacked_models import Target, records_digest
from attacks.base import View
from attacks.questions.base import Messages, Questions
from attacks.questions.kinds import KINDS
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, shadows_of
from fedaudit.pipeline.workers import Attackers
from trainers.base import AttackBench, Differentiable, Method, State, pack, unpack

MET = 6  # replays and banks that a worker keeps


@dataclass(frozen=True)
class Desk:
    """Where questions are answered: a worker with the frozen model."""

    kind: Questions
    method: Method[Any] | None  # None: somebody else's training
    bench: AttackBench

    def once(self, key: tuple[object, ...], compute: Callable[[], Any]) -> Any:
        """What several questions need, computed for the first of them."""
        known = _KNOWN.setdefault(self.bench.learner, collections.OrderedDict())
        if key not in known:
            known[key] = compute()
            if len(known) > MET:
                known.popitem(last=False)
        return known[key]

    def messages(self, view: View) -> Messages:
        """All messages that an adversary sees."""
        place = "messages", view.threat_model, view.folder
        found: Messages = self.once(
            place, lambda: self.kind.messages(view, self.method, self.bench.learner, self.bench.candidates)
        )
        return found

    def shadows(self, recipe: ShadowRecipe, client: int) -> shadow_models.ShadowData:
        """The finished shadow models of a target."""
        key = "shadows", recipe.folder, client
        found: shadow_models.ShadowData = self.once(key, lambda: shadows_of(self.bench, recipe, client))
        return found


# by learner, in a worker
_KNOWN: weakref.WeakKeyDictionary[Any, collections.OrderedDict[tuple[object, ...], Any]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Ask:
    """Something that is asked: each of its parts is a file of a folder."""

    folder: Path
    parts: tuple[str, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """What is asked, by content."""

    def file(self, part: str) -> str:
        return f"{self.name}-{part}.safetensors"

    @abstractmethod
    def ask(self, desk: Desk) -> dict[str, Arrays]:
        """The answer, by part."""

    def work(self, whole: int) -> Mapping[str, float]:
        """How often it puts a question of each kind: `answers` and `gradients` of one model about all of a target's
        records, of which there are `whole`, `messages` of a round, `solved` ones, and `replays` of a run."""
        return {}

    def read(self, part: str) -> Arrays:
        """What was kept of a part."""
        return {name: tensor.numpy() for name, tensor in Folder(self.folder).read_tensors(self.file(part)).items()}


@dataclass(frozen=True)
class AskRecords(Ask):
    """What everybody knows of some records, or can compute without anything that was trained."""

    records: Sequence[str]

    @property
    def name(self) -> str:
        return f"records-{records_digest(tuple(self.records))}"

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        return {"public": desk.kind.public_records(desk.bench.learner, self.records)}


@dataclass(frozen=True)
class AskModel(Ask):
    """One model about some records; its parts are arithmetics, and `norms` of each record's gradient."""

    weights: tuple[str]  # their digest
    records: Sequence[str]
    states: tuple[bytes, ...] = ()  # on their way to a worker

    @property
    def name(self) -> str:
        return f"model-{self.weights[0]}-{records_digest(tuple(self.records))}"

    def work(self, whole: int) -> Mapping[str, float]:
        share = len(self.records) / whole
        return {"answers": share * (self.parts != ("norms",)), "gradients": share * ("norms" in self.parts)}

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        model, learner, found = unpack(self.states[0]), desk.bench.learner, dict[str, Arrays]()
        if arithmetics := [part for part in self.parts if part != "norms"]:
            (found,) = desk.kind.answers(learner, desk.method, [model], self.records, arithmetics)
        if "norms" in self.parts:
            assert isinstance(learner, Differentiable)
            found["norms"] = {"norms": gradients.gradient_norms(desk.method, learner, model, self.records)}
        return found


@dataclass(frozen=True)
class AskRebuilt(Ask):
    """Every client as a server rebuilds it that replays all messages; of one that it cannot rebuild nothing."""

    view: View

    @property
    def name(self) -> str:
        return f"rebuilt-{self.view.threat_model}"

    def work(self, whole: int) -> Mapping[str, float]:
        return {"replays": 1}

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        messages: Any = desk.messages(self.view)
        found = {k: messages.rebuilt(k) for k in self.view.clients}
        states = {k: one.state | {"seen": torch.tensor(one.seen)} for k, one in found.items() if one.state is not None}
        return {"clients": {f"{k}/{name}": t.numpy() for k, state in states.items() for name, t in state.items()}}


@dataclass(frozen=True)
class AskRound(Ask):
    """What the messages of a round say about a client's records, see `attacks.questions.base.Messages`."""

    view: View
    target: Target
    round: int

    @property
    def name(self) -> str:
        where = f"{self.view.threat_model}-{self.round:04d}-{self.target.client:03d}"
        return f"messages-{where}-{records_digest(self.target.records)}"

    def work(self, whole: int) -> Mapping[str, float]:
        return {"messages": float(self.parts != ("solved",)), "solved": float("solved" in self.parts)}

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        k, records = self.target.client, self.target.records
        assert k is not None
        found = desk.messages(self.view).round(
            k, self.round, records, self.parts, len(self.target.own), self.target.complete
        )
        return {p: {n.removeprefix(f"{p}/"): a for n, a in found.items() if n.startswith(f"{p}/")} for p in self.parts}


@dataclass(frozen=True)
class AskShadows(Ask):
    """The shadow models of a target in one role, S of them, about its records [n]. Parts: arithmetics, each array with
    the shadows in front; `norms` of gradients [S, n], nan for those that were not asked; `sequence` [S, T, n]; `drawn`,
    of which candidates each was trained on and along which simulated federation."""

    recipe: ShadowRecipe
    target: Target
    role: str
    normed: int  # of the first so many gradient norms are computed
    OTHER: ClassVar = ("norms", "sequence", "drawn")

    @property
    def name(self) -> str:
        return f"shadows-{self.target.client:03d}-{self.role}-{self.normed}-{records_digest(self.target.records)}"

    def work(self, whole: int) -> Mapping[str, float]:
        shadows, after = self.recipe.shadows, len(shadow_models.sequence_rounds(self.recipe.schedule.rounds))
        answers = shadows * (1 + after * ("sequence" in self.parts))
        return {"answers": answers, "gradients": min(self.normed, shadows) * ("norms" in self.parts)}

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        k, records, learner = self.target.client, self.target.records, desk.bench.learner
        assert k is not None
        trained = desk.shadows(self.recipe, k)
        models: Sequence[State] = getattr(trained, self.role)
        found = dict[str, Arrays]()
        if arithmetics := [part for part in self.parts if part not in self.OTHER]:
            each = desk.kind.answers(learner, desk.method, models, records, arithmetics)
            found = {p: {n: np.stack([one[p][n] for one in each]) for n in each[0][p]} for p in arithmetics}
        more: dict[str, Callable[[], Arrays]] = {
            "norms": lambda: {"norms": _norms(desk, models, records, self.normed)},
            "sequence": lambda: {"sequence": _sequences(desk, trained, records)},
            "drawn": lambda: {"member": trained.member, "trajectory": trained.trajectory},
        }
        return found | {part: more[part]() for part in self.parts if part in more}


def _norms(desk: Desk, models: Sequence[State], records: Sequence[str], normed: int) -> Floats:
    learner, lengths = desk.bench.learner, np.full((len(models), len(records)), np.nan)
    assert isinstance(learner, Differentiable)
    for s, model in enumerate(models[:normed]):
        lengths[s] = gradients.gradient_norms(desk.method, learner, model, records)
    return lengths


def _sequences(desk: Desk, trained: shadow_models.ShadowData, records: Sequence[str]) -> Floats:
    """What S shadows' released models after T rounds say, [S, T, n]; see `Knowledge.sequence`."""
    learner = desk.bench.learner
    public = public_records(desk.kind.public_records(learner, records))
    of_rounds = [
        [public.answers(said).confidence for said in desk.kind.answers(learner, desk.method, after, records, ["exact"])]
        for after in zip(*trained.sequence, strict=True)
    ]
    return np.swapaxes(np.array(of_rounds), 0, 1)


@dataclass(frozen=True)
class AskVectors(Ask):
    """How far training has moved a model [n], nothing [n] and the shadows [S, n] on each record's descent where
    training ends on average: at the public start, moved as far as the shadows were."""

    shadows: AskShadows
    weights: tuple[str, str]  # of the model, and of the start of the training under attack
    states: tuple[bytes, ...] = ()

    @property
    def name(self) -> str:
        return f"vectors-{self.weights[0]}-{self.shadows.name}"

    def work(self, whole: int) -> Mapping[str, float]:
        return {"gradients": 1}

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        model, public = map(unpack, self.states)
        client = self.shadows.target.client
        assert client is not None
        trained = desk.shadows(self.shadows.recipe, client)
        pairs = [*zip(getattr(trained, self.shadows.role), trained.start, strict=True)]
        place = "descents", self.folder, self.shadows.name
        directions = desk.once(place, lambda: self._descents(desk, public, pairs))
        moved, still, *shadows = (
            directions @ gradients.change(model, start) for model, start in [(model, public), (public, public), *pairs]
        )
        return {"projections": {"moved": moved, "still": still, "shadows": np.stack(shadows)}}

    def _descents(self, desk: Desk, public: State, pairs: Sequence[tuple[State, State]]) -> Floats:
        assert isinstance(desk.bench.learner, Differentiable)
        moved = {name: torch.stack([model[name] - start[name] for model, start in pairs]).mean(0) for name in public}
        middle = {name: public[name] + mean for name, mean in moved.items()}
        return gradients.descents(desk.method, desk.bench.learner, middle, self.shadows.target.records)


@dataclass(frozen=True)
class AskDrawn(Ask):
    """Which of a target's candidates the adversary's twin of the federation was trained on."""

    recipe: ShadowRecipe
    client: int

    @property
    def name(self) -> str:
        return f"twin-{self.client:03d}"

    def ask(self, desk: Desk) -> dict[str, Arrays]:
        recipe = self.recipe
        assert recipe.twin is not None
        transcript = recipe.simulated(recipe.twin)
        (member,) = shadow_models.members(
            desk.bench, recipe.method, transcript, self.client, seed=recipe.seed, shadows=[recipe.twin]
        )
        return {"drawn": {"member": member}}


@dataclass(frozen=True)
class Job:
    """A question on its way to a worker."""

    kind: str
    method: Method[Any] | None
    question: Ask


def answer(bench: AttackBench, job: Job) -> dict[str, Arrays]:
    """What a worker says to a question, by part."""
    return job.question.ask(Desk(KINDS[job.kind], job.method, bench))


def merged(questions: Iterable[Ask]) -> list[Ask]:
    """Each once, with all of its parts."""
    found: dict[tuple[Path, str], Ask] = {}
    for question in questions:
        known = found.setdefault((question.folder, question.name), question)
        parts = tuple(dict.fromkeys((*known.parts, *question.parts)))
        found[question.folder, question.name] = replace(known, parts=parts)
    return list(found.values())


def missing(questions: Iterable[Ask], usable: Callable[[Path, str], bool]) -> list[Ask]:
    """Those of which a part is not kept, with these parts."""
    left = ((q, tuple(p for p in q.parts if not usable(q.folder, q.file(p)))) for q in merged(questions))
    return [replace(question, parts=parts) for question, parts in left if parts]


def ask(
    questions: Iterable[Ask], states: Mapping[str, Callable[[], State]], kind: str, method: Method[Any] | None,
    attackers: Callable[[], Attackers], progress: Progress,
) -> None:  # fmt: skip
    """Ask what is not kept, and keep it; `states` reads weights by their digest. Another process that asks the same
    waits."""
    questions = list(questions)
    with contextlib.ExitStack() as locks:
        for folder in sorted({question.folder for question in questions}):
            locks.enter_context(claim(folder).lock(progress.say))
        todo = missing(questions, lambda folder, file: Folder(folder).usable(file, progress.say))
        todo.sort(key=lambda question: not isinstance(question, AskShadows))  # the longest first
        if not todo:
            return
        workers, label = attackers(), f"{len(todo)} question{'s' * (len(todo) > 1)} to the model"
        with progress.stage(label, len(todo)) as advance:
            jobs = (Job(kind, method, _loaded(question, states)) for question in todo)
            for question, answers in zip(todo, workers.map(answer, jobs), strict=True):
                for part, arrays in answers.items():
                    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
                    Folder(question.folder).write_tensors(question.file(part), tensors)
                advance()


def _loaded(question: Ask, states: Mapping[str, Callable[[], State]]) -> Ask:
    """With the weights that it is put to."""
    if isinstance(question, AskModel | AskVectors):
        return replace(question, states=tuple(pack(states[digest]()) for digest in question.weights))
    return question
