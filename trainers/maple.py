"""Dual prompts: clients train coupled prompts in both encoders of a frozen CLIP (MaPLe).

The task prompt Pt [D, b, d] holds b text prompts for each of the first D layers. Those of the first layer replace
"a photo of a" before a class name; those of a deeper layer replace the outputs of the layer before at these positions.
A linear coupling function per layer, from text width d to vision width e, maps them to visual prompts; the parameters
of all couplings are the data prompt Pd [D, e, d + 1], whose last column is the bias. Both are trained; the model is
frozen.

D is 9, or the depth of the encoders if that is less. The first layer starts at "a photo", deeper ones at N(0, 0.02^2),
couplings as linear layers of PyTorch: one draw for the first layer and one for all others, as in MaPLe's code. Unlike
that code, couplings are not in half precision.

The image encoder runs with prompts, so only an image's patch embeddings are computed once. All clients of a round, or
shadow models, that take equally many steps are one batched problem, as many of them at a time as `--memory` holds: a
step of each keeps batch times (1 + patches + b) tokens of the image encoder for its backward pass.

Methods of soft prompts can train beside these in one run (`Facts.also`), on the same CLIP, records and schedule.

Source: MaPLe (Khattak et al. 2023), sections 3.2 and 4; DP2FL (Chang et al. 2025), prompt design, eqs. 1 to 3.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.backbones.clip import FrozenCLIP, ImageFeatures
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery.parameters import like, number, whole
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Federation
from fedaudit.terms.threat_models import OWNER, PEER, PROMPT_USER, RELEASED_MODEL, SERVER
from fedaudit.trainers import prompts
from fedaudit.trainers.base import Method, Noised, Participation, State
from fedaudit.trainers.evaluations import Personalisation
from fedaudit.trainers.learners import LearnerFacts
from fedaudit.trainers.messages import MethodMessages
from fedaudit.trainers.prompt_model import EVALUATED, HARD_PROMPT
from fedaudit.trainers.prompt_settings import PromptSettings
from fedaudit.trainers.prompts import INITIAL_STD, Cohort, PromptMethod
from fedaudit.trainers.resources import Resources
from fedaudit.trainers.steps import epoch_batch, steps_of_round


class Facts(LearnerFacts):
    title = "dual-prompt"
    noun = "dual prompts"
    method = "dp2fl"
    task = "fewshots"
    attack = "none"
    rounds = 10
    clients = 10
    per_round = None
    threat_models = (PROMPT_USER, RELEASED_MODEL, PEER, SERVER, OWNER)
    backbone = "clip"
    unattacked = True
    alone = ("loss", "reconstruct")
    privacy = "SilentPrivacy"
    shadows = True
    adversary = "ThriftyAdversary"
    gradients = True
    nonlinear = "whose messages are what many steps came to, and no sum of gradients where the client began"
    records = "classes"
    also = ("prompts",)
    together = True


@dataclass(frozen=True)
class Settings(PromptSettings):
    batch: int = like(PromptSettings, "batch", 4, "records of a local step, |B| (DP2FL: 4)")
    local_epochs: int = like(
        PromptSettings, "local_epochs", 5, "local epochs per client and round (DP2FL: 5); 0 = go by --local-steps"
    )
    rate: float = number(0.035, "SGD learning rate of dual prompts (DP2FL: 0.035)", above=0, most=10**6)
    tokens: int = whole(2, "text prompts of a layer (MaPLe: 2)", least=1, most=1024)
    depth: int = whole(9, "layers with prompts, or as many as there are (MaPLe: 9)", least=1, most=1000)


class DualCohort:
    """Clients of a round as one batched problem: the `client` of a dual-prompt method's `update`. All take the same
    number of steps in the round; loop over `steps()`."""

    noised = Noised()

    def __init__(self, learner: Learner, clients: Sequence[Participation], method: DualMethod) -> None:
        self.learner, self.clients = learner, clients
        self.training, self.held_back = zip(
            *(method.divided(c.records, c.client, c.seed) for c in clients), strict=True
        )

    def steps(self) -> Iterator[DualStep]:
        """Yield the steps of the round, each with the next minibatch of every client."""
        settings = self.learner.settings
        due = steps_of_round(settings, len(self.training[0]))
        clients = [dataclasses.replace(c, records=rs) for c, rs in zip(self.clients, self.training, strict=True)]
        for step in range(due):
            rows = [epoch_batch(c, settings.batch, len(c.earlier_rounds) * due + step) for c in clients]
            yield DualStep(self.learner, [[c.records[i] for i in row] for c, row in zip(clients, rows, strict=True)],
                           [c.left_out for c in clients])  # fmt: skip

    @property
    def validation_facts(self) -> dict[str, list[Any]]:
        """Facts of the clients' uploads about their validation records, each a list over clients: "validation" has the
        ids without records of weight 0, "held back" the number with these, "new" whether the client is new, and "bytes"
        those of the images if it is, else 0."""
        pairs = zip(self.held_back, self.clients, strict=True)
        new = [not client.earlier_rounds for client in self.clients]
        size = self.learner.clip.picture_bytes
        return {
            "validation": [[r for r in records if r not in client.left_out] for records, client in pairs],
            "held back": [len(records) for records in self.held_back],
            "new": new,
            "bytes": [size * len(records) * first for records, first in zip(self.held_back, new, strict=True)],
        }

    def validation_losses(self, Pt: Tensor, Pd: Tensor) -> Tensor:
        """Mean cross-entropies [N] of N clients' models, each on the client's own validation records, of which those of
        weight 0 count in the divisor only; 0 for a client without any."""
        lists = zip(self.validation_facts["validation"], map(len, self.held_back), strict=True)
        return torch.cat([self.learner.losses(Pt[[i]], Pd[[i]], [one])[0] for i, one in enumerate(lists)])


class DualStep:
    """One step of every client of a cohort."""

    def __init__(self, learner: Learner, batches: Sequence[Sequence[str]], left_out: Sequence[frozenset[str]]) -> None:
        longest = max(1, *map(len, batches))
        filled = [[*batch, *[batch[0]] * (longest - len(batch))] for batch in batches]
        weights = [[(i < len(batch) and record not in out) / len(batch) for i, record in enumerate(row)]
                   for batch, row, out in zip(batches, filled, left_out, strict=True)]  # fmt: skip
        ids = [record for row in filled for record in row]
        self.learner, shape = learner, (len(filled), longest)
        self.pictures = learner.pictures(ids).unflatten(0, shape)  # [N, B, 1 + M, e]
        self.labels = learner.labels(ids).reshape(shape).to(self.pictures.device)
        self.weights = torch.tensor(weights, device=self.pictures.device)  # [N, B]: 1 / |B|, or 0

    def gradients(self, Pt: Tensor, Pd: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients in Pt [N, D, b, d] and Pd [N, D, e, d + 1] of the mean cross-entropy of each of N clients' batch (D
        layers, b tokens, widths d and e of text and images). Records of weight 0 count in the divisor only."""
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (Pt, Pd)]
            logits = self.learner.logits(leaves[0], leaves[1], self.pictures)
            loss = (F.cross_entropy(logits.mT, self.labels, reduction="none") * self.weights).sum()
        in_Pt, in_Pd = torch.autograd.grad(loss, leaves)
        return in_Pt, in_Pd

    def descend(self, tensor: Tensor, gradient: Tensor) -> Tensor:
        """`tensor` after a step of SGD."""
        return tensor - self.learner.settings.rate * gradient


