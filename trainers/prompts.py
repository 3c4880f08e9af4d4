"""What clients of the prompt methods train: soft prompts on a frozen CLIP, a whole cohort as one batched problem.

The prompt of class c is [SOS][b context vectors][name of c]["."][EOS]; the context, here called the prompt, is shared
by all classes. Global and local prompts are added in embedding space before one pass of the text encoder, so that one
gradient G [b, d] of a record gives the gradient of everything: of p_G and p_L it is G itself, of u and v in p_L = u v
it is G v^T and u^T G.

States, gradients, noise, clipping and factorisations are on the host, where the generators are: the noise is then the
same on every device. Features, labels and logits are on the model's device. A prompt goes there in `Learner.text`, and
its gradient comes back by autograd.

Shapes lead with the clients, N; gradients of single records with the records before that, R. A method therefore reads
as for one client.

Source: DP-FPL (Tran et al. 2025), sections 3.1 and A.2; CoOp (Zhou et al. 2022).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.backbones.clip import ClassTexts, FrozenCLIP, ImageFeatures, load
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery.store import claim
from fedaudit.terms.threat_models import (
    CLUSTERING_SERVER,
    COLLUDING_USERS,
    OWNER,
    PROMPT_USER,
    RELEASED_MODEL,
    SERVER,
)
from trainers.base import Participation, Site, State, Update, Upload, weighted_mean
from trainers.evaluations import Recognition
from trainers.learners import LearnerFacts
from trainers.prompt_messages import PromptMessages
from trainers.prompt_settings import PromptSettings
from trainers.resources import Resources
from trainers.steps import LocalStep, PrivateMethod, Work

if TYPE_CHECKING:
    from fedaudit.machinery.progress import Progress
    from fedaudit.tasks.base import Federation

HARD_PROMPT = "a photo of a"  # CLIP's own template is "a photo of a {class}."
INITIAL_STD = 0.02  # of the random start, per coordinate (CoOp)
ROWS = 8  # prompts times records of one backward pass are at least so many; measured on two kinds of text encoder
EVALUATED = 256  # test images at once

# text features [N, .., C, E] and images [N or 1, B, ..] to similarities [N, B, C]
Scores = Callable[[Tensor, Tensor], Tensor]


class Facts(LearnerFacts):
    title = "prompt"
    noun = "prompts"
    method = "dpfpl"
    task = "glyphs"
    attack = "none"
    rounds = 100
    clients = 10
    per_round = None
    threat_models = (PROMPT_USER, RELEASED_MODEL, SERVER, OWNER)
    on_shares = (CLUSTERING_SERVER, COLLUDING_USERS)
    backbone = "clip"
    unattacked = True
    alone = ("loss", "reconstruct")
    private = True
    shadows = True
    records = "classes"
    together = True
    gradients = True


@dataclass(frozen=True)
class Settings(PromptSettings):
    """What prompts are trained by."""


@dataclass(frozen=True, eq=False)
class Minibatch:
    """One minibatch per client, padded to the longest: R records each."""

    images: Tensor  # features [R, N, E], or of patches [R, N, M, E]; on the model's device
    labels: Tensor  # [R, N], on the model's device
    weights: Tensor  # [R, N], 1 for a record, 0 for one that a coin left out and for padding; on the host
    sizes: Tensor  # [N], records of each batch, whatever they weigh: what a mean divides by; on the host, no padding

    @property
    def shares(self) -> Tensor:
        """What each record counts for in its batch's mean [R, N], on the model's device."""
        return (self.weights / self.sizes.clamp(min=1)).to(self.images.device)


class Cohort(Work["Step"]):
    """The clients of a round at work as one batched problem: what a prompt method sees in place of a client.

    All of them have the same number of steps to take; `steps` deals them out.
    """

    method: PromptMethod

    def __init__(self, learner: Learner, clients: Sequence[Participation], method: PromptMethod) -> None:
        super().__init__(clients, method)
        self.learner = learner
        self.velocity: dict[str, Tensor] = {}  # by tensor, of SGD with momentum

    def step(self, index: int) -> Step:
        return Step(self, index)

    def minibatch(self, records: Sequence[Sequence[str]]) -> Minibatch:
        """These records of every client."""
        longest = max(1, *map(len, records))
        pairs = list(zip(records, self.clients, strict=True))
        ids = [r for own, c in pairs for r in (*own, *[c.records[0]] * (longest - len(own)))]
        images = self.learner.images(ids, patches=self.method.patches)
        shape = len(self.clients), longest
        weights = [[i < len(own) and own[i] not in c.left_out for i in range(longest)] for own, c in pairs]
        return Minibatch(
            images.reshape(*shape, *images.shape[1:]).transpose(0, 1),
            self.learner.labels(ids).reshape(shape).T.to(images.device),
            torch.tensor(weights).T.float(),
            torch.tensor([len(own) for own in records]).float(),
        )

    def gradient(self, prompt: Tensor) -> Tensor:
        """Gradient [N, b, d] in `prompt` [N, b, d] of the mean cross-entropy over each client's whole list."""
        whole = self.minibatch([client.records for client in self.clients])
        with torch.enable_grad():
            at = prompt.detach().requires_grad_()
            text = self.learner.text(at)
            logits = self.learner.scale * self.method.scores(text, whole.images.transpose(0, 1))  # [N, R, C]
            losses = F.cross_entropy(logits.mT, whole.labels.T, reduction="none")
            loss = (losses * whole.shares.T).sum()
        return torch.autograd.grad(loss, at)[0]

    def class_gradients(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [N, C, b, d] in one prompt [b, d] of the mean cross-entropy over each client's records of each
        class, 0 where it has none, and the numbers [N, C] of these records. Records of weight 0 are no records here."""
        whole = self.minibatch([client.records for client in self.clients])
        with torch.enable_grad():
            at = prompt.detach().requires_grad_()
            text = self.learner.text(at)  # [C, E]
        labels = F.one_hot(whole.labels, len(text)).float()  # [R, N, C]
        errors = self.method.scores(text.detach(), whole.images).mul(self.learner.scale).softmax(-1) - labels
        weights = labels * whole.weights.to(labels.device)[..., None]
        sums = weights.sum(0)
        counts = sums.cpu()
        gradients = torch.zeros(*counts.shape, *prompt.shape)
        for n in range(len(counts)):
            present = counts[n].nonzero()[:, 0]  # classes of which the client has records; found on the host
            columns = present.to(labels.device)
            share = weights[:, n].index_select(-1, columns) / sums[n].index_select(0, columns)
            above = torch.einsum("rk,rc,re->kce", share, errors[:, n], whole.images[:, n])
            gradients[n, present] = taken_back(text, at, self.learner.scale * above)
        return gradients, counts


class Step(LocalStep):
    """One step of every client of a cohort."""

    method: PromptMethod

    def __init__(self, cohort: Cohort, index: int) -> None:
        super().__init__(cohort, index)
        self.learner, self._cohort = cohort.learner, cohort
        self._scores = cohort.method.scores

    @functools.cached_property
    def batch(self) -> Minibatch:
        return self._cohort.minibatch(self.records)

    def gradient(self, prompt: Tensor) -> Tensor:
        """Gradient of the cross-entropy (DP-FPL eq. 2) in `prompt` [N, .., b, d]: of every record [R, N, .., b, d], or
        of the batch's mean (R = 1).

        Single records are needed only where each is clipped. The text encoder runs forward once; its features are the
        same for all records.
        """
        with torch.enable_grad():
            at = prompt.detach().requires_grad_()
            text = self.learner.text(at)  # [N, .., C, E]
        records, clients = self.batch.labels.shape
        copies = text.detach().expand(records, *text.shape).flatten(0, 1)
        above = torch.func.grad(self._loss)(copies, self.batch.images.flatten(0, 1), self.batch.labels.flatten())
        above = above.unflatten(0, (records, clients))  # [R, N, .., C, E]
        if not self.method.protection.per_record:
            mean = torch.einsum("rn...,rn->n...", above, self.batch.shares)
            return taken_back(text, at, mean[None])
        return taken_back(text, at, above)

    def _loss(self, text: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Summed over n records, each with its own copy of its client's text features [n, .., C, E]: no record moves
        another's gradient."""
        logits = self.learner.scale * self._scores(text, images[:, None])[:, 0]
        return F.cross_entropy(logits, labels, reduction="sum")

    def clip(self, gradients: Tensor, release: str) -> Tensor:
        """The mean [N, ...] of clipped gradients [R, N, ...] of what is released."""
        return self.method.protection.clip(gradients, self.batch.weights, release, self)

    def descend(self, tensor: Tensor, gradient: Tensor, name: str) -> Tensor:
        """`tensor` after a step of SGD, with the momentum of the round's earlier steps on it."""
        velocity, momentum = self._cohort.velocity, self.method.settings.momentum
        if momentum:
            velocity[name] = momentum * velocity[name] + gradient if name in velocity else gradient
            gradient = velocity[name]
        settings = self.method.settings
        return tensor - (settings.global_rate if name == "p_G" else settings.local_rate) * gradient


def taken_back(text: Tensor, at: Tensor, above: Tensor) -> Tensor:
    """Gradients [n, ..] in `at` [..], which is a leaf, from n gradients [n, ..] in the text features made of it.

    A pass back through the text encoder takes several of them where `at` holds few prompts, and one where it holds
    ROWS or more: several would only spill the cache.
    """
    back = functools.partial(torch.autograd.grad, text, at, retain_graph=True)
    together = ROWS // math.prod(at.shape[:-2])
    if together < 2 or len(above) < 2:
        return torch.stack([back(one)[0] for one in above])
    return torch.cat([back(some, is_grads_batched=True)[0] for some in above.split(together)])


@dataclass(frozen=True)
class PromptMethod(PrivateMethod[Cohort]):
    """A method that trains soft prompts. Its states hold what its `prompt` makes a personalised prompt of."""

    settings: PromptSettings = field(default_factory=Settings)

    # what its clients' records reach: each of these tensors is noised where a method is private
    local: ClassVar[tuple[str, ...]] = ()  # stays with the client, part of its released prompt
    shared: ClassVar[tuple[str, ...]] = ()  # uploaded and broadcast
    # whether clients that take one step a round send their gradient, which the server averages, noises and descends
    by_gradient: ClassVar[bool] = False
    patches: ClassVar[bool] = False  # whether it looks at features of patches rather than of whole images

    @property
    def central(self) -> tuple[str, ...]:
        """What the server noises, on the average of the clients' gradients: these carry no noise.

        Where clients take several steps a round it is empty: a later step depends on a record through the client's own
        earlier ones, so that nothing bounds what a record does to the upload, and the noise is the client's in every
        step.
        """
        return self.shared if self.by_gradient and not self.settings.several else ()

    @property
    def sends(self) -> bool:
        return bool(self.shared)

    @abstractmethod
    def prompt(self, state: State) -> Tensor:
        """The personalised prompt [.., b, d] of a client: `state` is the server's with the client's own part."""

    def model(self, state: State) -> State:
        return {"prompt": self.prompt(state)}

    def download(self, server: State, client: Participation) -> State:
        return {name: t for name, t in server.items() if name == "p_G"}

    @property
    def messages(self) -> PromptMessages[Any]:
        return PromptMessages(self)

    @staticmethod
    def scores(text: Tensor, images: Tensor) -> Tensor:
        """Cosine similarities [N, B, C] of text features [N, C, E] and images [N or 1, B, E]; both have length 1."""
        return images @ text.mT

    def message(self, p_G: Tensor, gradient: Tensor) -> State:
        """What a client uploads: its last step's gradient for the server to descend, or the prompt after its steps."""
        return {"gradient": gradient} if self.central else {"p_G": p_G}

    def global_prompt(self, p_G: Tensor, uploads: Sequence[Upload], site: Site) -> Tensor:
        """p_G - eta_G times the mean of the clients' gradients, with the server's noise (GDP; DP-FPL, Algorithm 1,
        server's part); or the mean of the clients' prompts, by n_i where nothing is noised (FedAvg)."""
        if not self.central:
            n = [1 if self.protection.private else upload.records for upload in uploads]
            return weighted_mean([upload.state for upload in uploads], [k / sum(n) for k in n])["p_G"]
        share = 1 / len(uploads)
        mean = weighted_mean([upload.state for upload in uploads], [share] * len(uploads))["gradient"]
        noisy = self.protection.noise(mean[None], "p_G", site, averaged=len(uploads))[0]
        return p_G - self.settings.global_rate * noisy


class Learner:
    """Frozen CLIP with its image features: computes text features of prompts, gradients' parts and recognition."""

    def __init__(
        self,
        clip: FrozenCLIP,
        features: ImageFeatures,
        labels: Mapping[str, int],
        classes: Sequence[str],
        settings: PromptSettings,
    ) -> None:
        self.clip, self.features, self.classes, self.settings = clip, features, tuple(classes), settings
        self.scale = clip.scale
        self._labels = labels
        self._texts: dict[int, ClassTexts] = {}
        self.texts(settings.prompt_length)  # a prompt that is too long for the text encoder is refused at once

    @property
    def clients_per_batch(self) -> int:
        """Clients of one job."""
        return self.settings.clients_per_batch

    @property
    def remedy(self) -> str:
        """What to change where a training diverges."""
        rates = f"--global-rate (now {self.settings.global_rate:g}) or --local-rate (now {self.settings.local_rate:g})"
        return f"lower {rates}, or the noise, if there is any, by a larger --epsilon"

    def initial(self, generator: torch.Generator) -> State:
        """What methods start from: random prompts and factors N(0, 0.02^2), and the words of the hard prompt [n, d].

        Of the factors u [b, b] and v [b, d] a method of rank k takes the first k columns and rows, which are draws of
        their own at every k.
        """
        b, d = self.settings.prompt_length, self.clip.width
        # p_G and p_L are drawn first: what other methods start from does not depend on the factors
        shapes = {"p_G": (b, d), "p_L": (b, d), "u": (b, b), "v": (b, d)}
        drawn = {name: INITIAL_STD * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        return drawn | {"hard": self.clip.words(HARD_PROMPT)}

    def work(
        self, method: PromptMethod, received: Sequence[State], own: Sequence[State], clients: Sequence[Participation]
    ) -> list[Update]:
        """The updates of a cohort; clients with equally many steps are computed together."""
        found: dict[int, Update] = {}
        counts = [method.steps(len(client.records)) for client in clients]
        for count in dict.fromkeys(counts):
            at = [i for i, steps in enumerate(counts) if steps == count]
            cohort = Cohort(self, [clients[i] for i in at], method)
            update = method.update(stacked([received[i] for i in at]), stacked([own[i] for i in at]), cohort)
            noised = cohort.noised
            for row, i in enumerate(at):
                states = update.upload, update.private, update.sealed
                upload, private, sealed = ({n: t[row] for n, t in s.items()} for s in states)
                found[i] = Update(upload, private, update.facts, noised, sealed)
        return [found[i] for i in range(len(clients))]

    def text(self, prompt: Tensor) -> Tensor:
        """Class features [.., C, E], of length 1 and on the model's device, of prompts [.., b, d] on any device."""
        return self.clip.text(prompt.to(self.clip.device), self.texts(prompt.shape[-2]))

    def texts(self, length: int) -> ClassTexts:
        """What follows a prompt of that length for every class."""
        if length not in self._texts:
            self._texts[length] = self.clip.classes(self.classes, length)
        return self._texts[length]

    def images(self, records: Sequence[str], *, patches: bool = False) -> Tensor:
        """Features [n, E] of records, or of their patches [n, M, E], on the model's device."""
        return self.features.patches(records) if patches else self.features.rows(records)

    def labels(self, records: Sequence[str]) -> Tensor:
        """Places [n] among the classes, on the host."""
        return torch.tensor([self._labels[record] for record in records], dtype=torch.int64)

    def record_gradients(
        self, method: PromptMethod, text: Callable[[Tensor], Tensor], at: Tensor, records: Sequence[str]
    ) -> Tensor:
        """Gradients [n, ..] of each record's cross-entropy in what `text` makes class features of, at one value
        `at` [..].

        The text encoder runs forward once; only each record's gradient in the features is taken back through it.
        """
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            features = text(at)  # [.., C, E]
        images = self.images(records, patches=method.patches)
        labels = self.labels(records).to(images.device)

        def loss(copies: Tensor) -> Tensor:
            """Summed over the records, each with its own copy of the features [n, .., C, E]."""
            logits = self.scale * method.scores(copies, images[:, None])[:, 0]
            return F.cross_entropy(logits, labels, reduction="sum")

        above = torch.func.grad(loss)(features.detach().expand(len(records), *features.shape))
        return taken_back(features, at, above)

    def gradients(self, method: PromptMethod, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Of each record's cross-entropy in a prompt [.., b, d], all its parts together, [n, ..]."""
        yield self.record_gradients(method, self.text, model["prompt"], records).flatten(1)

    def sent_gradients(self, method: PromptMethod, start: State, records: Sequence[str]) -> Iterator[Tensor]:
        """The same in p_G, [n, b, d]."""

        def text(p_G: Tensor) -> Tensor:
            return self.text(method.prompt(start | {"p_G": p_G}))

        yield self.record_gradients(method, text, start["p_G"], records)

    @torch.no_grad()
    def log_probs(self, method: PromptMethod, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [M, n, C] of the classes, in nats and float64, by M models."""
        images = self.images(records, patches=method.patches)
        prompts = torch.stack([model["prompt"] for model in models])
        found = [
            self.scale * method.scores(self.text(part), images[None]).double()
            for part in prompts.split(self.clients_per_batch)
        ]
        logs: NDArray[np.float64] = torch.cat(found).log_softmax(-1).cpu().numpy()
        return logs

    @torch.no_grad()
    def untrained(self, records: Sequence[str]) -> NDArray[np.float64]:
        """The same [n, C] of the public hard prompt, which looks at whole images."""
        text = self.text(self.clip.words(HARD_PROMPT)[None])
        scores = self.scale * PromptMethod.scores(text, self.images(records)[None]).double()
        logs: NDArray[np.float64] = scores[0].log_softmax(-1).cpu().numpy()
        return logs

    def recognised(self, models: Sequence[State], records: Sequence[str], method: PromptMethod) -> NDArray[np.bool_]:
        """Which records [N, n] the prompts of N clients recognise."""
        right: NDArray[np.bool_] = self.predicted(models, records, method) == self.labels(records).numpy()
        return right

    @torch.no_grad()
    def predicted(self, models: Sequence[State], records: Sequence[str], method: PromptMethod) -> NDArray[np.int64]:
        """Places [N, n] of the classes that the prompts of N clients name."""
        prompts = torch.stack([model["prompt"] for model in models])
        if (prompts == prompts[:1]).all():  # a method without personal part
            prompts = prompts[:1]
        text = self.text(prompts).expand(len(models), *([-1] * (prompts.ndim - 1)))
        images = self.images(records, patches=method.patches)
        places = [method.scores(text, part[None]).argmax(-1) for part in images.split(EVALUATED)]
        return torch.cat(places, dim=1).cpu().numpy()


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod], progress: Progress
) -> Learner:
    """The learner of a plan with the features of its pictures, of their patches too where a method asks for them."""
    clip, features, labels = encoded(resources, federation, methods, progress)
    return Learner(clip, features, labels, federation.classes, Settings(**dataclasses.asdict(resources.settings)))


def encoded(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod], progress: Progress
) -> tuple[FrozenCLIP, ImageFeatures, dict[str, int]]:
    """The model of a plan, what its methods look at of the pictures, and the records' places among the classes."""
    assert isinstance(resources.backbone, ClipSource)
    clip = load(resources.backbone, resources.device)
    records, patches = list(federation.records.values()), any(method.patches for method in methods)
    with (cache := claim(resources.cache)).lock(progress.say):
        features = clip.encode(records, cache, say=progress.say, stage=progress.stage, patches=patches)
    number = {name: i for i, name in enumerate(federation.classes)}
    return clip, features, {r.id: number[r.group] for r in records}


def evaluation(resources: Resources, federation: Federation) -> Recognition:
    """How good the models of a plan are: by the classes that they recognise."""
    return Recognition(*tested(federation, Settings(**dataclasses.asdict(resources.settings)).clients_per_batch))


def tested(federation: Federation, clients_per_batch: int) -> tuple[list[list[bool]], int, list[list[float]]]:
    """What a `Recognition` of a federation's test images is made of, for `clients_per_batch` clients' models at a
    time."""
    # with two domains a class of the other style is a neighbour's
    own = [{(r.domain, name) for r in c.records for name in c.classes} for c in federation.clients]
    local = [[(r.domain, r.group) in mine for r in federation.test] for mine in own]
    return local, clients_per_batch, own_tests(federation)


def own_tests(federation: Federation) -> list[list[float]]:
    """The chance [client][test record] of a draw in the proportions in which a client holds the classes, evenly within
    a class.

    Empty where every class is held by one client: there a client's own test set are the records of its classes.
    """
    held = [Counter((r.domain, r.group) for r in (*c.records, *c.reference, *c.background)) for c in federation.clients]
    if all(holders == 1 for holders in Counter(kind for counts in held for kind in counts).values()):
        return []
    tested = Counter((r.domain, r.group) for r in federation.test)
    found = []
    for counts in held:
        total = sum(n for kind, n in counts.items() if kind in tested)
        kinds = ((r.domain, r.group) for r in federation.test)
        found.append([counts[kind] / tested[kind] / total for kind in kinds])
    return found


def stacked(states: Sequence[State]) -> State:
    """States of N clients as one [N, ...]; names that all of them have."""
    names = set.intersection(*(set(state) for state in states))
    return {name: torch.stack([state[name] for state in states]) for name in states[0] if name in names}
