"""Small federations for the tests of the prompt methods: a tiny random CLIP, or one whose every number can be worked out by hand."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.clip import ClassTexts, FrozenCLIP, ImageFeatures, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers import learners
from fedaudit.trainers.base import Participation, Schedule, Update
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.prompts import Learner, PromptMethod, Settings
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests import tiny_clip
from tests.toy import trained

NAMES = ("cat", "the big mountain lion", "digit seven", "dog", "small blue letter")
SIZES = (10, 6, 3)  # records of the clients: two batches of four in an epoch, one, and fewer than a batch
PATCHES = 5
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
SETTINGS = Settings(prompt_length=4, batch=4, global_rate=0.1, local_rate=0.06)


@dataclass(frozen=True)
class Federation:
    """What a bench holds, by record id: [n, E] and [n, M, E] features, labels, and each client's records."""

    clip: Any
    ids: tuple[str, ...]
    features: Tensor
    patches: Tensor
    labels: dict[str, int]
    training: tuple[tuple[str, ...], ...]
    test: tuple[str, ...]
    classes: tuple[str, ...] = NAMES
    left_out: frozenset[str] = frozenset()  # of the training records those that weigh 0

    def learner(self, settings: Settings = SETTINGS) -> Learner:
        row = {record: i for i, record in enumerate(self.ids)}
        both = torch.cat([self.features[:, None], self.patches], dim=1)
        return Learner(self.clip, ImageFeatures(row, self.features, list(both)), self.labels, self.classes, settings)

    def clients(
        self, learner: Learner, *, seed: int = 0, r: int = 0, earlier: Sequence[int] = ()
    ) -> list[Participation]:
        """All clients in one round."""
        return [Participation(k, r, seed, ids, learner, earlier, self.left_out) for k, ids in enumerate(self.training)]


@functools.cache
def clip(device: str = "cpu") -> FrozenCLIP:
    """A text encoder of two layers, 16 wide."""
    text = {"context_length": 16, "width": 16, "heads": 2, "layers": 2}
    with tempfile.TemporaryDirectory() as folder:
        saved = tiny_clip.save(Path(folder) / "tiny", tiny_clip.config(embed_dim=12, text=text))
        loaded = load(resolve_clip(str(saved), ""), device)
    with torch.no_grad():
        loaded.model.positional_embedding.mul_(
            5
        )  # a flat landscape, in which rounding does not grow from round to round
    return loaded


@functools.cache
def federation(sizes: tuple[int, ...] = SIZES, *, test: int = 12) -> Federation:
    """Clients with random pictures of all classes; the patches of a picture look like it."""
    training = tuple(tuple(f"{k}-{i}" for i in range(n)) for k, n in enumerate(sizes))
    tests = tuple(f"test-{i}" for i in range(test))
    ids = (*(record for own in training for record in own), *tests)
    g = torch.Generator().manual_seed(sum(sizes))
    features = F.normalize(torch.randn(len(ids), clip().embed, generator=g), dim=-1)
    patches = F.normalize(features[:, None] + 0.3 * torch.randn(len(ids), PATCHES, clip().embed, generator=g), dim=-1)
    labels = dict(zip(ids, torch.randint(len(NAMES), (len(ids),), generator=g).tolist(), strict=True))
    return Federation(clip(), ids, features, patches, labels, training, tests)


@dataclass(frozen=True)
class LinearCLIP:
    """A text encoder that is a linear map: class c has the feature sum_j w[c, j, :] p[j] of a prompt p with one column."""

    weights: Tensor  # [C, b, E]
    scale: float = 1.0
    width: int = 1
    device: str = "cpu"

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
    path: Path,
    method: PromptMethod,
    world: Federation,
    schedule: Schedule,
    *,
    clients_per_batch: int = 50,
    until: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Transcript:
    """Train `method` by the real loop; a client owns the classes of its number and the next one."""
    learner = world.learner(replace(method.settings, clients_per_batch=clients_per_batch))
    bench = Bench(learner, world.training, world.test, left_out=world.left_out)
    own = [[world.labels[t] in (k % 5, (k + 1) % 5) for t in world.test] for k in range(schedule.clients)]
    evaluation = Recognition(own, clients_per_batch)
    return trained(path, method, schedule, bench, evaluation=evaluation, advance=advance, until=until)


def made(
    name: str,
    params: dict[str, Any],
    privacy: Privacy = NONE,
    schedule: Schedule = SCHEDULE,
    settings: Settings = SETTINGS,
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