class DualMethod(Method[DualCohort]):
    """Base class of methods that train dual prompts. You write `update`, `aggregate` and `divided`. A local step is

        for step in client.steps():
            in_Pt, in_Pd = step.gradients(Pt, Pd)
            Pt, Pd = step.descend(Pt, in_Pt), step.descend(Pd, in_Pd)

    Its models are {"Pt", "Pd"}. Tensors and facts of an update lead with the clients, [N, ..]."""

    @abstractmethod
    def divided(self, records: Sequence[str], client: int, seed: int) -> tuple[list[str], list[str]]:
        """Split a client's records into those that it trains on, at least one, and those that it holds back for
        validation."""

    def start(self, initial: State) -> State:
        return {name: initial[name] for name in ("Pt", "Pd")}

    @property
    def messages(self) -> DualMessages[Any]:
        return DualMessages(self)


KnownDual = TypeVar("KnownDual", bound=DualMethod)


class DualMessages(MethodMessages[KnownDual]):
    """Reads the uploads of a dual-prompt method (`trainers.messages`)."""

    def used_records(
        self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int], settings: Settings
    ) -> set[str]:
        """Those of a client's records that are in a batch of `rounds`, all rounds in which it takes part, in order;
        records that are held back for validation are in none."""
        training = self.method.divided(records, client, seed)[0]
        one = Participation(client, 0, seed, training, None)
        steps = range(len(rounds) * steps_of_round(settings, len(training)))
        return {training[i] for step in steps for i in epoch_batch(one, settings.batch, step)}

    def shared_records(self, records: Sequence[str], *, client: int, seed: int) -> set[str]:
        return set(self.method.divided(records, client, seed)[1])

    def replay(
        self, server: State, own: State, upload: State, learner: Any, generator: torch.Generator, sizes: Sequence[int]
    ) -> State:
        """{}: clients keep no state that matters, as they start from the broadcast."""
        return {}

    def round_start(self, server: State, own: State) -> State:
        return {name: server[name] for name in ("Pt", "Pd")}

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        return {name: upload[name] for name in ("Pt", "Pd")}

    def update_vector(self, server: State, upload: State) -> Tensor:
        """The changes of Pt and Pd, laid end to end [.., P]."""
        return torch.cat([(upload[name] - server[name]).flatten(-3) for name in ("Pt", "Pd")], dim=-1)


