"""SecFPP: a global prompt per domain, found by clustering on secret shares, and private local ones (Hou et al. 2025).

P_i = P_G,s(i) + P_L,i. A round (Algorithm 2): local steps on P_L,i; the gradient in the whole prompt over all of the
client's records; SecPC on the reduced prompts (Algorithm 1); the gradients of every cluster summed on shares; a step of
its P_G,s. The server learns no prompt and no single gradient; the transcript has what it does learn (`revealed`). All
users take part in every round.

Where the paper is silent or contradicts itself:
- its prompts (Algorithm 2) differ by the classes of a user as much as by its domain, so that they do not show domains
  that have classes in common. By default users are clustered by what their first steps would be, class by class: the
  gradients of single classes at the public start P_0, in `--directions` public random directions, averaged over the
  user's classes. The effect of single classes on this mean follows from the scatter of a user's classes about it, as
  all of them have one domain. The secure sum W of these scatters is revealed once, and means are compared in the metric
  W^-1: if users differ only by classes, they differ alike in every direction (Fisher's discriminant, with users as
  groups). A W that is 0 in some directions tells every member (`attacks/scatter.py`): so it is revealed only where any
  n - t users have as many classes, less one each, as there are directions, and with noise; else all users stay one
  cluster. How many users have how many classes is a secure sum of its own, without names;
- with `--clustered prompt` the personalised prompts are clustered by the direction of their movement from the public
  start, (P_i - P_0) / |P_i - P_0|: lengths depend on the number of a user's classes rather than on its domain. An SVD
  per user would give no common basis. The k directions are those of the largest pooled second moment, which the server
  gets by a secure sum; `random` is a public projection, `none` keeps the whole prompt;
- t is 0.3 n, and ell the largest slice count that decodes: the paper's t = n / 3 with ell = (n - t) / 2 cannot be
  decoded for more than 7 users;
- how clusters are split and merged, which the paper does not say: `fedaudit/privacy/clustering.py`.

There is no noise: SecFPP claims no epsilon, and none is provable against the sums that are revealed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

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
from fedaudit.trainers.base import Participation, Schedule, Site, State, Update, Upload, generator
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.messages import MethodMessages
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import Cohort, PromptMethod

RIDGE = 0.01  # added to the scatter of every direction, as a share of the mean scatter
FEW = 3  # a class of n records has weight n / (n + FEW)


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
    split_above: float = number(
        0, "F, scatter between over within halves, from which a cluster is split; 0 = by chance", least=0, most=10**6
    )
    merge_below: float = number(
        0, "F below which two clusters are merged, less than --split-above; 0 = by chance", least=0, most=10**6
    )
    masks: bool = flag(True, "hide all of a distance's polynomial but the distance; without, slices show")
    vanish: int = whole(0, "a drill: users that vanish in every round, at most --absent", least=0, most=10**4)
    lie: int = whole(0, "a drill: users that answer wrongly in every round, at most --wrong", least=0, most=10**4)

    def check(self) -> None:
        limits = self.merge_below, self.split_above
        if any(limits) and not 0 < self.merge_below < self.split_above:
            above, below = f"split_above ({self.split_above:g})", f"{self.merge_below:g}"
            raise ValueError(f"merge_below must be above 0 and below {above}, or both be 0, not {below}")
        for drill, most in (("vanish", self.absent), ("lie", self.wrong)):
            if getattr(self, drill) > most:
                raise ValueError(f"{drill} must be at most what is endured ({most}), not {getattr(self, drill)}")

    def caution(self, settings: Any, task: Any, clients: int) -> str:
        """A warning for several domains that clustering may not find: users are too few or share no class, or styles
        are much alike; else ""."""
        domains = getattr(task, "domain", getattr(task, "dataset", "")).split("+")
        if len(domains) == 1:
            return ""
        warnings, least = [], self.tolerated(clients) + 2
        if clients <= len(domains) * least:
            warnings.append(
                f"SecFPP: a cluster has at least t + 2 = {least} users, so that {len(domains)} domains are only found "
                f"among more than {len(domains) * least}, not {clients}; give more --clients or fewer --colluders."
            )
        if task.partition == "pathological":
            warnings.append(
                "SecFPP: with --partition pathological the users of a domain have no class in common, so that nothing "
                "tells domains from classes and all users may stay in one cluster; --preset secfpp has 20 users whose "
                "classes overlap (Dirichlet 0.3)."
            )
        elif {"print", "chalk"} <= set(domains):
            warnings.append(
                "SecFPP: the styles print and chalk are much alike: users of one style can be divided so that halves "
                "are as far apart as these two, which may stay one cluster (docs/reference/secfpp.md, Clusters)."
            )
        return " ".join(warnings)

    def tolerated(self, users: int) -> int:
        """t: how many of so many users may collude."""
        return self.colluders or max(1, 3 * users // 10)


@dataclass(frozen=True)
class SecFPP(PromptMethod):
    local = ("p_L",)
    shared = ("p_G",)
    # std of the noise in each entry of W that is left if t users take their own away and the absent add none
    noise: ClassVar[float] = 1e-4
    one_context = "its users are clustered by one prompt or its gradient"

    def protected(self, privacy: Privacy, schedule: Schedule, sizes: Sequence[int]) -> Self:
        if schedule.per_round < schedule.clients:
            raise InputError(f"--per-round {schedule.per_round}: all users of SecFPP take part in every round")
        self.protocol(schedule.clients, entries=1)  # raises before training if shares cannot be decoded
        return super().protected(privacy, schedule, sizes)

    def start(self, initial: State) -> State:
        p_G, p_L = initial["p_G"], initial["p_L"]
        return {"p_G": p_G[None], "p_L": p_L, "p_0": p_G + p_L, "cluster": torch.zeros(1, dtype=torch.int64)}

    def broadcast(self, server: State) -> State:
        return {name: tensor for name, tensor in server.items() if name != "looks"}

    def download(self, server: State, client: Participation) -> State:
        clusters = server["cluster"]  # one entry for all clients at the start
        cluster = int(clusters[client.client if len(clusters) > 1 else 0])
        sent = {name: server[name] for name in ("p_0", "metric") if name in server}
        return {"p_G": server["p_G"][cluster]} | sent

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
            private["mark"], sealed["classes"], sealed["class_count"] = self._marks(client, server["p_0"])
        else:
            sealed["vector"] = private["mark"] = _measured(own["mark"], server.get("metric"))
        return Update(upload={}, private=private, sealed=sealed)

    def _marks(self, client: Cohort, p_0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean [N, D] of the gradients of each user's classes in D public directions, the deviations [N, C, D] of
        single classes from that mean, scaled to length 1 per user, and a 1 [N, C] at the number of the user's classes
        less one, at 0 if it has none (N users, C classes)."""
        gradients, counts = client.class_gradients(p_0[0])
        flat = gradients.flatten(2)
        directions = min(self.params.directions, flat.shape[2])
        projected = flat @ public_directions(flat.shape[2], directions)
        weights = class_weights(counts)[..., None]
        mean = (weights * projected).sum(1)
        class_count = F.one_hot(((counts > 0).sum(1) - 1).clamp(min=0), counts.shape[1])
        return mean, _directions(weights.sqrt() * (projected - mean[:, None])), class_count

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        clusters, gradient = self._on_shares(server, uploads, site)  # lines 8, 11 and 12
        p_G = _carried(server, clusters) - self.settings.global_rate * gradient  # line 13
        state = {"p_G": p_G, "p_0": server["p_0"], "cluster": torch.from_numpy(clusters.cluster)}
        revealed = site.revealed.tensors
        if "scatter" in revealed:
            state["metric"] = _inverse_root(revealed["scatter"])
        elif "class_counts" in revealed or (site.round and "half" not in server):
            return state  # never asked for distances
        return state | {"half": torch.from_numpy(clusters.half), "looks": torch.from_numpy(clusters.looks)}

    def prompt(self, state: State) -> Tensor:
        """P_G,s + P_L: the global prompt of the user's cluster (of the first one if the state is no user's) and the
        local prompt."""
        if "cluster" not in state:
            return state["p_G"] + state["p_L"]
        several = "point" in state and len(state["cluster"]) > 1
        return state["p_G"][int(state["cluster"][state["point"] - 1]) if several else 0] + state["p_L"]

    def _on_shares(self, server: State, uploads: Sequence[Upload], site: Site) -> tuple[Clusters, Tensor]:
        """The clusters after SecPC and their mean gradients [K, b, d] for K clusters. What this reveals to the server
        goes into `site.revealed`."""
        users = sorted(uploads, key=lambda upload: upload.client)
        sealed = {n: np.stack([u.sealed[n].double().numpy() for u in users]) for n in users[0].sealed}
        gradients, rng = sealed["gradient"], _numpy(site.generators("SecPC")[0])
        meeting = self._meeting(users, site, entries=gradients[0].size)
        rule = Rule(meeting.protocol.least, self.params.split_above, self.params.merge_below)
        half = server.get("half")
        clusters = rule.first(len(users), rng) if half is None else _clusters(server)
        revealed = site.revealed
        if "classes" in sealed:
            (counts,) = meeting.sums(sealed["class_count"], [np.arange(len(users))])
            revealed.tensors["class_counts"] = torch.from_numpy(counts)
            tolerance, directions = meeting.protocol.tolerance, sealed["classes"].shape[2]
            rank = largest_rank(counts, len(users) - tolerance.colluders)
            revealed.facts |= {"rank": rank, "directions": directions}
            if rank >= directions:
                std = self.noise / (len(users) - tolerance.colluders - tolerance.absent) ** 0.5
                drawn = [_numpy(generator(site.seed, "client", user.client, "scatter noise")) for user in users]
                noise = np.stack([rng.normal(0, std, directions * (directions + 1) // 2) for rng in drawn])
                revealed.tensors["scatter"] = torch.from_numpy(pooled_moment(meeting, sealed["classes"], noise))
        if site.round >= self.params.together and half is not None:
            vectors = sealed["vector"]
            if self.params.clustered == "prompt":
                vectors = self._reduced(vectors, meeting, site)
            revealed.facts["groups"] = [group.tolist() for group in clusters.groups(rule.least)]
            clusters, distances = secpc(meeting, rule, clusters, vectors, rng)
            revealed.tensors["distances"] = torch.from_numpy(distances)
            if meeting.polynomials is not None:
                revealed.tensors["polynomials"] = torch.from_numpy(meeting.polynomials)
        sums = meeting.sums(gradients.reshape(len(users), -1), clusters.members, kept="gradients")
        means = sums / np.array([[len(members)] for members in clusters.members])
        revealed.tensors["gradients"] = torch.from_numpy(means.reshape(-1, *gradients.shape[1:])).float()
        revealed.held = {name: torch.from_numpy(shares) for name, shares in meeting.held.items()}
        revealed.facts |= {"absent": sorted(meeting.absent), "wrong": sorted(meeting.named), "decoded": meeting.decoded}
        revealed.facts["summed"] = [members.tolist() for members in clusters.members]
        revealed.facts["sent"] = {kind: each.tolist() for kind, each in meeting.sent.items()}
        revealed.bytes_up += meeting.bytes_up
        revealed.bytes_down += meeting.bytes_down
        return clusters, revealed.tensors["gradients"]

    def _reduced(self, moved: Floats, meeting: Meeting, site: Site) -> Floats:
        """The prompts' movements [n, b, d] in k directions that all users have in common, [n, b k] (line 8); in all d
        of them if `reduction` is "none"."""
        k, revealed = min(self.params.components, moved.shape[2]), site.revealed
        if self.params.reduction == "none":
            return moved.reshape(len(moved), -1)
        if self.params.reduction == "random":
            draws = _numpy(generator(site.seed, "projection")).normal(size=(moved.shape[2], k))
            basis = np.linalg.qr(draws).Q
        else:
            moment = pooled_moment(meeting, moved)
            basis = np.linalg.eigh(moment).eigenvectors[:, -k:]
            revealed.tensors["moment"] = torch.from_numpy(moment)
            revealed.bytes_down += len(moved) * basis.nbytes  # the server sends it to all
        revealed.tensors["basis"] = torch.from_numpy(basis.copy())
        return (moved @ basis).reshape(len(moved), -1)

    def _meeting(self, users: Sequence[Upload], site: Site, *, entries: int) -> Meeting:
        """The parties of a round, with their randomness. In a drill (`vanish`, `lie`) some users, drawn at random, send
        nothing or answer wrongly."""
        numbers = [generator(site.seed, "client", user.client, site.round, "shares") for user in users]
        drawn = _numpy(generator(site.seed, "drill", site.round)).permutation(len(users)).tolist()
        vanish, lie = self.params.vanish, self.params.lie
        protocol = self.protocol(len(users), entries=entries)
        absent, liars = drawn[:vanish], drawn[vanish : vanish + lie]
        return Meeting(protocol, list(map(_numpy, numbers)), absent, liars, masked=self.params.masks)

    def protocol(self, users: int, *, entries: int) -> Protocol:
        """The protocol of so many users for vectors of so many entries."""
        params = self.params
        tolerance = Tolerance(params.tolerated(users), params.absent, params.wrong)
        return Protocol(users, tolerance, round(1 / params.precision), entries)

    @property
    def reveals(self) -> tuple[str, ...]:
        by_gradient = ("class_counts", "scatter", "metric") if self.params.clustered == "gradient" else ()
        moment = {"moments": ("moment", "basis"), "random": ("basis",), "none": ()}[self.params.reduction]
        by_prompt = moment if self.params.clustered == "prompt" else ()
        return (*by_gradient, *by_prompt, "distances", *(("polynomials",) * (not self.params.masks)))

    @property
    def aggregation(self) -> str:
        return "secure sum"

    @property
    def messages(self) -> "SecFPPMessages":
        return SecFPPMessages(self)


class SecFPPMessages(PromptMessages[SecFPP]):
    """Reads the mean gradient of a user's cluster, which stands for the user's upload: the server learns no more."""

    used_records = MethodMessages.used_records  # all: the gradient in the whole prompt is over all records

    def model_selector(self, client: int) -> State:
        return {"point": torch.tensor(client + 1)}

    def round_start(self, server: State, own: State) -> State:
        return {"p_G": server["p_G"], "p_L": own["p_L"]}

    def replay(
        self, server: State, own: State, upload: State, learner: object, generator: object, sizes: Sequence[int]
    ) -> State:
        """{"p_L"} as if all local steps had used the cluster's mean gradient."""
        steps = torch.tensor([self.method.steps(n) for n in sizes])[:, None, None]
        return {"p_L": own["p_L"] - self.method.settings.local_rate * steps * upload["gradient"]}

    def server_after_one(self, server: State, upload: State) -> State:
        return {"p_G": server["p_G"] - self.method.settings.global_rate * upload["gradient"]}


def public_directions(numbers: int, directions: int) -> Tensor:
    """The public random directions [numbers, D] in which gradients of so many numbers are looked at."""
    return torch.randn(numbers, directions, generator=generator(0, "directions"))


def class_weights(counts: Tensor) -> Tensor:
    """The weight [.., C] of each class in a user's mean, by the numbers [.., C] of its records; they sum to 1."""
    return F.normalize(counts / (counts + FEW), p=1, dim=-1)


def largest_rank(class_counts: Floats, users: int) -> int:
    """The rank that the scatter of any so many users has at most: the smallest sum of (classes - 1) over them, if
    `class_counts` [C] says how many users have 1, 2, .. classes."""
    each = np.repeat(np.arange(len(class_counts)), class_counts.astype(np.int64))
    return int(each[:users].sum())


def _clusters(server: State) -> Clusters:
    """The server's clusters; without looks if it is a broadcast."""
    return Clusters(*(server[name].numpy() for name in ("cluster", "half", "looks") if name in server))


def _directions(matrices: Tensor) -> Tensor:
    """Matrices [N, .., ..] divided by their Frobenius norms; 0 stays 0."""
    return F.normalize(matrices.flatten(1), dim=1).view_as(matrices)


def _measured(mark: Tensor, metric: Tensor | None) -> Tensor:
    """Marks [N, D] multiplied by the metric [N, D, D] and scaled to length 1; unchanged if the metric is None, as in
    all rounds but the one in which users receive it."""
    return mark if metric is None else F.normalize(torch.einsum("nd,nde->ne", mark, metric))


def _inverse_root(scatter: Tensor) -> Tensor:
    """W^-1/2 [D, D] of a scatter W with a ridge; the identity if W is 0, as when no user has two classes."""
    trace = scatter.trace() / len(scatter)
    if trace <= 0:
        return torch.eye(len(scatter))
    values, vectors = torch.linalg.eigh(scatter / trace)
    return (vectors * (values.clamp(min=0) + RIDGE) ** -0.5 @ vectors.T).float()


def _carried(server: State, clusters: Clusters) -> Tensor:
    """The clusters' global prompts before the step; if the number of clusters changed, the mean over each cluster's
    users of those that they had."""
    p_G = server["p_G"]
    if len(clusters.members) == len(p_G):
        return p_G
    return torch.stack([p_G[server["cluster"][torch.from_numpy(members)]].mean(0) for members in clusters.members])


def _numpy(chance: torch.Generator) -> np.random.Generator:
    """A numpy generator with torch's seed: its integers below q are uniform, torch's are draws below 2^64 mod q."""
    return np.random.default_rng(chance.initial_seed())
