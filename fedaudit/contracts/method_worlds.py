"""The smallest world of every learner, in which any of its methods can run: three clients with few records."""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedaudit.attacks.attacked_models import Target, Wanted
from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import Floats
from fedaudit.attacks.messages.prompts import ReplayedMessages, losses
from fedaudit.attacks.questions.classes import ClassQuestions
from fedaudit.backbones.vlm import load
from fedaudit.contracts import maple_toy, prompt_toy, tiny_llava
from fedaudit.contracts.in_process import Candidates, message_answers, models, trained
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.store import claim
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.tasks.base import Record
from fedaudit.tasks.metrics import caption_scores
from fedaudit.trainers import lora, maple, prompts
from fedaudit.trainers.base import Method, Participation, Schedule, Site, State
from fedaudit.trainers.evaluations import Answers, Personalisation, Recognition
from fedaudit.trainers.protocols import Bench, Evaluation
from fedaudit.trainers.steps import PrivateMethod
from fedaudit.trainers.transcript import Transcript

CLIENTS, ROUNDS = 3, 2
SIZES, EQUAL = (10, 6, 3), (4, 4, 4)  # records of the clients


@dataclass(frozen=True)
class World(ABC):
    """A learner and its clients' training records."""

    learner: Any
    training: tuple[tuple[str, ...], ...]
    left_out: frozenset[str] = frozenset()  # of these the records that weigh 0

    def make(self, plugin: Plugin[Any]) -> Method[Any]:
        """A method with its own defaults, and the learner's settings where it holds some."""
        made: Method[Any] = plugin.make(plugin.params())
        return dataclasses.replace(made, settings=self.learner.settings) if isinstance(made, PrivateMethod) else made

    @abstractmethod
    def equal(self) -> World:
        """This world with clients of equal sizes."""

    @abstractmethod
    def meaning(self, model: State) -> State:
        """The tensors that a model computes with: equal for models that are the same function."""

    @abstractmethod
    def loss(self, method: Method[Any], model: State, client: int) -> float:
        """Mean loss of a client's training records under a model."""

    @property
    @abstractmethod
    def evaluation(self) -> Evaluation:
        """How good models are, asked with every client's records."""

    @abstractmethod
    def attacked(self, method: Method[Any], view: View) -> list[tuple[State, Floats]]:
        """The models that an adversary attacks client 0 by, and the losses of that client's records under each; where
        it hears clients, also right after their steps."""

    @abstractmethod
    def disguised(self, records: Set[str]) -> World:
        """This world where these records hold something else, as long as it was."""

    def with_rates(self, rate: float, **settings: Any) -> World:
        """This world with these learning rates, which no settings can ask for, and other settings."""
        learner = copy.copy(self.learner)
        learner.settings = with_rates(dataclasses.replace(learner.settings, **settings), rate)
        return dataclasses.replace(self, learner=learner)

    def clients(self, r: int, earlier: Sequence[int]) -> list[Participation]:
        """All clients in a round."""
        return [
            Participation(k, r, 0, ids, self.learner, tuple(earlier), self.left_out)
            for k, ids in enumerate(self.training)
        ]

    def site(self, r: int) -> Site:
        """The server in a round, with the learner at hand."""
        return Site(0, r, learner=lambda question: question(self.learner))

    def run(
        self,
        method: Method[Any],
        path: Path,
        *,
        seed: int = 0,
        turned: bool = False,
        evaluation: Any = NoEvaluation(),  # noqa: B008, it has no state
        until: int | None = None,
    ) -> Transcript:
        """The rounds of the loop. `turned`: candidates, test and novel records are listed in the opposite order."""
        listed = tuple(record for mine in self.training for record in mine)[:: -1 if turned else 1]
        bench = Bench(self.learner, self.training, listed, listed, (listed,) * CLIENTS, left_out=self.left_out)
        schedule = Schedule(rounds=ROUNDS, clients=CLIENTS, per_round=CLIENTS, seed=seed)
        return trained(path, method, schedule, bench, evaluation=evaluation, until=until)


class AdapterWorld(World):
    """Adapters of a tiny random model, one local step."""

    def equal(self) -> World:
        return dataclasses.replace(self, training=tuple(mine[:2] for mine in self.training))

    @property
    def evaluation(self) -> Evaluation:
        return Answers([("a red circle",)] * sum(map(len, self.training)), caption_scores)

    def attacked(self, method: Method[Any], view: View) -> list[tuple[State, Floats]]:
        candidates = Candidates({0: self.training[0]}, {0: ()}, ())
        attackable = [model.read() for model in models(view, candidates) if model.records]
        return [(state, np.array(self.learner.losses(state, self.training[0]))) for state in attackable]

    def disguised(self, records: Set[str]) -> World:
        """Other images, and texts read backwards."""
        learner = copy.copy(self.learner)
        learner.data = dict(learner.data)
        for record in records:
            mine, other = learner.data[record], next(e for name, e in learner.data.items() if name not in records)
            ids = torch.cat([mine.ids[: mine.prompt], mine.ids[mine.prompt :].flip(0)])
            learner.data[record] = dataclasses.replace(mine, ids=ids, source=other.source)
        return dataclasses.replace(self, learner=learner)

    def meaning(self, model: State) -> State:
        return {name[:-2]: model[f"{name[:-2]}.B"] @ tensor for name, tensor in model.items() if name.endswith(".A")}

    def loss(self, method: Method[Any], model: State, client: int) -> float:
        losses = self.learner.losses(model, self.training[client])
        return sum(losses) / len(losses)


