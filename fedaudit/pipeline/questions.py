"""Questions to models, and their answers on disk: whatever costs a pass through a model is computed once.

An answer has parts, and each part is a file under `answers/`: in a folder of the training, or in one of the shadow
models. Files are named by content (weights, records, arithmetic), not by adversary or attack. So another attack,
another order of attacks or another confidence level reads what is there.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedaudit.attacks import gradients
from fedaudit.attacks.answers import Arrays, Floats, public_records
from fedaudit.attacks.attacked_models import Target, records_digest
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.adapters import AdapterMessages
from fedaudit.attacks.questions.base import Messages, Questions
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, shadows_of
from fedaudit.pipeline.workers import Attackers
from fedaudit.trainers.base import Method, State, pack, unpack
from fedaudit.trainers.protocols import AttackBench, Differentiable

CACHED = 6  # replayed runs, shadow models and descent directions that a worker keeps in memory


@dataclass(frozen=True)
class ModelWorker:
    """A worker that answers questions: it has the frozen model and the records."""

    kind: Questions
    method: Method[Any] | None  # None: somebody else's training
    bench: AttackBench

    def cached(self, key: tuple[object, ...], compute: Callable[[], Any]) -> Any:
        """The result of `compute()`, kept under `key` for later questions; the worker keeps the `CACHED` newest
        results."""
        results = _CACHE.setdefault(self.bench.learner, collections.OrderedDict())
        if key not in results:
            results[key] = compute()
            if len(results) > CACHED:
                results.popitem(last=False)
        return results[key]

    def messages(self, view: View) -> Messages:
        """All messages that the adversary with this view sees, read once."""
        key, bench = ("messages", view.threat_model, view.folder), self.bench
        return self.cached(key, lambda: self.kind.messages(view, self.method, bench.learner, bench.candidates))

    def shadows(self, recipe: ShadowRecipe, client: int) -> shadow_models.ShadowModels:
        """The finished shadow models of a target client, read once."""
        key = "shadows", recipe.folder, client
        return self.cached(key, lambda: shadows_of(self.bench, recipe, client))


# results of `ModelWorker.cached` in this process, by learner
_CACHE: weakref.WeakKeyDictionary[Any, collections.OrderedDict[tuple[object, ...], Any]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class StoredQuestion:
    """A question to models. Each part of its answer is one file of named arrays in `folder`."""

    folder: Path
    parts: tuple[str, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """Name the question by its content, without its parts; the names of its files begin so."""

    def file(self, part: str) -> str:
        return f"{self.name}-{part}.safetensors"

    @abstractmethod
    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        """Compute the answer: arrays by part and name."""

    def work(self, target_records: int) -> Mapping[str, float]:
        """How many units of work the answer takes, by kind, for estimates of time; {} is next to nothing.

        Kinds: `answers` and `gradients` (one model on all `target_records`), `messages` (one round's), `solved` (one
        message solved for its batch), `replays` (all messages of a run).
        """
        return {}

    def read(self, part: str) -> Arrays:
        """Read one part of the answer from disk: arrays by name."""
        return {name: tensor.numpy() for name, tensor in Folder(self.folder).read_tensors(self.file(part)).items()}


@dataclass(frozen=True)
class RecordQuestion(StoredQuestion):
    """Asks for public facts of some records: whatever can be computed without a trained model. One part, `public`."""

    records: Sequence[str]

    @property
    def name(self) -> str:
        return f"records-{records_digest(tuple(self.records))}"

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        return {"public": worker.kind.public_records(worker.bench.learner, self.records)}


@dataclass(frozen=True)
class ModelQuestion(StoredQuestion):
    """Asks for a model's outputs on some records [n]. Parts: one per arithmetic (such as `exact`), and `norms` of each
    record's gradient."""

    weights: tuple[str]  # their digest
    records: Sequence[str]
    states: tuple[bytes, ...] = ()  # the weights themselves, packed; filled in when the question goes to a worker

    @property
    def name(self) -> str:
        return f"model-{self.weights[0]}-{records_digest(tuple(self.records))}"

    def work(self, target_records: int) -> Mapping[str, float]:
        share = len(self.records) / target_records
        return {"answers": share * (self.parts != ("norms",)), "gradients": share * ("norms" in self.parts)}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        model, learner, answer = unpack(self.states[0]), worker.bench.learner, dict[str, Arrays]()
        if arithmetics := [part for part in self.parts if part != "norms"]:
            (answer,) = worker.kind.answers(learner, worker.method, [model], self.records, arithmetics)
        if "norms" in self.parts:
            assert isinstance(learner, Differentiable)
            answer["norms"] = {"norms": gradients.gradient_norms(worker.method, learner, model, self.records)}
        return answer


