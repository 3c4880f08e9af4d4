"""SecFPP: a global prompt per domain, found by clustering on secret shares, and private local ones (Hou et al. 2025).

P_i = P_G,s(i) + P_L,i. A round (Algorithm 2): local steps on P_L,i; the gradient in the whole prompt over all of the
client's records; SecPC on the reduced prompts (Algorithm 1); the gradients of every cluster summed on shares; a step of
its P_G,s. The server learns no prompt and no single gradient: what it does learn is in the transcript (`revealed`).
All users take part in every round.

Where the paper is silent or contradicts itself:
- its prompts (Algorithm 2) differ by the classes of a user as much as by its domain, so that they show no domains where
  these have classes in common. Clustered by default are what the users' first steps would be, class by class: the
  gradients of single classes at the public start P_0, in `--directions` public random directions, and of those the mean
  over a user's classes. What single classes do to it is told by the scatter of a user's own classes about their mean:
  all of these have one domain. Its secure sum W is revealed once, and means are looked at in the metric W^-1, in which
  users differ alike in every direction if by classes alone (Fisher's discriminant, with users as groups);
- with `--clustered prompt` the personalised prompts are clustered by the direction in which they moved from the public
  start, (P_i - P_0) / |P_i - P_0|: lengths say how many classes a user has rather than which domain. An SVD of each
  user's own has no common basis. The k directions are those of the largest pooled second moment, which the server gets
  by a secure sum; `random` is a public projection, `none` keeps the whole prompt;
- t is three users of ten, and ell the largest slice count that decodes: the paper's t = n / 3 with
  ell = (n - t) / 2 cannot be decoded for more than 7 users;
- how clusters are split and merged: `fedaudit/privacy/clustering.py`.

There is no noise: SecFPP claims no epsilon, and against the sums that are revealed none is provable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, choice, flag, number, whole
from fedaudit.privacy.clustering import Clusters, Floats, Rule
from fedaudit.privacy.secpc import Meeting, Protocol, pooled_moment, secpc
from fedaudit.privacy.settings import Privacy
from fedaudit.privacy.sharing import Tolerance
from trainers.base import Participation, Schedule, Site, State, Update, Upload, generator
from trainers.learners import MethodFacts
from trainers.prompt_messages import PromptMessages
from trainers.prompts import Cohort, PromptMethod

RIDGE = 0.01  # of the mean scatter, added to that of every direction
FEW = 3  # records of a class that count half


class Facts(MethodFacts):
    learner = "prompts"
    title = "SecFPP"
    on_shares = True


@dataclass(frozen=True)
class Params(Parameters):
    clustered: str = choice(
        "gradient", "what users are clustered by: of classes at the start, or (SecFPP) prompts", ("gradient", "prompt")
    )
    directions: int = whole(256, "public random directions that gradients are looked at in", least=2, most=4096)
    components: int = whole(8, "directions k that prompts are reduced to (SecFPP: 8)", least=1, most=4096)
    reduction: str = choice("moments", "of prompts that are clustered", ("moments", "random", "none"))
    colluders: int = whole(
        0, "users t that may put their shares together; 0 = three of ten (SecFPP: a third)", least=0, most=10**4
    )
    absent: int = whole(0, "users that may vanish once their shares are out", least=0, most=10**4)
    wrong: int = whole(0, "users whose answers may be wrong: they are corrected and named", least=0, most=10**4)
    precision: float = number(
        1e-5, "step of the whole numbers that prompts of length 1 are shared as", least=1e-9, most=0.1
    )
    together: int = whole(2, "first rounds, in which all users share one global prompt", least=1, most=10**6)
    split: float = number(
        2.1, "F, scatter between over within halves, from which a cluster is split", above=0, most=10**6
    )
    merge: float = number(1.6, "F below which two clusters are merged; less than --split", least=0, most=10**6)
    masks: bool = flag(True, "hide all of a distance's polynomial but the distance; without, slices show")
    vanish: int = whole(0, "a drill: users that vanish in every round, at most --absent", least=0, most=10**4)
    lie: int = whole(0, "a drill: users that answer wrongly in every round, at most --wrong", least=0, most=10**4)

    def check(self) -> None:
        if not self.merge < self.split:
            raise ValueError(f"merge must be below split ({self.split:g}), not {self.merge}")
        for drill, most in (("vanish", self.absent), ("lie", self.wrong)):
            if getattr(self, drill) > most:
                raise ValueError(f"{drill} must be at most what is endured ({most}), not {getattr(self, drill)}")

    def caution(self, settings: Any, task: Any) -> str:
        """What a reader of a run of several domains must know; nothing where users of a domain share classes."""
        several = "+" in getattr(task, "domain", getattr(task, "dataset", ""))
        if not several or task.partition != "pathological":
            return ""
        return (
            "SecFPP: with --partition pathological the users of a domain have no class in common, so that nothing "
            "tells domains from classes and all users may stay in one cluster; --preset secfpp has 20 users whose "
            "classes overlap (Dirichlet 0.3)."
        )


@dataclass(frozen=True)
class SecFPP(PromptMethod):
    local = ("p_L",)
    shared = ("p_G",)

    def protected(self, privacy: Privacy, schedule: Schedule, sizes: Sequence[int]) -> Self:
        if schedule.per_round < schedule.clients:
            raise InputError(f"--per-round {schedule.per_round}: all users of SecFPP take part in every round")
        self.protocol(schedule.clients, entries=1)  # what cannot be decoded is refused before anything trains
        return super().protected(privacy, schedule, sizes)

    def start(self, initial: State) -> State:
        p_G, p_L = initial["p_G"], initial["p_L"]
        return {"p_G": p_G[None], "p_L": p_L, "p_0": p_G + p_L, "cluster": torch.zeros(1, dtype=torch.int64)}

    def download(self, server: State, client: Participation) -> State:
        everybody = server["cluster"]  # one entry for all of them at the start
        own = int(everybody[client.client if len(everybody) > 1 else 0])
        sent = {name: server[name] for name in ("p_0", "metric") if name in server}
        return {"p_G": server["p_G"][own]} | sent

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_G, p_L = server["p_G"], own["p_L"]
        for step in client.steps():
            p_L = step.descend(p_L, step.clip(step.gradient(p_G + p_L), "p_L"), "p_L")  # line 7
        P = p_G + p_L
        private = {"p_L": p_L, "point": torch.tensor([one.client + 1 for one in client.clients])}
        sealed = {"gradient": client.gradient(P)}  # line 6
        if self.params.clustered == "prompt":
            sealed["vector"] = _directions(P - server["p_0"])
        elif "mark" not in own:
            private["mark"], sealed["classes"] = self._marks(client, server["p_0"])
        else:
            sealed["vector"] = private["mark"] = _measured(own["mark"], server.get("metric"))
        return Update(upload={}, private=private, sealed=sealed)

    def _marks(self, client: Cohort, p_0: Tensor) -> tuple[Tensor, Tensor]:
        """Means [N, D] of the gradients of users' classes, and what their classes differ by [N, C, D], of length 1."""
        gradients, counts = client.class_gradients(p_0[0])
        flat = gradients.flatten(2)
        directions = min(self.params.directions, flat.shape[2])
        public = torch.randn(flat.shape[2], directions, generator=generator(0, "directions"))
        seen = flat @ public
        weights = F.normalize(counts / (counts + FEW), p=1, dim=1)[..., None]
        mean = (weights * seen).sum(1)
        return mean, _directions(weights.sqrt() * (seen - mean[:, None]))

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        clusters, gradient = self._on_shares(server, uploads, site)  # lines 8, 11 and 12
        p_G = _carried(server, clusters) - self.settings.global_rate * gradient  # line 13
        cluster, half = torch.from_numpy(clusters.cluster), torch.from_numpy(clusters.half)
        state = {"p_G": p_G, "p_0": server["p_0"], "cluster": cluster, "half": half}
        scatter = site.revealed.tensors.get("scatter")
        return state if scatter is None else state | {"metric": _inverse_root(scatter)}

    def prompt(self, state: State) -> Tensor:
        """P_G,s + P_L, of who is no user the first cluster's; what a user is sent is its own cluster's."""
        if "cluster" not in state:
            return state["p_G"] + state["p_L"]
        several = "point" in state and len(state["cluster"]) > 1
        return state["p_G"][int(state["cluster"][state["point"] - 1]) if several else 0] + state["p_L"]

    def _on_shares(self, server: State, uploads: Sequence[Upload], site: Site) -> tuple[Clusters, Tensor]:
        """The clusters after SecPC and their mean gradients [K, b, d]; what that reveals is the site's record."""
        users = sorted(uploads, key=lambda upload: upload.client)
        sealed = {n: np.stack([u.sealed[n].double().numpy() for u in users]) for n in users[0].sealed}
        gradients, rng = sealed["gradient"], _numpy(site.generators("SecPC")[0])
        meeting = self._meeting(users, site, entries=gradients[0].size)
        rule = Rule(meeting.protocol.least, self.params.split, self.params.merge)
        half = server.get("half")
        clusters = rule.first(len(users), rng) if half is None else Clusters(server["cluster"].numpy(), half.numpy())
        seen = site.revealed
        if "classes" in sealed:
            seen.tensors["scatter"] = torch.from_numpy(pooled_moment(meeting, sealed["classes"]))
        if site.round >= self.params.together:
            vectors = sealed["vector"]
            if self.params.clustered == "prompt":
                vectors = self._reduced(vectors, meeting, site)
            seen.facts["groups"] = [group.tolist() for group in clusters.groups(rule.least)]
            clusters, distances = secpc(meeting, rule, clusters, vectors, rng)
            seen.tensors["distances"] = torch.from_numpy(distances)
            if meeting.polynomials is not None:
                seen.tensors["polynomials"] = torch.from_numpy(meeting.polynomials)
        sums = meeting.sums(gradients.reshape(len(users), -1), clusters.members, kept="gradients")
        means = sums / np.array([[len(members)] for members in clusters.members])
        seen.tensors["gradients"] = torch.from_numpy(means.reshape(-1, *gradients.shape[1:])).float()
        seen.held = {name: torch.from_numpy(shares) for name, shares in meeting.held.items()}
        seen.facts |= {"absent": sorted(meeting.absent), "wrong": sorted(meeting.named), "decoded": meeting.decoded}
        seen.facts["summed"] = [members.tolist() for members in clusters.members]
        seen.facts["sent"] = {kind: each.tolist() for kind, each in meeting.sent.items()}
        seen.bytes_up += meeting.bytes_up
        seen.bytes_down += meeting.bytes_down
        return clusters, seen.tensors["gradients"]

    def _reduced(self, moved: Floats, meeting: Meeting, site: Site) -> Floats:
        """Vectors [n, b k] of the prompts' movements [n, b, d] in directions that all users have in common (line 8)."""
        k, seen = min(self.params.components, moved.shape[2]), site.revealed
        if self.params.reduction == "none":
            return moved.reshape(len(moved), -1)
        if self.params.reduction == "random":
            draws = _numpy(generator(site.seed, "projection")).normal(size=(moved.shape[2], k))
            basis = np.linalg.qr(draws).Q
        else:
            moment = pooled_moment(meeting, moved)
            basis = np.linalg.eigh(moment).eigenvectors[:, -k:]
            seen.tensors["moment"] = torch.from_numpy(moment)
            seen.bytes_down += len(moved) * basis.nbytes  # the server sends it to all
        seen.tensors["basis"] = torch.from_numpy(basis.copy())
        return (moved @ basis).reshape(len(moved), -1)

    def _meeting(self, users: Sequence[Upload], site: Site, *, entries: int) -> Meeting:
        """The parties of a round; a drill draws who vanishes and who lies."""
        numbers = [generator(site.seed, "client", user.client, site.round, "shares") for user in users]
        drawn = _numpy(generator(site.seed, "drill", site.round)).permutation(len(users)).tolist()
        vanish, lie = self.params.vanish, self.params.lie
        protocol = self.protocol(len(users), entries=entries)
        absent, liars = drawn[:vanish], drawn[vanish : vanish + lie]
        return Meeting(protocol, list(map(_numpy, numbers)), absent, liars, masked=self.params.masks)

    def protocol(self, users: int, *, entries: int) -> Protocol:
        """What so many users agree on for vectors of so many entries."""
        own = self.params
        tolerance = Tolerance(own.colluders or max(1, 3 * users // 10), own.absent, own.wrong)
        return Protocol(users, tolerance, round(1 / own.precision), entries)

    @property
    def messages(self) -> "SecFPPMessages":
        return SecFPPMessages(self)


class SecFPPMessages(PromptMessages[SecFPP]):
    """For who knows the mean gradient of a user's cluster only: that is the message."""

    def model_selector(self, client: int) -> State:
        return {"point": torch.tensor(client + 1)}

    def round_start(self, server: State, own: State) -> State:
        return {"p_G": server["p_G"], "p_L": own["p_L"]}

    def replay(
        self, server: State, own: State, upload: State, learner: object, generator: object, sizes: Sequence[int]
    ) -> State:
        """As if all steps had been on the cluster's mean."""
        steps = torch.tensor([self.method.steps(n) for n in sizes])[:, None, None]
        return {"p_L": own["p_L"] - self.method.settings.local_rate * steps * upload["gradient"]}

    def server_after_one(self, server: State, upload: State) -> State:
        return {"p_G": server["p_G"] - self.method.settings.global_rate * upload["gradient"]}


def _directions(matrices: Tensor) -> Tensor:
    """Matrices [N, .., ..] with length 1, or 0 where they are 0."""
    return F.normalize(matrices.flatten(1), dim=1).view_as(matrices)


def _measured(mark: Tensor, metric: Tensor | None) -> Tensor:
    """Marks [N, D] with length 1 in the metric [N, D, D], which users get once."""
    return mark if metric is None else F.normalize(torch.einsum("nd,nde->ne", mark, metric))


def _inverse_root(scatter: Tensor) -> Tensor:
    """W^-1/2 [D, D] of a scatter W with a ridge; of none, where no user has two classes, the plain metric."""
    trace = scatter.trace() / len(scatter)
    if trace <= 0:
        return torch.eye(len(scatter))
    values, vectors = torch.linalg.eigh(scatter / trace)
    return (vectors * (values.clamp(min=0) + RIDGE) ** -0.5 @ vectors.T).float()


def _carried(server: State, clusters: Clusters) -> Tensor:
    """The clusters' global prompts before a step: what a cluster's users had, on average, where it was split or
    merged."""
    p_G = server["p_G"]
    if len(clusters.members) == len(p_G):
        return p_G
    return torch.stack([p_G[server["cluster"][torch.from_numpy(members)]].mean(0) for members in clusters.members])


def _numpy(chance: torch.Generator) -> np.random.Generator:
    """numpy's integers below q are equally likely; torch's are drawn below 2^64 and wrapped."""
    return np.random.default_rng(chance.initial_seed())
