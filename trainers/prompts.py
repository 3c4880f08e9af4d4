"""Soft prompts: clients train the context of the class texts of a frozen CLIP, a whole cohort as one batched problem.

Global and local prompts are added in embedding space before one pass of the text encoder, so that one gradient G [b, d]
of a record gives the gradient of everything: of p_G and p_L it is G itself, of u and v in p_L = u v it is G v^T and
u^T G.

States, gradients, noise, clipping and factorisations are on the host, where the generators are: so the noise is the
same for every device. Features, labels and logits are on the model's device. `Learner.text` copies a prompt there, and
autograd brings its gradient back.

Shapes lead with the clients, N; gradients of single records with the records before that, R. So a method reads as if
written for one client. With class contexts a prompt is [C, b, d] wherever [b, d] is written here.

Source: DP-FPL (Tran et al. 2025), sections 3.1 and A.2; CoOp (Zhou et al. 2022).
"""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.clip import FrozenCLIP, ImageFeatures, load
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Federation
from fedaudit.terms.threat_models import (
    ACTIVE_SERVER,
    CLUSTERING_SERVER,
    COLLUDING_USERS,
    OWNER,
    PROMPT_USER,
    RELEASED_MODEL,
    SERVER,
)
from fedaudit.trainers.base import Participation, Site, State, Update, Upload, plugin_name, weighted_mean
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.learners import LearnerFacts
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompt_model import PromptModel, cosine_scores
from fedaudit.trainers.prompt_settings import PromptSettings
from fedaudit.trainers.resources import Resources
from fedaudit.trainers.steps import LocalStep, PrivateMethod, Work

INITIAL_STD = 0.02  # of each coordinate of the random start (CoOp)


class Facts(LearnerFacts):
    title = "prompt"
    noun = "prompts"
    method = "dpfpl"
    task = "glyphs"
    attack = "none"
    rounds = 100
    clients = 10
    per_round = None
    threat_models = (PROMPT_USER, RELEASED_MODEL, SERVER, ACTIVE_SERVER, OWNER)
    on_shares = (CLUSTERING_SERVER, COLLUDING_USERS)
    backbone = "clip"
    unattacked = True
    alone = ("loss", "reconstruct")
    private = True
    shadows = True
    records = "classes"
    together = True
    contexts = True
    gradients = True


@dataclass(frozen=True)
class Settings(PromptSettings):
    """Options of prompt methods."""


@dataclass(frozen=True, eq=False)
class Minibatch:
    """One minibatch per client, padded to the longest: R records each."""

    images: Tensor  # features [R, N, E], or of patches [R, N, M, E]; on the model's device
    labels: Tensor  # [R, N], on the model's device
    weights: Tensor  # [R, N], 1 for a record, 0 for a left-out record and for padding; on the host
    sizes: Tensor  # [N], records of each batch without padding, of any weight: the divisor of means; on the host

    @property
    def shares(self) -> Tensor:
        """The weight [R, N] of each record in its batch's mean, on the model's device."""
        return (self.weights / self.sizes.clamp(min=1)).to(self.images.device)