class PromptWorld(World):
    """PromptWorld on a tiny random CLIP."""

    def equal(self) -> World:
        return _prompts(EQUAL)

    @property
    def evaluation(self) -> Evaluation:
        return Recognition(np.array(self._owned))

    @property
    def _owned(self) -> NDArray[np.bool_]:
        """Which records each client owns [clients, records], of clients that own every third one."""
        return np.arange(sum(map(len, self.training))) % CLIENTS == np.arange(CLIENTS)[:, None]

    def attacked(self, method: Method[Any], view: View) -> list[tuple[State, Floats]]:
        hears = view.gives("uploads") or view.gives("sums of uploads")
        messages = ReplayedMessages(view, method, self.learner, self.training) if hears else None
        rebuilt = [messages.rebuilt(k) for k in view.clients] if messages else []
        target = Target(0, self.training[0], [])
        (attacked_model,) = ClassQuestions().collect_models(view, method, target, Wanted(), (), rebuilt)
        model = attacked_model.read()
        of_rounds = message_answers(messages, 0, self.training[0], range(ROUNDS)).loss[:, 0] if messages else ()
        return [(model, loss) for loss in (*losses(method, self.learner, [model], self.training[0]), *of_rounds)]

    def disguised(self, records: Set[str]) -> World:
        """Pictures turned inside out, and the next class."""
        learner, features = copy.copy(self.learner), self.learner.features
        rows = [features._row[record] for record in records]
        whole, patches = features._features.clone(), list(features._patches)
        whole[rows] *= -1
        for row in rows:
            patches[row] = -patches[row]
        learner.features = dataclasses.replace(features, _features=whole, _patches=patches)
        changed = {record: (learner._labels[record] + 1) % len(learner.classes) for record in records}
        learner._labels = learner._labels | changed
        return dataclasses.replace(self, learner=learner)

    def meaning(self, model: State) -> State:
        return model

    def loss(self, method: Method[Any], model: State, client: int) -> float:
        assert isinstance(method, prompts.PromptMethod)
        ids = self.training[client]
        with torch.no_grad():
            images = self.learner.images(ids, patches=method.patches)
            similar = method.scores(self.learner.text(model["prompt"])[None], images[None])[0]
        return float(F.cross_entropy(self.learner.scale * similar, self.learner.labels(ids)))


class DualPromptWorld(PromptWorld):
    """Dual prompts on the same CLIP, whose pictures are random tokens."""

    def equal(self) -> World:
        return _dual(EQUAL)

    @property
    def evaluation(self) -> Evaluation:
        return Personalisation(np.array(self._owned))

    def disguised(self, records: Set[str]) -> World:
        world = super().disguised(records)
        world.learner._tokens = maple_toy.disguised(world.learner._tokens, records)
        return world

    def loss(self, method: Method[Any], model: State, client: int) -> float:
        ids = self.training[client]
        return float(self.learner.losses(model["Pt"][None], model["Pd"][None], [(ids, len(ids))]))


@functools.cache
def _lora() -> World:
    rng = np.random.default_rng(0)
    records = [
        Record(
            f"r{i}", "g", rng.integers(0, 255, (20, 30, 3), dtype=np.uint8), "USER : <image> describe the picture :",
            " ".join(rng.choice(tiny_llava.WORDS, size=3 + i % 5)),
        )
        for i in range(9)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        vlm = load(tiny_llava.save(Path(folder) / "model", tiny_llava.llava))
        data = vlm.encode(records, claim(Path(folder) / "cache"), say=print)
    learner = lora.Learner(vlm, data, lora.Settings(local_steps=1, batch=1))
    names = [record.id for record in records]
    return AdapterWorld(learner, (tuple(names[:2]), tuple(names[2:5]), tuple(names[5:])))


@functools.cache
def _prompts(sizes: tuple[int, ...] = SIZES) -> World:
    federation = prompt_toy.federation(sizes)
    settings = prompts.Settings(prompt_length=9, batch=4)
    return PromptWorld(federation.learner(settings), federation.training)


@functools.cache
def _dual(sizes: tuple[int, ...] = SIZES) -> World:
    settings = maple.Settings(prompt_length=9, batch=4, local_epochs=0, rate=0.1)
    return DualPromptWorld(maple_toy.learner(settings, sizes), prompt_toy.federation(sizes).training)


WORLDS: Mapping[str, Any] = {"lora": _lora, "maple": _dual, "prompts": _prompts}  # by learner


def with_rates(settings: Any, rate: float) -> Any:
    """A copy with these rates of clients' steps: set past validation, which refuses 0. Those of the server, which call
    it by name, stay: it rests where no client has moved."""
    changed = copy.copy(settings)
    for field in dataclasses.fields(settings):
        if field.name.endswith("rate") and not field.name.startswith("server"):
            object.__setattr__(changed, field.name, rate)
    return changed