@dataclass(frozen=True)
class ReplayQuestion(StoredQuestion):
    """Asks for every client's model as a server rebuilds it by replaying all messages. Its one part, `clients`, holds
    arrays named "client/tensor", with the round of the client's last message as "client/seen". A client that cannot
    be rebuilt is left out."""

    view: View

    @property
    def name(self) -> str:
        return f"rebuilt-{self.view.threat_model}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"replays": 1}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        messages: Any = worker.messages(self.view)
        clients = [messages.rebuilt(k) for k in self.view.clients]
        states = {c.client: c.state | {"seen": torch.tensor(c.last_round)} for c in clients if c.state is not None}
        return {"clients": {f"{k}/{name}": t.numpy() for k, state in states.items() for name, t in state.items()}}


@dataclass(frozen=True)
class MessageQuestion(StoredQuestion):
    """Asks the messages of one round about a target's records. Parts as in `attacks.questions.base.Messages.round`."""

    view: View
    target: Target
    round: int

    @property
    def records(self) -> Sequence[str]:
        """The target's records: all that are asked about, those by which a message is solved first."""
        return self.target.records

    @property
    def name(self) -> str:
        where = f"{self.view.threat_model}-{self.round:04d}-{self.target.client:03d}"
        return f"messages-{where}-{records_digest(self.target.records)}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"messages": float(self.parts != ("solved",)), "solved": float("solved" in self.parts)}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        k = self.target.client
        assert k is not None
        arrays = worker.messages(self.view).round(
            k, self.round, self.records, self.parts, worker.kind.solved_for(self.target), self.target.complete
        )
        return {p: {n.removeprefix(f"{p}/"): a for n, a in arrays.items() if n.startswith(f"{p}/")} for p in self.parts}


@dataclass(frozen=True)
class ChangeQuestion(StoredQuestion):
    """Asks how records explain the change of the broadcast of adapters in a round. Its one part, `solved`, has the
    fields of `Explained`."""

    view: View
    round: int
    records: Sequence[str]  # of all clients whose messages may be in it, and known non-members at the end

    @property
    def name(self) -> str:
        return f"change-{self.round:04d}-{records_digest(tuple(self.records))}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"solved": len(self.records) / target_records}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        messages = worker.messages(self.view)
        assert isinstance(messages, AdapterMessages)
        return {"solved": messages.change(self.round, self.records)}


