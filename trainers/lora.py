"""LoRA: clients train low-rank adapters on the language model of a frozen vision-language model.

An adapter is a state of tensors A and B per layer (`trainers.lora_model` has their names and shapes). A method may
train other tensors, if its `model` makes an adapter of them. Source: FedRand (section 4.1, "Implementation details");
Hu et al. (2022).
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.vlm import IGNORE, Encoded, FrozenVLM, load
from fedaudit.machinery import devices
from fedaudit.machinery.parameters import Parameters, number, text, whole
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim
from fedaudit.tasks.base import Federation, client_name
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL, SERVER
from fedaudit.trainers.base import Method, Model, State
from fedaudit.trainers.evaluations import Answers
from fedaudit.trainers.learners import LearnerFacts
from fedaudit.trainers.lora_model import LoraModel
from fedaudit.trainers.protocols import Bench, OneByOne
from fedaudit.trainers.recompute import recompute
from fedaudit.trainers.resources import Resources
from fedaudit.trainers.transcript import Transcript

ACTIVATIONS = 2_000_000_000  # bytes that a backward pass may hold on a processor, roughly
OF_CARD = 0.8  # of what the weights leave of a GPU's memory, for a backward pass
COPIES = 2  # copies of its gradient that are in memory for each record, while they are laid end to end
SPARE_TOKENS = 3  # an answer may be this much longer than the longest text of a record


class Facts(LearnerFacts):
    title = "LoRA"
    noun = "language models with adapters"
    method = "fedrand"
    task = "captions"
    attack = "maxrenyi"
    rounds = 7
    clients = 12
    per_round = 4
    threat_models = (RELEASED_MODEL, SERVER, OWNER)
    backbone = "vlm"
    unattacked = True
    alone = ("maxrenyi", "reconstruct")
    privacy = "AdapterPrivacy"
    records = "texts"
    shadows = True
    gradients = True


@dataclass(frozen=True)
class Settings(Parameters):
    rank: int = whole(8, "rank of the adapters", least=1, most=4096)
    alpha: float = number(16.0, "LoRA scaling numerator: the update is alpha / rank * B A", above=0, most=10**6)
    target_modules: str = text(
        "all",
        "adapted projections: all, attention (the paper's), or names",
        form=r"[\w.]+(,[\w.]+)*",
        said="all, attention, or names such as q_proj,v_proj",
    )
    learning_rate: float = number(4e-3, "AdamW learning rate", above=0, most=1000)
    weight_decay: float = number(1e-6, "AdamW weight decay", least=0, most=1000)
    batch: int = whole(8, "records per local step", least=1, most=10**6)
    local_steps: int = whole(8, "local steps per participation", least=1, most=10**6)
    local_epochs: int = whole(0, "local epochs per participation; 0 = go by --local-steps", least=0, most=10**6)
    evaluate_every: int = whole(
        0,
        "test all models every N rounds; 0 = the global one every round, the clients' at the end",
        least=0,
        most=10**6,
    )

    def batches(self, records: int, generator: Any) -> Iterator[list[int]]:
        """Yield the batches of a participation, as indices into the client's records: `local_epochs` times ceil(n_k /
        b) (FedRand, Algorithm 2), or `local_steps` if that is 0. Epochs are shuffled; the last may end early."""
        steps = self.local_epochs * math.ceil(records / self.batch) or self.local_steps
        return itertools.islice(shuffled_batches(records, self.batch, generator), steps)


class Learner(OneByOne, LoraModel):
    """Trains and evaluates adapters on one frozen model, one at a time. Where not even the pass of one record would fit
    into memory, the layers keep their inputs only (`trainers.recompute`)."""

    def __init__(self, vlm: FrozenVLM, data: dict[str, Encoded], settings: Settings, memory: int = 0) -> None:
        super().__init__(vlm, data, settings, memory)
        longest = max((len(encoded.ids) for encoded in data.values()), default=0)
        if self._bytes_per_token * longest > self._memory and (layers := recompute(self.model)):
            width = vlm.model.config.get_text_config().hidden_size
            inputs = layers * width * next(self.model.parameters()).element_size()
            self._bytes_per_token = inputs + self._bytes_per_token // layers

    @property
    def remedy(self) -> str:
        """Advice for the error message when training diverges."""
        return f"lower --learning-rate (now {self.settings.learning_rate:g})"

    def initial(self, generator: torch.Generator) -> State:
        """The common public start, {name: factor}: A [rank, in] uniform in +-1/sqrt(in), as in peft, and B [out, rank]
        zero."""
        rank, state = self.settings.rank, {}
        for name, parameter in sorted(self.parameters.items()):
            if name.endswith(".A"):
                width = parameter.shape[1]
                state[name] = (2 * torch.rand((rank, width), generator=generator) - 1) / width**0.5
            else:
                state[name] = torch.zeros((parameter.shape[0], rank))
        return state

    def train(
        self,
        state: State,
        records: Sequence[str],
        generator: torch.Generator,
        model: Model,
        left_out: Collection[str] = (),
    ) -> State:
        """The tensors of `state` after AdamW steps on the records' texts, with a new optimizer and shuffled epochs.
        `model` maps a state to its adapter.

        Records `left_out` weigh 0: they are in batches, and their tokens count in the mean's divisor. A batch of such
        records only is a step with gradient 0: weight decay and moments still act.
        """
        leaves = {n: t.to(self.vlm.device, copy=True).requires_grad_() for n, t in state.items()}
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        optimizer = torch.optim.AdamW(leaves.values(), lr=rate, weight_decay=decay, fused=True)
        for chosen in self.settings.batches(len(records), generator):
            for leaf in leaves.values():  # zeros, not None: else AdamW would skip a batch whose records weigh 0
                leaf.grad = torch.zeros_like(leaf)
            batch = [records[i] for i in chosen]
            weighted = [record for record in batch if record not in left_out]
            for part in self._parts(weighted) if weighted else []:
                share = self._tokens(part) / self._tokens(batch)
                (share * self.loss(model(leaves), part)).backward()
            optimizer.step()
        return {name: leaf.detach().cpu() for name, leaf in leaves.items()}

    def gradients(self, state: State, records: Sequence[str], *, each: bool) -> Iterator[Tensor]:
        """Yield gradients of the records' losses in all P numbers of an adapter, laid end to end, once per part of R
        records that fits into memory, in order: [R, P] if `each`, else the part's sum [1, P].

        A record's loss is the mean over its own tokens, so that its gradient does not depend on the others in its
        batch.
        """
        for part in self._parts(records, copies=COPIES if each else 0):
            leaves = {}
            for name, tensor in state.items():
                factor = tensor.to(self.vlm.device)
                leaves[name] = (factor.expand(len(part), *factor.shape) if each else factor).detach().requires_grad_()
            logits, labels = self._predicted(leaves, part)
            losses = F.cross_entropy(logits.mT, labels, ignore_index=IGNORE, reduction="none").sum(1)
            gradients = torch.autograd.grad((losses / (labels != IGNORE).sum(1)).sum(), list(leaves.values()))
            yield torch.cat([g.reshape(len(part) if each else 1, -1) for g in gradients], dim=1)

    def _parts(self, batch: Sequence[str], *, copies: int = 0) -> list[Sequence[str]]:
        """A batch split, in order, into equal parts whose activations, and `copies` of all adapted tensors for each
        record, fit into memory. For small models this is one part."""
        longest = max((len(self.data[record].ids) for record in batch), default=0)
        adapted = sum(4 * tensor.numel() for tensor in self.parameters.values())  # bytes
        most = max(1, self._memory // max(1, self._bytes_per_token * longest + copies * adapted))
        parts = max(1, math.ceil(len(batch) / most))
        size = max(1, math.ceil(len(batch) / parts))
        return [batch[i : i + size] for i in range(0, len(batch), size)]

    @property
    def _memory(self) -> int:
        """The bytes that a backward pass may hold: those of --memory, or `ACTIVATIONS`. Of a GPU it is a part of the
        whole, not of what is free: numbers that are added in other parts round otherwise, and the same card gives the
        same numbers again."""
        if self.memory:
            return self.memory
        card = devices.memory(self.vlm.device)
        if card is None:
            return ACTIVATIONS
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        return max(ACTIVATIONS, int(OF_CARD * (card - weights)))

    def _tokens(self, records: Sequence[str]) -> int:
        """Number of the records' tokens that enter the loss."""
        return sum(len(self.data[record].ids) - self.data[record].prompt for record in records)

    def loss(self, adapter: State, records: Sequence[str]) -> Tensor:
        """Mean cross-entropy over all text tokens of a batch (FedRand eq. 1, per token); differentiable."""
        logits, labels = self._predicted(adapter, records)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    def _predicted(self, adapter: State, records: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Logits [R, T, V] of the next token (R records, T tokens, V words), and the labels [R, T] of that token, which
        are IGNORE outside of the texts. Some models leave out first tokens that belong to no text."""
        batch = self.vlm.batch([self.data[record] for record in records])
        labels, options = batch.labels[:, 1:], {}
        if self.vlm.keeps_logits:  # else the logits of image tokens would take most of the memory
            keep = batch.labels.shape[1] - min(self.data[record].prompt for record in records) + 1
            options, labels = {"logits_to_keep": keep}, labels[:, 1 - keep :]
        weights = {self._names[name]: tensor for name, tensor in adapter.items()}
        arguments = batch.inputs | options | {"use_cache": False}
        logits = torch.func.functional_call(self.model, weights, kwargs=arguments, tie_weights=False).logits
        return logits[:, :-1].float(), labels

    def evaluate(self, adapter: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        """Two lists: mean text loss per token of each record, in nats, and its answer, generated greedily."""
        with self._at(adapter):
            longest = max(len(e.ids) - e.prompt for e in self.data.values())
            answers = self.vlm.generate(self.model, [self.data[r] for r in records], longest + SPARE_TOKENS)
            return self._losses(records), answers

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Mean text loss per token of each record, in nats."""
        with self._at(adapter):
            return self._losses(records)

    def _losses(self, records: Sequence[str]) -> list[float]:
        losses: dict[int, float] = {}
        for part in self._chunks(records):
            for i, rows in part:
                encoded = self.data[records[i]]
                target = encoded.ids[encoded.prompt :].to(rows.device)
                losses[i] = F.cross_entropy(rows[encoded.prompt - 1 : -1], target).item()
        return [losses[i] for i in range(len(records))]


def shuffled_batches(records: int, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield batches of indices of so many records without end, each epoch in a new order. An epoch's last batch holds
    what is left."""
    while True:
        for part in torch.randperm(records, generator=generator).split(size):
            yield part.tolist()


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[Method[Any]], progress: Progress
) -> Learner:
    """The learner of the frozen model in `resources`, with the federation's records encoded. `methods` are not looked
    at."""
    assert isinstance(resources.backbone, Path)
    vlm = load(resources.backbone, resources.device, resources.dtype, resources.backbone_code)
    with (cache := claim(resources.cache)).lock(progress.say):
        data = vlm.encode(
            list(federation.records.values()),
            cache,
            say=progress.say,
            stage=progress.stage,
            workers=resources.workers,
            sample=resources.sample,
        )
    return Learner(vlm, data, Settings(**dataclasses.asdict(resources.settings)), resources.memory)


def evaluation(resources: Resources, federation: Federation) -> Answers:
    """The evaluation of a training: it scores the models' answers to the test records."""
    test, novel = federation.test, federation.novel_test
    every = Settings(**dataclasses.asdict(resources.settings)).evaluate_every
    return Answers([r.references for r in test], federation.score, [r.references for r in novel], every)


def export_adapters(bench: Bench, job: tuple[Transcript, Folder]) -> None:
    """Write the final global model and every client's own one into folders that peft loads: `global`, `client-00`, ...
    Clients whose own model the run does not hold are left out."""
    transcript, folder = job
    assert isinstance(bench.learner, Learner)
    bench.learner.export(transcript.broadcast(transcript.schedule.rounds), folder.path / "global")
    for client in range(transcript.schedule.clients):
        rounds = transcript.participations(client)
        own_model = transcript.own_model(rounds[-1], client) if rounds else None
        if own_model is not None:
            bench.learner.export(own_model, folder.path / client_name(client))
