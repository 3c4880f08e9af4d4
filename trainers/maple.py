"""What clients of the dual-prompt methods train: prompts in both encoders of a frozen CLIP, coupled (MaPLe).

The task prompt Pt [D, b, d] holds b text prompts for each of the first D layers: the first ones stand in the place of
"a photo of a" before a class name, those of a deeper layer take the places of what the layer before made of them. A
linear coupling function per layer, text width d to vision width e, makes the visual prompts of them; the parameters of
all of them are the data prompt Pd [D, e, d + 1], whose last column is the bias. Both are trained; the model is frozen.

D is 9, or as deep as both encoders are. The first layer starts at "a photo", deeper ones at N(0, 0.02^2), couplings as
linear layers of PyTorch do: one draw for the first layer and one for all others, as MaPLe's code has it. No half
precision, which its code turns the couplings to.

The image encoder runs with prompts: of a picture only the patch embeddings are computed once. All clients of a round,
or shadow models, that take equally many steps are one batched problem, `clients_per_batch` of them at a time: a step of
each holds batch times (1 + patches + b) tokens of the image encoder with all that a pass back needs, 0.45 GB a client
with ViT-B/16, a batch of 4 and 20 classes.

Methods of soft prompts train beside these in one run (`Facts.also`), on the same CLIP, records and schedule.

Source: MaPLe (Khattak et al. 2023), sections 3.2 and 4; DP2FL (Chang et al. 2025), prompt design, eqs. 1 to 3.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.backbones.clip import FrozenCLIP, ImageFeatures
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.machinery.parameters import like, number, whole
from fedaudit.machinery.store import claim
from fedaudit.privacy.ledger import epoch_length
from fedaudit.terms.threat_models import OWNER, PEER, PROMPT_USER, RELEASED_MODEL, SERVER
from trainers import prompts
from trainers.base import Method, Participation, State, Update
from trainers.evaluations import Personalisation
from trainers.learners import LearnerFacts
from trainers.messages import MethodMessages
from trainers.prompt_model import EVALUATED, HARD_PROMPT, taken_back
from trainers.prompt_settings import PromptSettings
from trainers.prompts import INITIAL_STD, PromptMethod, stacked
from trainers.resources import Resources
from trainers.steps import epoch_batch

if TYPE_CHECKING:
    from fedaudit.machinery.progress import Progress
    from fedaudit.tasks.base import Federation


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
    """The clients of a round at work as one batched problem: what a dual-prompt method sees in place of a client. All
    of them have the same number of steps to take."""

    def __init__(self, learner: Learner, clients: Sequence[Participation], method: DualMethod) -> None:
        self.learner, self.clients = learner, clients
        self.training, self.held_back = zip(
            *(method.divided(c.records, c.client, c.seed) for c in clients), strict=True
        )

    def steps(self) -> Iterator[DualStep]:
        """The steps of the round."""
        settings = self.learner.settings
        due = self.learner.steps(len(self.training[0]))
        working = [dataclasses.replace(c, records=own) for c, own in zip(self.clients, self.training, strict=True)]
        for step in range(due):
            rows = [epoch_batch(one, settings.batch, len(one.earlier) * due + step) for one in working]
            yield DualStep(self.learner, [[c.records[i] for i in row] for c, row in zip(working, rows, strict=True)],
                           [c.left_out for c in working])  # fmt: skip

    @property
    def introduced(self) -> dict[str, list[Any]]:
        """What clients say of the records that they hold back, beside what they train: which these are, as far as they
        have weight, and how many; whether they are new, and how many bytes of pictures then come along."""
        weighty = [[r for r in own if r not in c.left_out] for own, c in zip(self.held_back, self.clients, strict=True)]
        new = [not client.earlier for client in self.clients]
        each = self.learner.clip.picture_bytes
        return {
            "validation": weighty,
            "held back": [len(own) for own in self.held_back],
            "new": new,
            "bytes": [each * len(own) * first for own, first in zip(self.held_back, new, strict=True)],
        }

    def validation_losses(self, Pt: Tensor, Pd: Tensor) -> Tensor:
        """Mean cross-entropies [N] of N clients' models on what each of them holds back."""
        pairs = zip(self.introduced["validation"], map(len, self.held_back), strict=True)
        return torch.cat([self.learner.losses(Pt[[i]], Pd[[i]], [own])[0] for i, own in enumerate(pairs)])