class Learner(prompts.Learner):
    """Trains dual prompts on a frozen CLIP, from the patch embeddings of the images; and soft prompts, from their
    features."""

    settings: Settings

    def __init__(
        self,
        clip: FrozenCLIP,
        features: ImageFeatures,
        tokens: ImageFeatures,
        labels: Mapping[str, int],
        classes: Sequence[str],
        settings: Settings,
        memory: int = 0,
    ) -> None:
        super().__init__(clip, features, labels, classes, settings, memory)
        self._tokens = tokens
        self.depth = min(settings.depth, clip.depth)
        self.texts(settings.tokens)  # raises at once if prompts are too long for the text encoder

    @property
    def remedy(self) -> str:
        return f"lower --rate (now {self.settings.rate:g}); of soft prompts, {super().remedy}"

    def initial(self, generator: torch.Generator) -> State:
        """Tensors that methods can start from: those of soft prompts, and Pt [D, b, d] and Pd [D, e, d + 1] for D
        layers, b tokens, and widths d of the text and e of the image encoder."""
        soft = super().initial(generator)
        D, b, d, e = self.depth, self.settings.tokens, self.clip.width, self.clip.vision.width
        Pt = INITIAL_STD * torch.randn(D, b, d, generator=generator)
        words = self.clip.words(HARD_PROMPT)[:b]
        Pt[0, : len(words)] = words
        first, deeper = (2 * torch.rand(2, e, d + 1, generator=generator) - 1) / math.sqrt(d)
        return soft | {"Pt": Pt, "Pd": torch.stack([first, *[deeper] * (D - 1)])}

    def client_bytes(self, method: PromptMethod | DualMethod) -> int:
        if isinstance(method, PromptMethod):
            return super().client_bytes(method)
        text, _ = self.clip.text_memory(self.texts(self.settings.tokens))
        tokens = self.pictures([next(iter(self._labels))]).shape[1] + self.settings.tokens
        return text + self.settings.batch * tokens * self.clip.vision.token_bytes

    def due(self, method: PromptMethod | DualMethod, client: Participation) -> int:
        if isinstance(method, PromptMethod):
            return super().due(method, client)
        training, _ = method.divided(client.records, client.client, client.seed)
        return steps_of_round(self.settings, len(training))

    def cohort(self, clients: Sequence[Participation], method: PromptMethod | DualMethod) -> Cohort | DualCohort:
        return (
            super().cohort(clients, method) if isinstance(method, PromptMethod) else DualCohort(self, clients, method)
        )

    def pictures(self, records: Sequence[str]) -> Tensor:
        """Inputs [n, 1 + M, e] of the image encoder's first layer for records, on the model's device."""
        return torch.cat([self._tokens.rows(records)[:, None], self._tokens.patches(records)], dim=1)

    def logits(self, Pt: Tensor, Pd: Tensor, pictures: Tensor) -> Tensor:
        """Logits [N, B, C] of N models for pictures [N, B, 1 + M, e]."""
        return self._similar(self.class_features(Pt), visual_prompts(Pt, Pd), pictures)

    def class_features(self, Pt: Tensor) -> Tensor:
        """Class features [N, C, E], of length 1 and on the model's device. `Pt` [N, D, b, d] may be on any device."""
        Pt = Pt.to(self.clip.device)
        return self.clip.text(Pt[:, 0], self.texts(Pt.shape[2]), Pt[:, 1:])

    def _similar(self, text: Tensor, visual: Tensor, pictures: Tensor) -> Tensor:
        return self.scale * self.clip.vision(pictures, visual.to(pictures.device)) @ text.mT

    @torch.no_grad()
    def logits_for(self, Pt: Tensor, Pd: Tensor, records: Sequence[str]) -> Tensor:
        """Logits [N, n, C] of N models for the same n records, on the host; computed for EVALUATED images at a time."""
        text, visual = self.class_features(Pt), visual_prompts(Pt, Pd)
        logits = [text.new_empty(len(Pt), 0, text.shape[1])]
        for i in range(0, len(records), EVALUATED):
            pictures = self.pictures(records[i : i + EVALUATED])
            rows = [self._similar(text[[k]], visual[[k]], pictures[None]) for k in range(len(Pt))]
            logits.append(torch.cat(rows))
        return torch.cat(logits, dim=1).cpu()

    def losses(self, Pt: Tensor, Pd: Tensor, lists: Sequence[tuple[Sequence[str], int]]) -> Tensor:
        """Cross-entropies [N, L] of N models on L lists, each (records, size): summed over the records and divided by
        `size`; 0 for an empty list. The text encoder runs once for all lists."""
        records = [record for each, _ in lists for record in each]
        labels = self.labels(records).expand(len(Pt), -1)
        losses = F.cross_entropy(self.logits_for(Pt, Pd, records).mT, labels, reduction="none")
        parts = losses.split([len(each) for each, _ in lists], dim=1)
        return torch.stack([part.sum(1) / max(size, 1) for part, (_, size) in zip(parts, lists, strict=True)], dim=1)

    def gradients(self, method: PromptMethod | DualMethod, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield gradients [R, P] of each record's cross-entropy in Pt and Pd, P numbers laid end to end, for `batch`
        times `clients_per_batch()` records at a time. With a method of soft prompts they are in its prompt.

        Both encoders run forward once, the text encoder for all records. A record's gradient in the class features goes
        back to Pt through the text encoder; that in the visual prompts Pt F^T + f goes back to Pt and to F and f, which
        are Pd.
        """
        if isinstance(method, PromptMethod):
            yield from super().gradients(method, model, records)
            return
        Pt, Pd, together = model["Pt"], model["Pd"], self.settings.batch * self.clients_per_batch(method)
        with torch.enable_grad():
            at = Pt.detach().requires_grad_()
            text = self.class_features(at[None])[0]  # [C, E]
        visual = visual_prompts(Pt, Pd)  # [D, b, e]
        for i in range(0, len(records), together):
            part = records[i : i + together]
            with torch.enable_grad():
                copies, prompts = (
                    tensor.detach().expand(len(part), *tensor.shape).requires_grad_() for tensor in (text, visual)
                )
                logits = self._similar(copies, prompts, self.pictures(part)[:, None])[:, 0]
                loss = F.cross_entropy(logits, self.labels(part).to(logits.device), reduction="sum")
            above, in_visual = torch.autograd.grad(loss, (copies, prompts))
            in_Pt = self.backward(text, at, above) + in_visual @ Pd[..., :-1]
            in_Pd = torch.cat([in_visual.mT @ Pt, in_visual.sum(-2)[..., None]], dim=-1)
            yield torch.cat([in_Pt.flatten(1), in_Pd.flatten(1)], dim=1)

    def sent_gradients(
        self, method: PromptMethod | DualMethod, start: State, records: Sequence[str]
    ) -> Iterator[Tensor]:
        """Yield the gradient of each record's cross-entropy at the state `start` in what the method's clients send: p_G
        [R, b, d], or Pt and Pd [R, P] laid end to end, for R records at a time."""
        if isinstance(method, PromptMethod):
            return super().sent_gradients(method, start, records)
        return self.gradients(method, start, records)

    def log_probs(self, method: Any, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        if isinstance(method, PromptMethod):
            return super().log_probs(method, models, records)
        logs: NDArray[np.float64] = self._logits_of(method, models, records).double().log_softmax(-1).numpy()
        return logs

    def predicted(
        self, models: Sequence[State], records: Sequence[str], method: PromptMethod | DualMethod
    ) -> NDArray[np.int64]:
        if isinstance(method, PromptMethod):
            return super().predicted(models, records, method)
        alike = all(torch.equal(model[n], models[0][n]) for model in models for n in ("Pt", "Pd"))  # as before training
        named: NDArray[np.int64] = self._logits_of(method, models[: 1 if alike else None], records).argmax(-1).numpy()
        return np.repeat(named, len(models) // len(named), axis=0)

    def _logits_of(self, method: DualMethod, models: Sequence[State], records: Sequence[str]) -> Tensor:
        """Logits [M, n, C] of M models, on the host."""
        together = self.clients_per_batch(method)
        both = (torch.stack([model[name] for model in models]).split(together) for name in ("Pt", "Pd"))
        return torch.cat([self.logits_for(Pt, Pd, records) for Pt, Pd in zip(*both, strict=True)])


def visual_prompts(Pt: Tensor, Pd: Tensor) -> Tensor:
    """Visual prompts [N, D, b, e], eq. 3 of DP2FL: Pi = F(Pt) in each layer; Pd [N, D, e, d + 1] are the parameters of
    F."""
    return Pt @ Pd[..., :-1].mT + Pd[..., -1][..., None, :]


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod | DualMethod], progress: Progress
) -> Learner:
    """The learner of the CLIP in `resources`, with the patch embeddings of the federation's images, and the images'
    features if a method of soft prompts uses them."""
    assert isinstance(resources.backbone, ClipSource)
    settings = Settings(**dataclasses.asdict(resources.settings))
    soft = [method for method in methods if isinstance(method, PromptMethod)]
    clip, features, labels = prompts.encode_federation(resources, federation, soft, progress)
    with (cache := claim(resources.cache)).lock(progress.say):
        tokens = clip.tokens(
            list(federation.records.values()),
            cache,
            say=progress.say,
            stage=progress.stage,
            threads=resources.threads,
            sample=resources.sample,
        )
    return Learner(clip, features, tokens, labels, federation.classes, settings, resources.memory)


def evaluation(resources: Resources, federation: Federation) -> Personalisation:
    """The evaluation of a training: accuracy on the test images, in the end also of the global model."""
    return Personalisation.of(federation, Settings(**dataclasses.asdict(resources.settings)))