class Cohort(Work["Step"]):
    """Clients of a round as one batched problem: the `client` of a prompt method's `update`.

    All take the same number of steps in the round; loop over `steps()`.
    """

    method: PromptMethod

    def __init__(self, learner: Learner, clients: Sequence[Participation], method: PromptMethod) -> None:
        super().__init__(clients, method)
        self.learner = learner
        self.velocity: dict[str, Tensor] = {}  # of SGD with momentum, by the tensor's name

    def step(self, index: int) -> Step:
        return Step(self, index)

    def minibatch(self, records: Sequence[Sequence[str]]) -> Minibatch:
        """A minibatch of these records, a list of ids per client, padded to the longest list with weight 0."""
        longest = max(1, *map(len, records))
        pairs = list(zip(records, self.clients, strict=True))
        ids = [r for batch, c in pairs for r in (*batch, *[c.records[0]] * (longest - len(batch)))]
        images = self.learner.images(ids, patches=self.method.patches)
        shape = len(self.clients), longest
        weights = [[i < len(batch) and batch[i] not in c.left_out for i in range(longest)] for batch, c in pairs]
        return Minibatch(
            images.reshape(*shape, *images.shape[1:]).transpose(0, 1),
            self.learner.labels(ids).reshape(shape).T.to(images.device),
            torch.tensor(weights).T.float(),
            torch.tensor([len(batch) for batch in records]).float(),
        )

    def gradient(self, prompt: Tensor) -> Tensor:
        """Gradient [N, b, d] in `prompt` [N, b, d] of the mean cross-entropy over all of each client's records. Records
        of weight 0 count in the divisor only."""
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
        class (0 if it has none), and the numbers [N, C] of these records. Records of weight 0 are not counted."""
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
            present = counts[n].nonzero()[:, 0]  # classes of which the client has records; on the host
            if not len(present):
                continue
            columns = present.to(labels.device)
            share = weights[:, n].index_select(-1, columns) / sums[n].index_select(0, columns)
            above = torch.einsum("rk,rc,re->kce", share, errors[:, n], whole.images[:, n])
            gradients[n, present] = self.learner.backward(text, at, self.learner.scale * above)
        return gradients, counts


class Step(LocalStep):
    """One step of every client of a cohort."""

    method: PromptMethod

    def __init__(self, cohort: Cohort, index: int) -> None:
        super().__init__(cohort, index)
        self.learner, self._cohort = cohort.learner, cohort

    @functools.cached_property
    def batch(self) -> Minibatch:
        """The clients' minibatches."""
        return self._cohort.minibatch(self.records)

    def gradient(self, prompt: Tensor) -> Tensor:
        """Gradients [R, N, .., b, d] of the cross-entropy (DP-FPL eq. 2) in `prompt` [N, .., b, d] of N clients. If
        each record's is clipped, R records and padding (`clip` takes out what weighs 0); else R = 1, that of the
        batch's mean. The text encoder runs forward once for all."""
        with torch.enable_grad():
            at = prompt.detach().requires_grad_()
            text = self.learner.text(at)  # [N, .., C, E]
        records, clients = self.batch.labels.shape
        copies = text.detach().expand(records, *text.shape).flatten(0, 1)
        loss = functools.partial(self.learner.summed_loss, self.method.scores)
        above = torch.func.grad(loss)(copies, self.batch.images.flatten(0, 1), self.batch.labels.flatten())
        above = above.unflatten(0, (records, clients))  # [R, N, .., C, E]
        if not self.method.protection.per_record:
            mean = torch.einsum("rn...,rn->n...", above, self.batch.shares)
            return self.learner.backward(text, at, mean[None])
        return self.learner.backward(text, at, above)

    def clip(self, gradients: Tensor, release: str) -> Tensor:
        """The mean [N, ...] of `gradients` [R, N, ...], each clipped; without privacy not clipped. `noise` is still to
        be called. `release` names the tensor, as in `local` or `shared`."""
        return self.method.protection.clip(gradients, self.batch.weights, release, self)

    def descend(self, tensor: Tensor, gradient: Tensor, name: str) -> Tensor:
        """The `tensor` after a step of SGD against `gradient`, with momentum, which is kept by `name` within the round:
        give each tensor a name of its own. The learning rate is the global one if `name` is "p_G", else the local
        one."""
        velocity, settings = self._cohort.velocity, self.method.settings
        if settings.momentum:
            velocity[name] = settings.momentum * velocity[name] + gradient if name in velocity else gradient
            gradient = velocity[name]
        return tensor - (settings.global_rate if name == "p_G" else settings.local_rate) * gradient