class DualStep:
    """One step of every client of a cohort."""

    def __init__(self, learner: Learner, batches: Sequence[Sequence[str]], left_out: Sequence[frozenset[str]]) -> None:
        longest = max(1, *map(len, batches))
        filled = [[*own, *[own[0]] * (longest - len(own))] for own in batches]
        weights = [[(i < len(own) and one not in out) / len(own) for i, one in enumerate(row)]
                   for own, row, out in zip(batches, filled, left_out, strict=True)]  # fmt: skip
        ids = [record for row in filled for record in row]
        self.learner, shape = learner, (len(filled), longest)
        self.pictures = learner.pictures(ids).unflatten(0, shape)  # [N, B, 1 + M, e]
        self.labels = learner.labels(ids).reshape(shape).to(self.pictures.device)
        self.weights = torch.tensor(weights, device=self.pictures.device)  # [N, B]: 1 / |B|, or 0

    def gradients(self, Pt: Tensor, Pd: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients in Pt [N, D, b, d] and Pd [N, D, e, d + 1] of the mean cross-entropy of each client's batch."""
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
    """A method that trains dual prompts; its models are {"Pt", "Pd"}. What `update` gets and gives leads with the
    clients, its facts too."""

    @abstractmethod
    def divided(self, records: Sequence[str], client: int, seed: int) -> tuple[list[str], list[str]]:
        """A client's list in two: what it trains on, at least one record, and what it holds back for validation."""

    def start(self, initial: State) -> State:
        return {name: initial[name] for name in ("Pt", "Pd")}

    @property
    def messages(self) -> DualMessages[Any]:
        return DualMessages(self)


KnownDual = TypeVar("KnownDual", bound=DualMethod)


class DualMessages(MethodMessages[KnownDual]):
    """What an outsider who knows a method of dual prompts can compute of its messages (`trainers.messages`)."""

    def used_records(self, records: Sequence[str], *, client: int, seed: int, rounds: Sequence[int]) -> set[str]:
        """What a client trains on: several epochs leave nothing of it out."""
        return set(self.method.divided(records, client, seed)[0]) if rounds else set()

    def shared_records(self, records: Sequence[str], *, client: int, seed: int) -> set[str]:
        return set(self.method.divided(records, client, seed)[1])

    def replay(
        self, server: State, own: State, upload: State, learner: Any, generator: torch.Generator, sizes: Sequence[int]
    ) -> State:
        """Nothing: a client starts from what it is sent."""
        return {}

    def round_start(self, server: State, own: State) -> State:
        return {name: server[name] for name in ("Pt", "Pd")}

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        return {name: upload[name] for name in ("Pt", "Pd")}

    def update_vector(self, server: State, upload: State) -> Tensor:
        """Of Pt and Pd, laid end to end."""
        return torch.cat([(upload[name] - server[name]).flatten(-3) for name in ("Pt", "Pd")], dim=-1)


class Learner(prompts.Learner):
    """Frozen CLIP with the patch embeddings of its pictures, and with their features for the methods of soft prompts
    beside."""

    settings: Settings

    def __init__(
        self,
        clip: FrozenCLIP,
        features: ImageFeatures,
        tokens: ImageFeatures,
        labels: Mapping[str, int],
        classes: Sequence[str],
        settings: Settings,
    ) -> None:
        super().__init__(clip, features, labels, classes, settings)
        self._tokens = tokens
        self.depth = min(settings.depth, clip.depth)
        self.texts(settings.tokens)  # prompts that are too long for the text encoder are refused at once

    @property
    def remedy(self) -> str:
        return f"lower --rate (now {self.settings.rate:g}); of soft prompts, {super().remedy}"

    def initial(self, generator: torch.Generator) -> State:
        """What methods of soft prompts start from, with Pt [D, b, d] and Pd [D, e, d + 1]."""
        soft = super().initial(generator)
        D, b, d, e = self.depth, self.settings.tokens, self.clip.width, self.clip.vision.width
        Pt = INITIAL_STD * torch.randn(D, b, d, generator=generator)
        words = self.clip.words(HARD_PROMPT)[:b]
        Pt[0, : len(words)] = words
        first, deeper = (2 * torch.rand(2, e, d + 1, generator=generator) - 1) / math.sqrt(d)
        return soft | {"Pt": Pt, "Pd": torch.stack([first, *[deeper] * (D - 1)])}

    def steps(self, records: int) -> int:
        """How many a client that trains on so many records takes in a round."""
        settings = self.settings
        return settings.local_epochs * epoch_length(records=records, batch=settings.batch) or settings.local_steps

    def work(
        self,
        method: PromptMethod | DualMethod,
        received: Sequence[State],
        own: Sequence[State],
        clients: Sequence[Participation],
    ) -> list[Update]:
        """The updates of a cohort; clients with equally many steps are computed together."""
        if isinstance(method, PromptMethod):
            return super().work(method, received, own, clients)
        found: dict[int, Update] = {}
        counts = [self.steps(len(method.divided(c.records, c.client, c.seed)[0])) for c in clients]
        for count in dict.fromkeys(counts):
            at = [i for i, steps in enumerate(counts) if steps == count]
            cohort = DualCohort(self, [clients[i] for i in at], method)
            update = method.update(stacked([received[i] for i in at]), stacked([own[i] for i in at]), cohort)
            for row, i in enumerate(at):
                upload, private = ({n: t[row] for n, t in s.items()} for s in (update.upload, update.private))
                found[i] = Update(upload, private, {name: values[row] for name, values in update.facts.items()})
        return [found[i] for i in range(len(clients))]

    def pictures(self, records: Sequence[str]) -> Tensor:
        """What the image encoder's first layer gets of records, [n, 1 + M, e], on the model's device."""
        return torch.cat([self._tokens.rows(records)[:, None], self._tokens.patches(records)], dim=1)

    def logits(self, Pt: Tensor, Pd: Tensor, pictures: Tensor) -> Tensor:
        """Logits [N, B, C] of N models for pictures [N, B, 1 + M, e]."""
        return self._similar(self.class_features(Pt), visual_prompts(Pt, Pd), pictures)

    def class_features(self, Pt: Tensor) -> Tensor:
        """Class features [N, C, E], of length 1 and on the model's device, of task prompts [N, D, b, d] on any."""
        Pt = Pt.to(self.clip.device)
        return self.clip.text(Pt[:, 0], self.texts(Pt.shape[2]), Pt[:, 1:])

    def _similar(self, text: Tensor, visual: Tensor, pictures: Tensor) -> Tensor:
        return self.scale * self.clip.vision(pictures, visual.to(pictures.device)) @ text.mT

    @torch.no_grad()
    def answered(self, Pt: Tensor, Pd: Tensor, records: Sequence[str]) -> Tensor:
        """Logits [N, n, C] on the host: of N models for the same n records, EVALUATED pictures of a model at a time."""
        text, visual = self.class_features(Pt), visual_prompts(Pt, Pd)
        found = [text.new_empty(len(Pt), 0, text.shape[1])]
        for i in range(0, len(records), EVALUATED):
            pictures = self.pictures(records[i : i + EVALUATED])
            rows = [self._similar(text[[k]], visual[[k]], pictures[None]) for k in range(len(Pt))]
            found.append(torch.cat(rows))
        return torch.cat(found, dim=1).cpu()

    def losses(self, Pt: Tensor, Pd: Tensor, lists: Sequence[tuple[Sequence[str], int]]) -> Tensor:
        """Cross-entropies [N, L] of N models on L lists, each (records, size): summed over the records and divided by
        the size; 0 where there is none. The text encoder runs once for all lists."""
        records = [record for own, _ in lists for record in own]
        labels = self.labels(records).expand(len(Pt), -1)
        each = F.cross_entropy(self.answered(Pt, Pd, records).mT, labels, reduction="none")
        parts = each.split([len(own) for own, _ in lists], dim=1)
        return torch.stack([part.sum(1) / max(size, 1) for part, (_, size) in zip(parts, lists, strict=True)], dim=1)

    def gradients(self, method: PromptMethod | DualMethod, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """In Pt and Pd, laid end to end, of as many records at a time as a round trains on together.

        Both encoders run forward once, the text encoder for all records. It takes a record's gradient in the class
        features back to Pt; that in the visual prompts Pt F^T + f goes back to Pt and to F and f, which are Pd.
        """
        if isinstance(method, PromptMethod):
            yield from super().gradients(method, model, records)
            return
        Pt, Pd, together = model["Pt"], model["Pd"], self.settings.batch * self.clients_per_batch
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
            in_Pt = taken_back(text, at, above) + in_visual @ Pd[..., :-1]
            in_Pd = torch.cat([in_visual.mT @ Pt, in_visual.sum(-2)[..., None]], dim=-1)
            yield torch.cat([in_Pt.flatten(1), in_Pd.flatten(1)], dim=1)

    def sent_gradients(
        self, method: PromptMethod | DualMethod, start: State, records: Sequence[str]
    ) -> Iterator[Tensor]:
        """In p_G, or in Pt and Pd."""
        if isinstance(method, PromptMethod):
            return super().sent_gradients(method, start, records)
        return self.gradients(method, start, records)

    def log_probs(self, method: Any, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        if isinstance(method, PromptMethod):
            return super().log_probs(method, models, records)
        logs: NDArray[np.float64] = self._of_models(models, records).double().log_softmax(-1).numpy()
        return logs

    def predicted(
        self, models: Sequence[State], records: Sequence[str], method: PromptMethod | DualMethod
    ) -> NDArray[np.int64]:
        if isinstance(method, PromptMethod):
            return super().predicted(models, records, method)
        alike = all(torch.equal(model[n], models[0][n]) for model in models for n in ("Pt", "Pd"))  # as before training
        named: NDArray[np.int64] = self._of_models(models[: 1 if alike else None], records).argmax(-1).numpy()
        return np.repeat(named, len(models) // len(named), axis=0)

    def _of_models(self, models: Sequence[State], records: Sequence[str]) -> Tensor:
        both = (torch.stack([model[name] for model in models]).split(self.clients_per_batch) for name in ("Pt", "Pd"))
        return torch.cat([self.answered(Pt, Pd, records) for Pt, Pd in zip(*both, strict=True)])


def visual_prompts(Pt: Tensor, Pd: Tensor) -> Tensor:
    """Visual prompts [N, D, b, e], eq. 3 of DP2FL: Pi = F(Pt), layer by layer, where Pd [N, D, e, d + 1] are the
    parameters of F."""
    return Pt @ Pd[..., :-1].mT + Pd[..., -1][..., None, :]


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[PromptMethod | DualMethod], progress: Progress
) -> Learner:
    """The learner of a plan with the patch embeddings and features of its pictures."""
    assert isinstance(resources.backbone, ClipSource)
    settings = Settings(**dataclasses.asdict(resources.settings))
    soft = [method for method in methods if isinstance(method, PromptMethod)]
    clip, features, labels = prompts.encoded(resources, federation, soft, progress)
    with (cache := claim(resources.cache)).lock(progress.say):
        tokens = clip.tokens(list(federation.records.values()), cache, say=progress.say, stage=progress.stage)
    return Learner(clip, features, tokens, labels, federation.classes, settings)


def evaluation(resources: Resources, federation: Federation) -> Personalisation:
    """How good the models of a plan are: by the classes that they recognise, in the end beside the global model."""
    return Personalisation.of(federation, Settings(**dataclasses.asdict(resources.settings)).clients_per_batch)