@dataclass(frozen=True)
class ShadowQuestion(StoredQuestion):
    """Asks the S shadow models of a target for their outputs on its records [n]. Parts: one per arithmetic, each array
    with the axis S in front; `norms` of gradients [S, n], NaN beyond the first `with_norms` shadows; `sequence`
    [S, T, n], see `Knowledge.sequence`; `drawn`: which candidates each was trained on, `member` [S, candidates], and
    along which simulated federation, `trajectory` [S]."""

    recipe: ShadowRecipe
    target: Target
    role: str  # which model of a shadow client is asked: "personal" or "released"
    with_norms: int
    OTHER: ClassVar = ("norms", "sequence", "drawn")  # parts that are no arithmetics

    @property
    def name(self) -> str:
        return f"shadows-{self.target.client:03d}-{self.role}-{self.with_norms}-{records_digest(self.target.records)}"

    def work(self, target_records: int) -> Mapping[str, float]:
        shadows, rounds = self.recipe.shadows, len(shadow_models.sequence_rounds(self.recipe.schedule.rounds))
        answers = shadows * (1 + rounds * ("sequence" in self.parts))
        return {"answers": answers, "gradients": min(self.with_norms, shadows) * ("norms" in self.parts)}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        k, records, learner = self.target.client, self.target.records, worker.bench.learner
        assert k is not None
        shadows = worker.shadows(self.recipe, k)
        models: Sequence[State] = getattr(shadows, self.role)
        answer = dict[str, Arrays]()
        if arithmetics := [part for part in self.parts if part not in self.OTHER]:
            outputs = worker.kind.answers(learner, worker.method, models, records, arithmetics)
            answer = {p: {n: np.stack([one[p][n] for one in outputs]) for n in outputs[0][p]} for p in arithmetics}
        more: dict[str, Callable[[], Arrays]] = {
            "norms": lambda: {"norms": _norms(worker, models, records, self.with_norms)},
            "sequence": lambda: {"sequence": _sequences(worker, shadows, records)},
            "drawn": lambda: {"member": shadows.member, "trajectory": shadows.trajectory},
        }
        return answer | {part: more[part]() for part in self.parts if part in more}


def _norms(worker: ModelWorker, models: Sequence[State], records: Sequence[str], with_norms: int) -> Floats:
    learner, norms = worker.bench.learner, np.full((len(models), len(records)), np.nan)
    assert isinstance(learner, Differentiable)
    for s, model in enumerate(models[:with_norms]):
        norms[s] = gradients.gradient_norms(worker.method, learner, model, records)
    return norms


def _sequences(worker: ModelWorker, shadows: shadow_models.ShadowModels, records: Sequence[str]) -> Floats:
    """Confidences [S, T, n] about n records of S shadows' released models, each after T rounds; see
    `Knowledge.sequence`."""
    learner = worker.bench.learner
    public = public_records(worker.kind.public_records(learner, records))
    confidences = [
        [
            public.answers(one).confidence
            for one in worker.kind.answers(learner, worker.method, models, records, ["exact"])
        ]
        for models in zip(*shadows.sequence, strict=True)
    ]
    return np.swapaxes(np.array(confidences), 0, 1)


@dataclass(frozen=True)
class ProjectionQuestion(StoredQuestion):
    """Asks how far training has moved a model along each record's descent direction. Its one part, `projections`, has
    `moved` [n] of the attacked model, `still` [n] of the public start, and `shadows` [S, n]. Directions are taken at
    the public start plus the shadows' mean change."""

    shadows: ShadowQuestion
    weights: tuple[str, str]  # digests: of the attacked model, and of the public start
    states: tuple[bytes, ...] = ()  # these weights, packed; filled in when the question goes to a worker

    @property
    def name(self) -> str:
        return f"vectors-{self.weights[0]}-{self.shadows.name}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"gradients": 1}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        model, public = map(unpack, self.states)
        client = self.shadows.target.client
        assert client is not None
        trained = worker.shadows(self.shadows.recipe, client)
        pairs = [*zip(getattr(trained, self.shadows.role), trained.start, strict=True)]
        key = "descents", self.folder, self.shadows.name
        directions = worker.cached(key, lambda: self._descents(worker, public, pairs))
        moved, still, *shadows = (
            directions @ gradients.change(model, start) for model, start in [(model, public), (public, public), *pairs]
        )
        return {"projections": {"moved": moved, "still": still, "shadows": np.stack(shadows)}}

    def _descents(self, worker: ModelWorker, public: State, pairs: Sequence[tuple[State, State]]) -> Floats:
        """Unit vectors [n, weights] along which each record's loss falls fastest, at the public start plus the mean
        change over `pairs` (model, start)."""
        assert isinstance(worker.bench.learner, Differentiable)
        change = {name: torch.stack([model[name] - start[name] for model, start in pairs]).mean(0) for name in public}
        middle = {name: public[name] + mean for name, mean in change.items()}
        return gradients.descents(worker.method, worker.bench.learner, middle, self.shadows.target.records)