@dataclass(frozen=True)
class PromptMethod(PrivateMethod[Cohort]):
    """Base class of methods that train soft prompts. You write `update` and `prompt`, as in `trainers/promptfl.py`. A
    local step is

        for step in client.steps():
            gradient = step.noise(step.clip(step.gradient(p_G), "p_G"), "p_G")
            p_G = step.descend(p_G, gradient, "p_G")

    Tensors and facts of an update lead with the clients, [N, ..]. Name in `local` and `shared` each tensor that is
    computed from records: in every step you clip and noise it under this name. `clip` takes the batch's mean, and clips
    gradients with privacy; `noise` does nothing without privacy, or if the server adds the noise (`central`). Clients
    start with these tensors and share p_G alone, unless you override `start` and `aggregate`.
    """

    settings: PromptSettings = field(default_factory=Settings)

    local: ClassVar[tuple[str, ...]] = ()  # stays with the client, part of its released prompt
    shared: ClassVar[tuple[str, ...]] = ()  # uploaded and broadcast
    # whether clients that take one step a round send their gradient; the server averages it, adds noise and descends
    by_gradient: ClassVar[bool] = False
    prompts: ClassVar[int] = 1  # of a client that are in the text encoder at once; for batches that fit into memory
    patches: ClassVar[bool] = False  # whether `scores` takes features of patches, not of whole images
    # why all classes must share one context; "" if each can have its own (`--class-contexts`)
    one_context: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.one_context and self.settings.class_contexts:
            why = self.one_context
            raise InputError(f"--class-contexts: all classes share one context in {plugin_name(self)}, since {why}")

    @property
    def central(self) -> tuple[str, ...]:
        """Names in `shared` to which the server, not the client, adds noise (on the mean of the clients' gradients).

        Empty if clients take several steps a round: later steps depend on a record through earlier ones, so that its
        effect on the upload has no bound. Then the client adds noise in every step.
        """
        return self.shared if self.by_gradient and not self.settings.several else ()

    @property
    def sends(self) -> bool:
        return bool(self.shared)

    @property
    def aggregation(self) -> str:
        return "noise" if self.central and self.protection.private else "mean"

    @abstractmethod
    def prompt(self, state: State) -> Tensor:
        """The personalised prompt [.., b, d] of a client, from the server's state joined with the client's own part."""

    def start(self, initial: State) -> State:
        return {name: initial[name] for name in (*self.shared, *self.local)}

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return {"p_G": self.global_prompt(server["p_G"], uploads, site)} if self.shared else server

    def model(self, state: State) -> State:
        return {"prompt": self.prompt(state)}

    def download(self, server: State, client: Participation) -> State:
        return {name: t for name, t in server.items() if name == "p_G"}

    @property
    def messages(self) -> PromptMessages[Any]:
        return PromptMessages(self)

    scores = staticmethod(cosine_scores)  # similarities of text and image features, `prompt_model.Scores`

    def message(self, p_G: Tensor, gradient: Tensor) -> State:
        """The upload of a client: `gradient`, its last step's, if the server takes the step; else `p_G` after its
        steps."""
        return {"gradient": gradient} if self.central else {"p_G": p_G}

    def global_prompt(self, p_G: Tensor, uploads: Sequence[Upload], site: Site) -> Tensor:
        """The next p_G [b, d]. If clients send gradients, p_G - eta_G times their mean with the server's noise (GDP;
        DP-FPL, Algorithm 1, server's part). Else the mean of the clients' prompts: uniform with privacy, weighted by
        n_i, their numbers of records, without (FedAvg)."""
        if not self.central:
            n = [1 if self.protection.private else upload.records for upload in uploads]
            return weighted_mean([upload.state for upload in uploads], [k / sum(n) for k in n])["p_G"]
        share = 1 / len(uploads)
        mean = weighted_mean([upload.state for upload in uploads], [share] * len(uploads))["gradient"]
        noisy = self.protection.noise(mean[None], "p_G", site, averaged=len(uploads))[0]
        return p_G - self.settings.global_rate * noisy


