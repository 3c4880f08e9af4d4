"""What clients of the LoRA methods train: low-rank adapters on the language model of a frozen vision-language model.

Naming, said once: the papers write W = W0 + A B with A random and B zero at the start. peft computes W0 + scale *
lora_B lora_A with lora_A random and lora_B zero, so the paper's A is peft's `lora_A` and the paper's B is peft's
`lora_B`. An adapter maps names as `layers.0.self_attn.q_proj.A` to tensors: A is [rank, in], B is [out, rank]. A method
may train other tensors, if its `model` makes an adapter of them. Source: FedRand (section 4.1, "Implementation
details"); Hu et al. (2022).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.vlm import IGNORE, Encoded, FrozenVLM, load
from fedaudit.backbones.vlm_prefix import Prefix, shared
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, number, text, whole
from fedaudit.machinery.store import Folder, claim, write_atomic
from fedaudit.tasks.base import client_name
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL, SERVER
from trainers.base import Method, Model, State
from trainers.evaluations import Answers
from trainers.learners import LearnerFacts
from trainers.lowrank import train_as_one, train_beside
from trainers.protocols import Bench, OneByOne
from trainers.resources import Resources
from trainers.transcript import Transcript

if TYPE_CHECKING:
    from fedaudit.machinery.progress import Progress
    from fedaudit.tasks.base import Federation

FOLD_BELOW = 50_000_000  # adapted weights
ACTIVATIONS = 2_000_000_000  # bytes that a backward pass may hold, about
KEPT = 5  # numbers that a pass keeps per token and output feature of the linear layers, measured on Llama
COPIES = 2  # of its gradient that a record needs, where it is taken and laid end to end
PASS = 8  # records of a pass on a processor: their activations stay in its cache (64 take a tenth longer)
SPARE_TOKENS = 3  # an answer may be longer than the longest right one by so many


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
    alone = ("maxrenyi", "reconstruct")
    privacy = "AdapterPrivacy"
    records = "texts"
    shadows = True
    gradients = True
    nonlinear = "whose AdamW scales every number of a gradient, so that a message is no sum of its records' gradients"


@dataclass(frozen=True)
class Settings(Parameters):
    rank: int = whole(8, "rank of the adapters", least=1, most=4096)
    alpha: float = number(16.0, "LoRA scaling numerator: the update is alpha / rank * B A", above=0, most=10**6)
    target_modules: str = text(
        "all",
        "adapted projections: all, attention (the paper's), or names",
        form=r"\w+(,\w+)*",
        said="all, attention, or names such as q_proj,v_proj",
    )
    learning_rate: float = number(4e-3, "AdamW learning rate", above=0, most=1000)
    weight_decay: float = number(1e-6, "AdamW weight decay", least=0, most=1000)
    batch: int = whole(8, "records per local step", least=1, most=10**6)
    local_steps: int = whole(8, "local steps per participation", least=1, most=10**6)
    local_epochs: int = whole(0, "local epochs per participation; 0 = go by --local-steps", least=0, most=10**6)


class Learner(OneByOne):
    """Trains, evaluates and scores adapters on one frozen model, one at a time.

    There is one adapter in the model; its tensors are replaced (a swap costs less than a millisecond), by some of
    another rank if need be.
    """

    def __init__(self, vlm: FrozenVLM, data: dict[str, Encoded], settings: Settings) -> None:
        from peft import LoraConfig, get_peft_model

        self.vlm, self.data, self.settings = vlm, data, settings
        linear = [vlm.model.get_submodule(name).weight for name in vlm.projections("all")]
        self._bytes_per_token = KEPT * sum(weight.element_size() * weight.shape[0] for weight in linear)
        targets = vlm.projections(settings.target_modules)
        config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, target_modules=targets)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`is_gradient_checkpointing` is deprecated"
            )  # peft asks transformers the old way
            self.model = get_peft_model(vlm.model, config).eval()
        self.model.requires_grad_(False)  # what is trained comes in from outside, see `train`
        layers = {vlm.short(name): self.model.base_model.model.get_submodule(name) for name in targets}
        self._names = {
            f"{short}.{half}": f"base_model.model.{name}.lora_{half}.default.weight"
            for short, name in zip(layers, targets, strict=True)
            for half in "AB"
        }
        self.parameters: dict[str, Tensor] = {n: self.model.get_parameter(full) for n, full in self._names.items()}
        weights = [layer.base_layer.weight for layer in layers.values()]
        # folding needs a copy of the adapted weights: not for models where that would double the memory or round the
        # sum
        small = sum(w.numel() for w in weights) < FOLD_BELOW and all(w.dtype == torch.float32 for w in weights)
        self._folded = {n: (m, m.base_layer.weight.clone()) for n, m in layers.items()} if small else {}
        for layer in layers.values():
            (train_as_one if small else train_beside)(layer)
        self._shared = (
            self._usable_prefix() if small else 0
        )  # beside a large model's image tokens the words are nothing

    @property
    def remedy(self) -> str:
        """What to change where a training diverges."""
        return f"lower --learning-rate (now {self.settings.learning_rate:g})"

    def initial(self, generator: torch.Generator) -> State:
        """The common public start: A uniform in +-1/sqrt(in) (peft's own law), B zero."""
        rank, state = self.settings.rank, {}
        for name, parameter in sorted(self.parameters.items()):
            if name.endswith(".A"):
                width = parameter.shape[1]
                state[name] = (2 * torch.rand((rank, width), generator=generator) - 1) / width**0.5
            else:
                state[name] = torch.zeros((parameter.shape[0], rank))
        return state

    def put(self, adapter: State) -> None:
        """Make `adapter` the model's. InputError: it is of other layers, or its factors do not fit."""
        if odd := sorted(adapter.keys() ^ self.parameters.keys()):
            raise InputError(
                f"an adapter of {len(adapter)} tensors does not fit the model, whose {self.settings.target_modules} "
                f"projections take "
                f"{len(self.parameters)} ({odd[0]} is in one of them only)"
            )
        for name, tensor in adapter.items():
            place, outer = self.parameters[name], 1 if name.endswith(".A") else 0
            if tensor.shape[outer] != place.shape[outer]:
                raise InputError(
                    f"{name} is {' x '.join(map(str, tensor.shape))}, where the model has {place.shape[outer]} features"
                )
            place.data = tensor.detach().to(place.device, torch.float32)

    def train(
        self,
        state: State,
        records: Sequence[str],
        generator: torch.Generator,
        model: Model,
        left_out: Collection[str] = (),
    ) -> State:
        """AdamW steps on the records' texts from `state`: a fresh optimizer, shuffled epochs. `model` makes the adapter
        of a state.

        Those `left_out` weigh 0: they are in batches, and their tokens in what the mean divides by. A batch of nothing
        else is a step with a gradient of 0, in which weight decay and moments still move.
        """
        leaves = {n: t.to(self.vlm.device, copy=True).requires_grad_() for n, t in state.items()}
        optimizer = torch.optim.AdamW(
            leaves.values(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        queue: list[Tensor] = []
        for _ in range(self.steps(len(records))):
            if not queue:
                queue = list(torch.randperm(len(records), generator=generator).split(self.settings.batch))
            for leaf in leaves.values():  # not None, or AdamW would skip a batch in which nothing weighs
                leaf.grad = torch.zeros_like(leaf)
            batch = [records[i] for i in queue.pop(0).tolist()]
            weighing = [record for record in batch if record not in left_out]
            for part in self._parts(weighing) if weighing else []:
                share = self._tokens(part) / self._tokens(batch)
                (share * self.loss(model(leaves), part)).backward()
            optimizer.step()
        return {name: leaf.detach().cpu() for name, leaf in leaves.items()}

    def gradients(self, state: State, records: Sequence[str], *, each: bool) -> Iterator[Tensor]:
        """Gradients in all tensors of an adapter, laid end to end, of records' losses, each the mean over its own
        tokens.

        `each`: of every record, [R, P], in parts of the records that fit into memory, each by one pass; else their
        sum, [1, P], over each part. So no record's gradient depends on who else is in its batch.
        """
        for part in self._parts(records, copies=COPIES if each else 0):
            leaves = {}
            for name, tensor in state.items():
                own = tensor.to(self.vlm.device)
                leaves[name] = (own.expand(len(part), *own.shape) if each else own).detach().requires_grad_()
            logits, labels = self._predicted(leaves, part)
            losses = F.cross_entropy(logits.mT, labels, ignore_index=IGNORE, reduction="none").sum(1)
            found = torch.autograd.grad((losses / (labels != IGNORE).sum(1)).sum(), list(leaves.values()))
            yield torch.cat([g.reshape(len(part) if each else 1, -1) for g in found], dim=1)

    def _parts(self, batch: Sequence[str], *, copies: int = 0) -> list[Sequence[str]]:
        """A batch in parts whose activations, and for each record so many copies of all adapted tensors, fit into
        memory; the gradients of the parts add up to the batch's. Small models: one part."""
        longest = max((len(self.data[record].ids) for record in batch), default=0)
        adapted = sum(4 * tensor.numel() for tensor in self.parameters.values())  # bytes
        size = max(1, ACTIVATIONS // max(1, self._bytes_per_token * longest + copies * adapted))
        return [batch[i : i + size] for i in range(0, len(batch), size)]

    def _tokens(self, records: Sequence[str]) -> int:
        """How many tokens are learnt."""
        return sum(len(self.data[record].ids) - self.data[record].prompt for record in records)

    def steps(self, records: int) -> int:
        """Local steps of a participation: T_k = ceil(n_k / b) E where epochs are asked for (FedRand, Algorithm 2)."""
        return self.settings.local_epochs * math.ceil(records / self.settings.batch) or self.settings.local_steps

    def loss(self, adapter: State, records: Sequence[str]) -> Tensor:
        """FedRand eq. 1 per token, as usual for language models: the mean over all text tokens of a batch;
        differentiable."""
        logits, labels = self._predicted(adapter, records)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    def _predicted(self, adapter: State, records: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Logits [R, T, V] of the next token, and which it is, [R, T]; IGNORE outside of the texts."""
        batch = self.vlm.batch([self.data[record] for record in records])
        labels, more = batch.labels[:, 1:], {}
        if self.vlm.keeps_logits:  # a vocabulary wide row for every image token would be most of the memory
            keep = batch.labels.shape[1] - min(self.data[record].prompt for record in records) + 1
            more, labels = {"logits_to_keep": keep}, labels[:, 1 - keep :]
        weights = {self._names[name]: tensor for name, tensor in adapter.items()}
        given = batch.inputs | more | {"use_cache": False}
        logits = torch.func.functional_call(self.model, weights, kwargs=given, tie_weights=False).logits
        return logits[:, :-1].float(), labels

    @contextmanager
    def _at(self, adapter: State) -> Iterator[None]:
        """The model with `adapter`, for inference: small models fold B A into the weights, which costs no more than the
        base model."""
        self.put(adapter)
        if not self._folded:
            yield
            return
        scale = self.settings.alpha / self.settings.rank
        with torch.no_grad(), self.model.disable_adapter():
            for name, (layer, frozen) in self._folded.items():
                a, b = self.parameters[f"{name}.A"], self.parameters[f"{name}.B"]
                torch.addmm(frozen, b, a, alpha=scale, out=layer.base_layer.weight)
            try:
                yield
            finally:
                for layer, frozen in self._folded.values():
                    layer.base_layer.weight.copy_(frozen)

    def export(self, adapter: State, folder: Path) -> None:
        """Write an adapter in peft's format: `PeftModel.from_pretrained(base, folder)` is this learner's model."""
        from peft import LoraConfig

        rank = next(t.shape[0] for name, t in adapter.items() if name.endswith(".A"))
        config = LoraConfig(
            r=rank,
            lora_alpha=self.settings.alpha * rank / self.settings.rank,  # the scale stays that of the training
            lora_dropout=0.0,
            target_modules=self.vlm.projections(self.settings.target_modules),
            inference_mode=True,
            base_model_name_or_path=str(self.vlm.path),
        )
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {self._names[name].replace(".default", ""): t.contiguous() for name, t in adapter.items()}
        write_atomic(folder / "adapter_model.safetensors", safetensors.torch.save(tensors, metadata={"format": "pt"}))
        config.save_pretrained(str(folder))

    def words(self, record: str) -> str:
        """The part of a record that is learnt, as text."""
        encoded = self.data[record]
        return self.vlm.tokenizer.decode(encoded.ids[encoded.prompt : -1])

    def tokens(self, record: str) -> list[str]:
        """Its tokens, each as text."""
        return [self.vlm.tokenizer.decode([int(i)]).strip() for i in self.data[record].ids]

    def logits(self, state: State, records: Sequence[str]) -> list[Tensor]:
        """Logits [T, V] of each record under `state`."""
        found = {i: rows for part in self.chunks(state, records) for i, rows in part}
        return [found[i] for i in range(len(records))]

    def chunks(self, state: State, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        """(position in `records`, logits [T, V]) of records of similar length, a chunk at a time: memory stays
        bounded."""
        with self._at(state):
            yield from self._chunks(records)

    @torch.no_grad()
    def _chunks(self, records: Sequence[str]) -> Iterator[list[tuple[int, Tensor]]]:
        encoded = [self.data[record] for record in records]
        order = sorted(range(len(records)), key=lambda i: (len(encoded[i].ids), i))
        few = self.vlm.chunk(max(len(e.ids) for e in encoded))
        few = min(few, PASS) if self.vlm.device.type == "cpu" else few
        prefix = self._prefix(encoded[0], self._shared) if self._shared else None
        for start in range(0, len(order), few):
            part = order[start : start + few]
            inputs = self.vlm.batch([encoded[i] for i in part]).inputs
            logits = prefix.logits(inputs) if prefix else self.model(**inputs, use_cache=False).logits
            yield [(i, rows[: len(encoded[i].ids)]) for i, rows in zip(part, logits.float(), strict=True)]

    @torch.no_grad()
    def inputs(
        self, adapter: State, records: Sequence[str], reduce: Callable[[str, Tensor], Tensor | None]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """(places in `records`, what `reduce` makes of the inputs [R, T, in] of each adapted layer, by its name) of
        records of similar length, a chunk at a time. Rows behind a record's own tokens are padding."""
        found: dict[str, Tensor] = {}

        def look(name: str, layer: Any, given: tuple[Tensor]) -> None:
            if (reduced := reduce(name, given[0])) is not None:
                found[name] = reduced

        layers = {name: self._layer(name) for name in dict.fromkeys(name[:-2] for name in adapter)}
        hooks = [layer.register_forward_pre_hook(functools.partial(look, name)) for name, layer in layers.items()]
        encoded = [self.data[record] for record in records]
        order = sorted(range(len(records)), key=lambda i: (len(encoded[i].ids), i))
        few = self.vlm.chunk(max((len(e.ids) for e in encoded), default=1))
        try:
            with self._at(adapter):
                for start in range(0, len(order), few):
                    part = order[start : start + few]
                    self.model(**self.vlm.batch([encoded[i] for i in part]).inputs, use_cache=False)
                    yield part, dict(found)
        finally:
            for hook in hooks:
                hook.remove()

    def _layer(self, name: str) -> torch.nn.Module:
        """The adapted layer of that name."""
        place: torch.nn.Module = self.model.get_submodule(self._names[f"{name}.A"].rpartition(".lora_A")[0])
        return place

    def _prefix(self, record: Encoded, length: int) -> Prefix:
        """The first words of a record, under the model as it is."""
        return Prefix(self.model, self.vlm.embed(record.ids[None, :length], []))

    @torch.no_grad()
    def _usable_prefix(self) -> int:
        """How many first tokens the records share; 0 if the model does not go on from them as it reads the whole."""
        if not (length := shared(self.data.values())):
            return 0
        record = next(iter(self.data.values()))
        inputs = self.vlm.batch([record]).inputs
        try:
            split = self._prefix(record, length).logits(inputs)
        except Exception:  # families differ in what they take beside a cache
            return 0
        return length if self.vlm.same(split, self.model(**inputs, use_cache=False).logits) else 0

    def evaluate(self, adapter: State, records: Sequence[str]) -> tuple[list[float], list[str]]:
        """Text loss (nats per token) and greedy answer of each record."""
        with self._at(adapter):
            longest = max(len(e.ids) - e.prompt for e in self.data.values())
            answers = self.vlm.generate(self.model, [self.data[r] for r in records], longest + SPARE_TOKENS)
            return self._losses(records), answers

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        """Text loss (nats per token) of each record."""
        with self._at(adapter):
            return self._losses(records)

    def _losses(self, records: Sequence[str]) -> list[float]:
        found: dict[int, float] = {}
        for part in self._chunks(records):
            for i, rows in part:
                encoded = self.data[records[i]]
                target = encoded.ids[encoded.prompt :].to(rows.device)
                found[i] = F.cross_entropy(rows[encoded.prompt - 1 : -1], target).item()
        return [found[i] for i in range(len(records))]


def prepared(
    resources: Resources, federation: Federation, methods: Sequence[Method[Any]], progress: Progress
) -> Learner:
    """The learner of a plan with its records encoded."""
    assert isinstance(resources.backbone, Path)
    vlm = load(resources.backbone, resources.device, resources.dtype, resources.backbone_code)
    with (cache := claim(resources.cache)).lock(progress.say):
        data = vlm.encode(
            list(federation.records.values()), cache, say=progress.say, stage=progress.stage, workers=resources.workers
        )
    return Learner(vlm, data, Settings(**dataclasses.asdict(resources.settings)))


def evaluation(resources: Resources, federation: Federation) -> Answers:
    """How good the models of a plan are: by their answers."""
    test, novel = federation.test, federation.novel_test
    return Answers([r.references for r in test], federation.score, [r.references for r in novel])


def export_adapters(bench: Bench, job: tuple[Transcript, Folder]) -> None:
    """Write the final global model and every client's own model as folders that peft loads: `global`, `client-00`,
    ..."""
    transcript, folder = job
    assert isinstance(bench.learner, Learner)
    bench.learner.export(transcript.broadcast(transcript.schedule.rounds), folder.path / "global")
    for client in range(transcript.schedule.clients):
        rounds = transcript.participations(client)
        own = transcript.own_model(rounds[-1], client) if rounds else None
        if own is not None:
            bench.learner.export(own, folder.path / client_name(client))