@dataclass(frozen=True)
class TwinQuestion(StoredQuestion):
    """Asks which of a target's candidates [n] the twin federation was trained on: `member` of its one part, `drawn`.
    The twin is the federation that the adversary simulates for comparison (`ShadowRecipe.twin`)."""

    recipe: ShadowRecipe
    client: int

    @property
    def name(self) -> str:
        return f"twin-{self.client:03d}"

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        recipe = self.recipe
        assert recipe.twin is not None
        transcript = recipe.simulated(recipe.twin)
        (member,) = shadow_models.members(
            worker.bench, recipe.method, transcript, self.client, seed=recipe.seed, shadows=[recipe.twin]
        )
        return {"drawn": {"member": member}}


def _answer(bench: AttackBench, job: tuple[str, Method[Any] | None, StoredQuestion]) -> dict[str, Arrays]:
    """In a worker: compute the answer of a question. A job is (kind of records, method, question)."""
    kind, method, question = job
    return question.answer(ModelWorker(KINDS[kind], method, bench))


def merged(questions: Iterable[StoredQuestion]) -> list[StoredQuestion]:
    """The questions without repetition: those of one folder and name become one with the parts of all."""
    by_file: dict[tuple[Path, str], StoredQuestion] = {}
    for question in questions:
        first = by_file.setdefault((question.folder, question.name), question)
        parts = tuple(dict.fromkeys((*first.parts, *question.parts)))
        by_file[question.folder, question.name] = replace(first, parts=parts)
    return list(by_file.values())


def _unanswered(questions: Iterable[StoredQuestion], usable: Callable[[Path, str], bool]) -> list[StoredQuestion]:
    """The merged questions that lack a part on disk, with the lacking parts only; `usable(folder, file)` looks."""
    lacking = ((q, tuple(p for p in q.parts if not usable(q.folder, q.file(p)))) for q in merged(questions))
    return [replace(question, parts=parts) for question, parts in lacking if parts]


def answer_questions(
    questions: Iterable[StoredQuestion], states: Mapping[str, Callable[[], State]], kind: str,
    method: Method[Any] | None, attackers: Callable[[], Attackers], progress: Progress,
) -> None:  # fmt: skip
    """Compute and write the answers that are not on disk. `states` reads weights by their digest; `attackers` starts
    the workers, and is called only if something is missing. Another process with the same folders waits."""
    questions = list(questions)
    with contextlib.ExitStack() as locks:
        for folder in sorted({question.folder for question in questions}):
            locks.enter_context(claim(folder).lock(progress.say))
        todo = _unanswered(questions, lambda folder, file: Folder(folder).usable(file, progress.say))
        todo.sort(key=_order)
        if not todo:
            return
        workers = attackers()  # before the stage: they are forked
        with progress.stage("asking the models about the records", len(todo), "question") as advance:
            packed = functools.lru_cache(maxsize=1)(lambda digest: pack(states[digest]()))
            jobs = ((kind, method, _with_weights(question, packed)) for question in todo)
            for question, answer in zip(todo, workers.map(_answer, jobs), strict=True):
                for part, arrays in answer.items():
                    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
                    Folder(question.folder).write_tensors(question.file(part), tensors)
                advance()


def _order(question: StoredQuestion) -> tuple[bool, tuple[str, ...]]:
    """Sort key: questions about shadow models take longest; those about one model share its weights, read once."""
    return not isinstance(question, ShadowQuestion), question.weights if isinstance(question, ModelQuestion) else ()


def _with_weights(question: StoredQuestion, packed: Callable[[str], bytes]) -> StoredQuestion:
    """The question with the packed weights that it is about, for a worker; one that names no weights as it is."""
    if isinstance(question, ModelQuestion | ProjectionQuestion):
        return replace(question, states=tuple(packed(digest) for digest in question.weights))
    return question
