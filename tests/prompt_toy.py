"""Small federations for the tests of the prompt methods: a tiny random CLIP, or one whose every number can be worked out by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones.clip import ClassTexts
from fedaudit.contracts import tiny_clip  # noqa: F401, for other tests
from fedaudit.contracts.prompt_toy import NAMES, PATCHES, SETTINGS, SIZES, clip, federation  # noqa: F401
from fedaudit.contracts.prompt_toy import TinyFederation as Federation
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers import learners
from fedaudit.trainers.base import Schedule, Update
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.prompts import PromptMethod, Settings
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests.toy import trained

SCHEDULE = Schedule(rounds=5, clients=3, per_round=3, seed=1)
NONE = Privacy(epsilon=math.inf)
PRIVACY = {
    "none": NONE,
    "record": Privacy(epsilon=30, clip_norm=2),
    "batch": Privacy(epsilon=30, clip_norm=2, clip="batch"),
    "batch, short": Privacy(epsilon=30, clip_norm=1e6, clip="batch"),
    "poisson": Privacy(epsilon=30, clip_norm=2, sampler="poisson"),
    "poisson, batch": Privacy(epsilon=30, clip_norm=2, sampler="poisson", clip="batch"),
    "poisson, none": Privacy(epsilon=math.inf, sampler="poisson"),
}
METHODS = {name: plugin for name, plugin in learners.METHODS.items() if plugin.facts.learner == "prompts"}


@dataclass(frozen=True)
class LinearCLIP:
    """A text encoder that is a linear map: class c has the feature sum_j w[c, j, :] p[j] of a prompt p with one column."""

    weights: Tensor  # [C, b, E]
    scale: float = 1.0
    width: int = 1

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def embed(self) -> int:
        return self.weights.shape[-1]

    def text_memory(self, texts: ClassTexts, *, by_class: bool = False) -> tuple[int, int]:
        return 1, 1

    def text(self, context: Tensor, texts: ClassTexts) -> Tensor:
        return torch.einsum("...bd,cbe->...ce", context, self.weights)

    def classes(self, names: Sequence[str], context: int) -> ClassTexts:
        n = len(names)
        return ClassTexts(tuple(names), context, torch.zeros(n, self.width), ((n, 1),), torch.arange(n))

    def words(self, text: str) -> Tensor:
        return torch.zeros(self.weights.shape[1], self.width)


def on_a_line(clients: Sequence[Sequence[tuple[float, int]]]) -> Federation:
    """Records (x, label) of numbers in two classes: the prompt is a number p, the similarity of x is p x with class 0 and 0 with class 1."""
    training = tuple(tuple(f"{k}-{i}" for i in range(len(own))) for k, own in enumerate(clients))
    ids = tuple(record for own in training for record in own)
    pairs = [pair for own in clients for pair in own]
    x = torch.tensor([[x] for x, _ in pairs])
    labels = dict(zip(ids, (label for _, label in pairs), strict=True))
    encoder = LinearCLIP(torch.tensor([[[1.0]], [[0.0]]]))
    return Federation(encoder, ids, x, x[:, None], labels, training, (), ("yes", "no"))


def run(
    path: Path, method: Any, world: Federation, schedule: Schedule, *, clients_per_batch: int = 50, **more: Any
) -> Transcript:
    """Train `method` by the real loop (`trained`); a client owns the classes of its number and the next one."""
    learner = taking(clients_per_batch, world.learner(method.settings), method)
    bench = Bench(learner, world.training, world.test, left_out=world.left_out)
    own = [[world.labels[t] in (k % 5, (k + 1) % 5) for t in world.test] for k in range(schedule.clients)]
    return trained(path, method, schedule, bench, evaluation=Recognition(own), **more)


def taking(clients: int, learner: Any, method: Any) -> Any:
    """The learner with as much memory as takes so many clients together."""
    learner.memory = clients * learner.client_bytes(method)
    return learner


def made(
    name: str, params: Any, privacy: Privacy = NONE, schedule: Schedule = SCHEDULE, settings: Settings = SETTINGS
) -> PromptMethod:
    """A method as a plan makes it, protected for a run of the federation of `SIZES`."""
    plugin = METHODS[name]
    method: PromptMethod = plugin.make(plugin.params(**params), settings=settings)
    return method.protected(privacy, schedule, SIZES)


def with_noise(method: PromptMethod, privacy: Privacy, stds: Mapping[str, float]) -> PromptMethod:
    """The method with the clipping of `privacy` and noise of a test's own size."""
    return replace(method, protection=Protection(privacy, stds, method.settings.batch))


def one_round(method: PromptMethod, world: Federation, state: dict[str, Tensor], *, r: int = 0) -> list[Update]:
    """Updates of all clients from the same state."""
    learner = world.learner(method.settings)
    clients = world.clients(learner, r=r)
    received = [method.download(state, client) for client in clients]
    return learner.work(method, received, [state] * len(clients), clients)


def named(case: Any) -> str:
    """Names parameters of a method in the ids of its tests."""
    return ":".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


def close(found: Tensor, expected: Tensor, *, atol: float = 2e-5) -> None:
    """Equal to `atol`, of the largest entry where that is above 1: gradients at a prompt near zero are."""
    atol *= max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double(), expected.double(), atol=atol, rtol=0)