class Learner(PromptModel):
    """Trains prompts on a frozen CLIP, the clients of a round as one batched problem."""

    @property
    def remedy(self) -> str:
        """Advice for the error message when training diverges."""
        rates = f"--global-rate (now {self.settings.global_rate:g}) or --local-rate (now {self.settings.local_rate:g})"
        return f"lower {rates}, or the noise, if there is any, by a larger --epsilon"

    def initial(self, generator: torch.Generator) -> State:
        """Tensors that methods can start from: prompts p_G and p_L [b, d] (b vectors of width d) and factors u [b, b]
        and v [b, d], all drawn from N(0, 0.02^2), and the words of the hard prompt, `hard` [n, d]. A method of rank k
        takes the first k columns of u and the first k rows of v. With class contexts p_G, p_L and `hard` have a first
        axis over the C classes."""
        b, d = self.settings.prompt_length, self.clip.width
        prompt = (len(self.classes), b, d) if self.settings.class_contexts else (b, d)
        # p_G and p_L come first, so that they do not depend on the factors
        shapes: dict[str, tuple[int, ...]] = {"p_G": prompt, "p_L": prompt, "u": (b, b), "v": (b, d)}
        drawn = {name: INITIAL_STD * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        return drawn | {"hard": self.hard}

    def work(
        self, method: Any, received: Sequence[State], own: Sequence[State], clients: Sequence[Participation]
    ) -> list[Update]:
        """The clients' updates, in order: each client trains from what it `received` and its `own` state. Clients with
        equally many steps are computed as one batch."""
        updates: dict[int, Update] = {}
        counts = [self.due(method, client) for client in clients]
        for count in dict.fromkeys(counts):
            batch = [i for i, steps in enumerate(counts) if steps == count]
            cohort = self.cohort([clients[i] for i in batch], method)
            update = method.update(
                stack_states([received[i] for i in batch]), stack_states([own[i] for i in batch]), cohort
            )
            noised = cohort.noised
            for row, i in enumerate(batch):
                states = update.upload, update.private, update.sealed
                upload, private, sealed = ({n: t[row] for n, t in s.items()} for s in states)
                facts = {name: values[row] for name, values in update.facts.items()}
                updates[i] = Update(upload, private, facts, noised, sealed)
        return [updates[i] for i in range(len(clients))]

    def due(self, method: Any, client: Participation) -> int:
        """Number of steps of a client in a round."""
        return int(method.steps(len(client.records)))

    def cohort(self, clients: Sequence[Participation], method: Any) -> Any:
        """The clients as one batched problem, the `client` of `method.update`."""
        return Cohort(self, clients, method)


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod], progress: Progress
) -> Learner:
    """The learner with the features of the federation's images, and of their patches if a method uses them."""
    clip, features, labels = encode_federation(resources, federation, methods, progress)
    settings = Settings(**dataclasses.asdict(resources.settings))
    return Learner(clip, features, labels, federation.classes, settings, resources.memory)


def encode_federation(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod], progress: Progress
) -> tuple[FrozenCLIP, ImageFeatures, dict[str, int]]:
    """(The CLIP model, the records' image features and, if a method uses them, patches' features, {record id: class
    index})."""
    assert isinstance(resources.backbone, ClipSource)
    clip = load(resources.backbone, resources.device)
    records, patches = list(federation.records.values()), any(method.patches for method in methods)
    with (cache := claim(resources.cache)).lock(progress.say):
        features = clip.encode(
            records,
            cache,
            say=progress.say,
            stage=progress.stage,
            patches=patches,
            threads=resources.threads,
            sample=resources.sample,
        )
    number = {name: i for i, name in enumerate(federation.classes)}
    return clip, features, {r.id: number[r.group] for r in records}


def evaluation(resources: Resources, federation: Federation) -> Recognition:
    """The evaluation of a training: accuracy on the test images."""
    return Recognition.of(federation, Settings(**dataclasses.asdict(resources.settings)))


def stack_states(states: Sequence[State]) -> State:
    """One state of tensors [N, ...] from those of N clients, with the names that all of them have."""
    names = set.intersection(*(set(state) for state in states))
    return {name: torch.stack([state[name] for state in states]) for name in states[0] if name in names}
