"""The prompt methods the slow and obvious way, in double precision: one client after the other, one record after the other.

Every tensor that a record moves is a leaf of its own, differentiated by plain autograd through open_clip's own transformer over the full
context; clipping and noise are loops. Noise is drawn from the generators that the trainers document, everything else is written anew from the
papers: DP-FPL (Algorithm 1, A.2), FedOTP, FedPGP, CoOp.
"""

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedaudit.contracts import tiny_clip
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Schedule, generator
from fedaudit.trainers.prompts import Settings
from fedaudit.trainers.transcript import Transcript
from tests.prompt_toy import Federation, close

State = dict[str, Tensor]


def text_features(clip: Any, context: Tensor, names: Sequence[str]) -> Tensor:
    """[C, E] of context [b, d]: [SOS][context][name]["."][EOS][padding] of every class over the full context length; of contexts [C, b, d] each
    class has its own."""
    if context.ndim == 3:
        return torch.cat([text_features(clip, own, [name]) for own, name in zip(context, names, strict=True)])
    model = _doubled(clip)
    prompts, ends = [], []
    for name in names:
        sos, *rest = _tokens(name)
        ends.append(1 + len(context) + len(rest) - 1)
        rest += [0] * (clip.context_length - 1 - len(context) - len(rest))
        prompts.append(torch.cat([model.token_embedding.weight[[sos]], context, model.token_embedding.weight[rest]]))
    x = torch.stack(prompts) + model.positional_embedding
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask))
    x = x[range(len(names)), ends] @ model.text_projection
    return x / x.norm(dim=-1, keepdim=True)


@functools.cache
def _tokens(name: str) -> tuple[int, ...]:
    ids = tiny_clip.tokenizer().encode(f"{name} .").ids
    assert ids[-1] == tiny_clip.VOCABULARY["<end>"]
    return tuple(ids)


@functools.cache
def _doubled(clip: Any) -> Any:
    return copy.deepcopy(clip.model).double()


def cross_entropy(similarities: Tensor, label: int, scale: float) -> Tensor:
    """-log of eq. 1, from the cosine similarities [C] of one image."""
    logits = scale * similarities
    return -torch.log(torch.exp(logits[label]) / torch.exp(logits).sum())


def record_loss(world: Federation, prompt: Tensor, record: str) -> Tensor:
    text = text_features(world.clip, prompt.double(), world.classes)
    image = world.features[world.ids.index(record)].double()
    return cross_entropy(text @ image, world.labels[record], world.clip.scale)


def record_gradient(world: Federation, prompt: Tensor, record: str) -> Tensor:
    leaf = prompt.double().requires_grad_()
    return torch.autograd.grad(record_loss(world, leaf, record), leaf)[0]


def transport_similarity(text: Tensor, patches: Tensor) -> Tensor:
    """[C] of two prompts' features [2, C, E] and patch features [M, E], class by class; the plan is a constant."""
    found = []
    for c in range(text.shape[1]):
        plan = slow_plan([[1 - float(patch @ text[p, c].detach()) for p in range(2)] for patch in patches])
        found.append(sum(plan[m][p] * (patch @ text[p, c]) for m, patch in enumerate(patches) for p in range(2)))
    return torch.stack(found)


def slow_plan(
    cost: Sequence[Sequence[float]],
    *,
    regularisation: float = 0.1,
    mass: float = 0.8,
    rounds: int = 100,
    still: float = 1e-3,
) -> list[list[float]]:
    """Entropic plan [M][P] on plain numbers: a patch gives at most 1 / M, a prompt receives mass / P (FedOTP: 100 iterations, or until the prompts'
    scaling moves by no more than `still` of itself)."""
    M, P = len(cost), len(cost[0])
    K = [[math.exp(-c / regularisation) for c in row] for row in cost]
    give, receive = [1.0] * M, [1.0] * P
    for _ in range(rounds):
        give = [min(1.0, 1 / M / sum(K[m][p] * receive[p] for p in range(P))) for m in range(M)]
        before, receive = receive, [mass / P / sum(K[m][p] * give[m] for m in range(M)) for p in range(P)]
        if all(abs(b - a) <= still * a for a, b in zip(before, receive, strict=True)):
            break
    return [[give[m] * K[m][p] * receive[p] for p in range(P)] for m in range(M)]


@dataclass
class Slow:
    """One run of a method; a subclass says what is differentiated and what becomes of the gradients."""

    world: Federation
    params: Any
    settings: Settings
    privacy: Privacy
    schedule: Schedule
    own: dict[int, State] = field(default_factory=dict)  # of the clients that took part
    drawn: list[tuple[int | None, str, float]] = field(default_factory=list)  # who, release, sensitivity over noise
    _waiting: dict[int, list[int]] = field(default_factory=dict)  # what is left of each client's epoch
    _epochs: dict[int, int] = field(default_factory=dict)

    parts: ClassVar[tuple[str, ...]] = ("p_G", "p_L")  # what is differentiated; all but p_G is the client's own
    local: ClassVar[tuple[str, ...]] = ()  # noised by the client
    central: ClassVar[tuple[str, ...]] = ()  # noised by the server

    def start(self, p_G: Tensor, p_L: Tensor, hard: Tensor, g: torch.Generator) -> State:
        """The start, made of two random prompts; what else is random is drawn next from g."""
        return {name: {"p_G": p_G, "p_L": p_L}[name] for name in self.parts}

    def leaves(self, server: State, own: State, k: int, r: int, s: int) -> State:
        """The tensors that are differentiated, by name."""
        return {name: (server if name == "p_G" else own)[name] for name in self.parts}

    def prompt(self, leaves: State, server: State, own: State) -> Tensor:
        """p_i of the forward pass."""
        return sum(leaves.values())  # type: ignore[return-value]

    def finish(self, server: State, own: State, leaves: State, d: State) -> tuple[State, State]:
        """What a client keeps and sends, from the (clipped, noised) gradients of its leaves."""
        kept = {name: own[name] - self.settings.local_rate * d[name] for name in d if name != "p_G"}
        return kept, {"gradient": d["p_G"]} if "p_G" in d else {}

    def public_loss(self, leaves: State, server: State, own: State) -> Tensor | None:
        """A part of the loss that no record enters."""
        return None

    def aggregate(self, server: State, sent: dict[int, State], r: int) -> State:
        """p_G - eta_G (mean gradient + one noise of the server)."""
        public = {"hard": server["hard"]} if "hard" in server else {}
        if self.several:
            return public | self.mean(sent)
        total = sum(message["gradient"] / len(sent) for message in sent.values())
        if self.noisy:
            own = generator(self.schedule.seed, "server", r, "noise on p_G")
            total = total + self.draw("p_G", own, server["p_G"].shape)
        return public | {"p_G": server["p_G"] - self.settings.global_rate * total}

    def mean(self, sent: dict[int, State]) -> State:
        """The clients' prompts by their numbers of records; with noise each counts the same."""
        n = {k: 1 if self.noisy else len(self.world.training[k]) for k in sent}
        return {"p_G": torch.stack([n[k] / sum(n.values()) * message["p_G"] for k, message in sent.items()]).sum(0)}

    @property
    def noisy(self) -> bool:
        return math.isfinite(self.privacy.epsilon)

    def run(self) -> list[tuple[State, dict[int, State], dict[int, State]]]:
        """After every round: the server's state, what the cohort keeps, and what it sent."""
        b, d = self.settings.prompt_length, self.world.clip.width
        g = generator(self.schedule.seed, "initial")
        shape = (len(self.world.classes), b, d) if self.settings.class_contexts else (b, d)
        p_G, p_L = (0.02 * torch.randn(shape, generator=g) for _ in range(2))
        words = [tiny_clip.VOCABULARY[word] for word in "a photo of a".split()]
        hard = self.world.clip.model.token_embedding.weight[words].detach()
        public = server = {name: t.double() for name, t in self.start(p_G, p_L, hard, g).items()}
        rounds = []
        for r in range(self.schedule.rounds):
            order = torch.randperm(self.schedule.clients, generator=generator(self.schedule.seed, "cohort", r)).tolist()
            sent = {}
            for k in sorted(order[: self.schedule.per_round]):
                self.own[k], sent[k] = self.client(server, self.own.get(k, public), k, r)
            server = self.aggregate(server, sent, r)
            rounds.append((server, {k: self.own[k] for k in sent}, sent))
        return rounds

    def steps(self, k: int) -> int:
        """Of a client in a round."""
        n, size = len(self.world.training[k]), self.settings.batch
        return self.settings.local_epochs * max(1, n // size) or self.settings.local_steps

    def client(self, server: State, own: State, k: int, r: int) -> tuple[State, State]:
        """One step is the method's own; of several each moves the client's copy of the global prompt, which is what it sends."""
        sent: State = {}
        for s in range(self.steps(k)):
            own, sent = self.step(server, own, k, r, s)
            if self.several and "gradient" in sent:
                d = sent["gradient"]
                if self.noisy:
                    d = d + self.draw("p_G", self.own_generator(k, r, s, "noise on p_G"), d.shape, who=k)
                sent = {"p_G": server["p_G"] - self.settings.global_rate * d}
            server = server | sent
        return own, sent

    @property
    def several(self) -> bool:
        return self.settings.local_steps > 1 or self.settings.local_epochs > 0

    def own_generator(self, k: int, r: int, s: int, purpose: str) -> torch.Generator:
        """A client's, in a step of a round; the first step has no number."""
        return generator(self.schedule.seed, "client", k, r, purpose, *([s] if s else []))

    def step(self, server: State, own: State, k: int, r: int, s: int) -> tuple[State, State]:
        leaves = self.leaves(server, own, k, r, s)
        each = self.gradients(leaves, server, own, self.sample(k, r, s))
        d = {name: self.clipped([one[name] for one in each], leaf) for name, leaf in leaves.items()}
        if self.noisy:
            for name in self.local:
                noise = self.own_generator(k, r, s, f"noise on {name}")
                d[name] = d[name] + self.draw(name, noise, d[name].shape, who=k)
        live = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        if (loss := self.public_loss(live, server, own)) is not None:
            more = torch.autograd.grad(loss, list(live.values()))
            d = {name: d[name] + g for name, g in zip(live, more, strict=True)}
        return self.finish(server, own, leaves, d)

    def sample(self, k: int, r: int, s: int) -> list[str]:
        """The batch: dealt from a shuffled stack, which is shuffled anew when it has no full batch left; or a coin per record."""
        records, size = self.world.training[k], self.settings.batch
        if self.privacy.sampler == "poisson":
            coins = torch.rand(len(records), generator=self.own_generator(k, r, s, "batch")).tolist()
            return [record for record, coin in zip(records, coins, strict=True) if coin < size / len(records)]
        size = min(size, len(records))
        if len(self._waiting.get(k, [])) < size:
            epoch = self._epochs[k] = self._epochs.get(k, -1) + 1
            shuffle = generator(self.schedule.seed, "client", k, "epoch", epoch)
            self._waiting[k] = torch.randperm(len(records), generator=shuffle).tolist()
        return [records[self._waiting[k].pop(0)] for _ in range(size)]

    def gradients(self, leaves: State, server: State, own: State, records: Sequence[str]) -> list[State]:
        """Of each record's cross-entropy, times its weight, in every leaf; the classes are encoded once for all."""
        live = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        text, found = self.text(self.prompt(live, server, own)), []
        for record in records:
            loss = cross_entropy(self.similarities(text, record), self.world.labels[record], self.world.clip.scale)
            weight = 0.0 if record in self.world.left_out else 1.0
            each = torch.autograd.grad(weight * loss, list(live.values()), retain_graph=True)
            found.append(dict(zip(live, each, strict=True)))
        return found

    def text(self, prompt: Tensor) -> Tensor:
        return text_features(self.world.clip, prompt, self.world.classes)

    def similarities(self, text: Tensor, record: str) -> Tensor:
        return text @ self.world.features[self.world.ids.index(record)].double()

    def clipped(self, each: list[Tensor], leaf: Tensor) -> Tensor:
        """Of the gradients of the records: their plain mean, the sum of the clipped ones over |B|, or the mean clipped once."""
        total = torch.zeros_like(leaf)
        for g in each:
            by_record = self.noisy and self.privacy.clip == "record"
            factor = min(1.0, self.privacy.clip_norm / max(float(g.norm()), 1e-30)) if by_record else 1.0
            total = total + factor * g / (self.settings.batch if by_record else len(each))
        if self.noisy and self.privacy.clip == "batch":
            total = total * min(1.0, self.privacy.clip_norm / max(float(total.norm()), 1e-30))
        return total

    def draw(self, name: str, own: torch.Generator, shape: torch.Size, who: int | None = None) -> Tensor:
        """Noise of DP-FPL's theorem 3.3 with c = 1; `who` draws it, None being the server. It is written down."""
        sensitivity = self.privacy.clip_norm / self.settings.batch
        if who is None:
            sensitivity /= self.schedule.per_round
        steps = self.schedule.rounds * max(map(self.steps, range(self.schedule.clients)))
        std = sensitivity * math.sqrt(steps * math.log(1 / self.privacy.delta)) / self.privacy.epsilon
        self.drawn.append((who, name, sensitivity / std))
        return std * torch.randn(shape, generator=own).double()


class Local(Slow):
    parts = local = ("p_L",)

    def aggregate(self, server, sent, r):
        return server


class PromptFL(Slow):
    parts = local = ("p_G",)

    def finish(self, server, own, leaves, d):
        return {}, {"p_G": server["p_G"] - self.settings.global_rate * d["p_G"]}

    def aggregate(self, server, sent, r):
        return self.mean(sent)


class FedOTP(Slow):
    local, central = ("p_L",), ("p_G",)

    def prompt(self, leaves, server, own):
        summed = self.params.match == "sum"
        return super().prompt(leaves, server, own) if summed else torch.stack([leaves["p_G"], leaves["p_L"]])

    def text(self, prompt):
        encode = super().text
        return encode(prompt) if self.params.match == "sum" else torch.stack([encode(p) for p in prompt])

    def similarities(self, text, record):
        if self.params.match == "sum":
            return super().similarities(text, record)
        return transport_similarity(text, self.world.patches[self.world.ids.index(record)].double())


class FedPGP(Slow):
    parts, local, central = ("p_G", "u", "v"), ("u", "v"), ("p_G",)

    def start(self, p_G, p_L, hard, g):
        b, d, k = *p_G.shape, self.params.rank
        u, v = (0.02 * torch.randn(b, n, generator=g) for n in (b, d))  # of full rank, whatever k is
        return {"p_G": p_G, "u": u[:, :k], "v": v[:k], "hard": hard}

    def prompt(self, leaves, server, own):
        return leaves["p_G"] + leaves["u"] @ leaves["v"]

    def public_loss(self, leaves, server, own):
        clip, names = self.world.clip, self.world.classes
        t_0 = text_features(clip, server["hard"], names)
        t_G = text_features(clip, leaves["p_G"], names)
        t_i = text_features(clip, self.prompt(leaves, server, own), names)
        loss = torch.zeros((), dtype=torch.float64)
        for c in range(len(names)):
            toward = torch.exp(t_0[c] @ t_G[c] / self.params.temperature)
            away = torch.exp(t_G[c] @ t_i[c] / self.params.temperature)
            loss = loss - torch.log(toward / (toward + away)) / len(names)
        return self.params.mu * loss


class DPFPL(Slow):
    central = ("p_G",)

    @property
    def local(self):
        return ("u", "v") if self.params.rank else ("p_L",)

    def leaves(self, server, own, k, r, s):
        if not self.params.rank:
            return super().leaves(server, own, k, r, s)
        p_L = own["p_L"]
        random = self.own_generator(k, r, s, "power")
        Q = torch.randn(p_L.shape[1], self.params.rank, generator=random).double()
        u = torch.linalg.qr(p_L @ Q).Q
        v = torch.linalg.qr(p_L.T @ u).Q.T
        return {"p_G": server["p_G"], "u": u, "v": v}

    def prompt(self, leaves, server, own):
        """p_G + u v + r, with r the constant that makes it p_G + p_L; without residual the constant that makes it p_G + u u^T p_L."""
        if not self.params.rank:
            return super().prompt(leaves, server, own)
        u, v = leaves["u"].detach(), leaves["v"].detach()
        r = own["p_L"] - u @ v if self.params.residual else u @ u.T @ own["p_L"] - u @ v
        return leaves["p_G"] + leaves["u"] @ leaves["v"] + r

    def finish(self, server, own, leaves, d):
        if not self.params.rank:
            return super().finish(server, own, leaves, d)
        u, v = leaves["u"], leaves["v"]
        d_L = d["u"] @ v + u @ d["v"] - u @ u.T @ d["u"] @ v  # eq. 4
        return super().finish(server, own, leaves, {"p_G": d["p_G"], "p_L": d_L})


class FedProx(PromptFL):
    def client(self, server, own, k, r):
        self.anchor = server["p_G"]  # of the round
        return super().client(server, own, k, r)

    def finish(self, server, own, leaves, d):
        pull = self.params.mu * (server["p_G"] - self.anchor)  # the derivative of mu / 2 |p - p_G|^2
        return {}, {"p_G": server["p_G"] - self.settings.global_rate * (d["p_G"] + pull)}


class PFedMe(PromptFL):
    def steps(self, k):
        return super().steps(k) * self.params.inner

    def client(self, server, own, k, r):
        w, theta = server["p_G"], server["p_G"]
        for s in range(self.steps(k)):
            _, sent = self.step({"p_G": theta}, own, k, r, s)
            gradient = (theta - sent["p_G"]) / self.settings.global_rate
            theta = theta - self.settings.local_rate * (gradient + self.params.envelope * (theta - w))
            if (s + 1) % self.params.inner == 0:
                w = w - self.settings.global_rate * self.params.envelope * (w - theta)
        return {"theta": theta}, {"p_G": w}

    def aggregate(self, server, sent, r):
        mean = self.mean(sent)["p_G"]
        return {"p_G": (1 - self.params.mixing) * server["p_G"] + self.params.mixing * mean}


class SecFPP(Slow):
    """Without shares, and as one cluster: too few users for two."""

    parts = ("p_L",)

    def start(self, p_G, p_L, hard, g):
        return {"p_G": p_G[None], "p_L": p_L, "p_0": p_G + p_L, "cluster": torch.zeros(1)}

    def prompt(self, leaves, server, own):
        return server["p_G"][0] + leaves["p_L"]

    def client(self, server, own, k, r):
        own, sent = super().client(server, own, k, r)
        each = self.gradients({"p_L": own["p_L"]}, server, own, self.world.training[k])
        every = [one["p_L"] for one in each]
        self.whole = getattr(self, "whole", {}) | {k: sum(every) / len(every)}
        return {"p_L": own["p_L"], "point": torch.tensor(k + 1)}, sent

    def aggregate(self, server, sent, r):
        first = np.random.default_rng(generator(self.schedule.seed, "server", 0, "SecPC").initial_seed())
        half = torch.zeros(len(sent))
        half[first.permutation(len(sent))[: len(sent) // 2]] = 1
        step = self.settings.global_rate * sum(self.whole.values()) / len(sent)
        return {"p_G": server["p_G"] - step, "p_0": server["p_0"], "cluster": torch.zeros(len(sent)), "half": half}


class ZeroShot(Slow):
    parts = ()

    def start(self, p_G, p_L, hard, g):
        return {"hard": hard}

    def prompt(self, leaves, server, own):
        return server["hard"]

    def client(self, server, own, k, r):
        return {}, {}

    def aggregate(self, server, sent, r):
        return server


ORACLES = {
    "dpfpl": DPFPL, "fedotp": FedOTP, "fedpgp": FedPGP, "fedprox": FedProx, "local": Local, "pfedme": PFedMe,
    "promptfl": PromptFL, "secfpp": SecFPP, "zeroshot": ZeroShot,
}  # fmt: skip


def same(
    fast: Transcript, slow: Sequence[tuple[State, dict[int, State], dict[int, State]]], atol: float = 5e-5
) -> None:
    """Whether uploads, own parts and aggregates of all rounds are those of an oracle."""
    for r, (server, own, sent) in enumerate(slow):
        assert fast.cohort(r) == sorted(sent)
        after = fast.broadcast(r + 1)
        assert after.keys() == server.keys()
        for name, expected in server.items():
            close(after[name], expected, atol=atol)
        for k, message in sent.items():
            private = fast.private(r, k)
            assert fast.upload(r, k).keys() == message.keys()
            assert private.keys() == {*message, *own[k]}
            for name, expected in (message | own[k]).items():
                close(private[name], expected, atol=atol)


def oracle_of(name: str) -> Any:
    """The slow version of a prompt method. AssertionError where it has none, with what to write."""
    assert name in ORACLES, (
        f"{name} has no slow version yet: write a class into tests/prompt_oracle.py that takes its steps one client and one record "
        "after the other (FedProx there is a short one), and name it in ORACLES"
    )
    return ORACLES[name]
