"""FedOTP: a shared and a private full-rank prompt (Li et al. 2024; DP-FPL, A.2, baseline 2).

`--match sum` is DP-FPL's baseline: p_i = p_G + p_L. `--match ot` is FedOTP: both prompts are encoded, and their text
features are matched with the image's patch features by unbalanced optimal transport. The transport plan has no
gradient.

With privacy, p_L gets the client's noise (LDP) and p_G the server's (GDP), or the client's if it takes several steps a
round.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, choice
from fedaudit.trainers.base import State, Update
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompt_model import Scores
from fedaudit.trainers.prompts import Cohort, PromptMethod

REGULARISATION = 0.1  # eps of the entropic term (FedOTP)
MASS = 0.8  # gamma: the share of the patches' mass that is transported
ITERATIONS = 100  # at most
STILL = 1e-3  # FedOTP's threshold: a scaling stops when its relative change is at most this


class Facts(MethodFacts):
    learner = "prompts"
    title = "FedOTP"


@dataclass(frozen=True)
class Params(Parameters):
    match: str = choice("sum", "sum: prompts are added; ot: unbalanced optimal transport", ("sum", "ot"))


@dataclass(frozen=True)
class FedOTP(PromptMethod):
    local = ("p_L",)
    shared = ("p_G",)
    by_gradient = True

    @property
    def patches(self) -> bool:  # type: ignore[override]
        return self.params.match == "ot"

    @property
    def prompts(self) -> int:  # type: ignore[override]
        return 2 if self.params.match == "ot" else 1

    @property
    def scores(self) -> Scores:  # type: ignore[override]
        return transport_scores if self.params.match == "ot" else PromptMethod.scores

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_G, p_L = server["p_G"], own["p_L"]
        for step in client.steps():
            G = step.gradient(self.prompt({"p_G": p_G, "p_L": p_L}))
            to_G, to_L = (G, G) if self.params.match == "sum" else G.unbind(self._pair)
            d_L = step.noise(step.clip(to_L, "p_L"), "p_L")
            d_G = step.noise(step.clip(to_G, "p_G"), "p_G")
            p_G, p_L = step.descend(p_G, d_G, "p_G"), step.descend(p_L, d_L, "p_L")
        return Update(upload=self.message(p_G, d_G), private={"p_L": p_L})

    def prompt(self, state: State) -> Tensor:
        """p_i [.., b, d], or for transport both prompts [.., 2, b, d]; with class contexts [.., 2, C, b, d]."""
        p_G, p_L = torch.broadcast_tensors(state["p_G"], state["p_L"])
        return p_G + p_L if self.params.match == "sum" else torch.stack([p_G, p_L], dim=self._pair)

    @property
    def _pair(self) -> int:
        """The axis of the two prompts that are matched by transport."""
        return -4 if self.settings.class_contexts else -3

    @property
    def messages(self) -> "FedOTPMessages":
        return FedOTPMessages(self)


class FedOTPMessages(PromptMessages[FedOTP]):
    def replay(
        self, server: State, own: State, upload: State, learner: object, generator: object, sizes: object
    ) -> State:
        """{"p_L"}, the local prompts after the clients' steps, exact without noise if prompts are added. With transport
        the upload tells nothing of p_L: `own` is returned as it is."""
        if self.method.params.match == "ot":
            return own
        return {"p_L": own["p_L"] - self.method.settings.local_rate * self.gradient_sum(server["p_G"], upload)}


def transport_scores(text: Tensor, images: Tensor) -> Tensor:
    """Similarities [N, B, C] of two prompts' text features [N, 2, C, E] and patch features [N or 1, B, M, E]: the sum
    of transport plan times cosine similarity over patches and prompts (FedOTP)."""
    similarity = torch.einsum("npce,nbme->nbcmp", text, images.expand(len(text), *images.shape[1:]))
    return (transport_plan(1 - similarity.detach()) * similarity).sum((-1, -2))


def transport_plan(cost: Tensor) -> Tensor:
    """Entropic transport plan [.., M, P] between M patches and P prompts for costs [.., M, P].

    Every patch gives at most 1 / M, every prompt receives exactly gamma / P (FedOTP's unbalanced problem, by Dykstra's
    scalings: the constraint of the patches is an inequality). Each problem stops when its own scaling does, so that a
    record's plan does not depend, by one bit, on others in the batch; it is within 1 % of 1 / M of the plan after all
    `ITERATIONS`. Costs of cosines differ by 2 at most, so that floats suffice once each column of the kernel is scaled
    to a maximum of 1; the prompt's scaling makes up for that.
    """
    M, P = cost.shape[-2:]
    costs = cost.reshape(-1, M, P).permute(2, 0, 1).contiguous()  # [P, n, M]: sums over P and M run alike for any n
    least = costs.amin(-1, keepdim=True)
    kernel = ((least - costs) / REGULARISATION).exp()
    to_prompts = (-least / REGULARISATION).exp()  # 1 for the unscaled kernel
    to_prompts = _on_host(kernel, to_prompts) if cost.device.type == "cpu" else _on_device(kernel, to_prompts)
    of_patches, to_prompts = scaling_step(kernel, to_prompts)
    return (kernel * of_patches * to_prompts).permute(1, 2, 0).reshape(cost.shape)


def _on_host(kernel: Tensor, to_prompts: Tensor) -> Tensor:
    """Scalings of the prompts [P, n, 1] before the last iteration. Only problems that still move are computed."""
    moving, rows, now = torch.arange(kernel.shape[1]), kernel, to_prompts
    for _ in range(ITERATIONS - 1):
        _, following = scaling_step(rows, now)
        moves = _moves(now, following)[0, :, 0].nonzero()[:, 0]
        moving, rows, now = moving[moves], rows.index_select(1, moves), following.index_select(1, moves)
        to_prompts = to_prompts.index_copy(1, moving, now)
        if not len(moving):
            break
    return to_prompts


def _on_device(kernel: Tensor, to_prompts: Tensor) -> Tensor:
    """The scalings that `_on_host` returns [P, n, 1], computed for all problems, as counting those that move would wait
    for the host."""
    for _ in range(ITERATIONS - 1):
        _, following = scaling_step(kernel, to_prompts)
        to_prompts = torch.where(_moves(to_prompts, following), following, to_prompts)
    return to_prompts


def _moves(now: Tensor, following: Tensor) -> Tensor:
    """Whether an iteration still moves each of n problems, bool [1, n, 1]."""
    return ((following - now).abs() > STILL * now).any(0, keepdim=True)


def scaling_step(kernel: Tensor, to_prompts: Tensor) -> tuple[Tensor, Tensor]:
    """One iteration of n problems with kernels [P, n, M]: scalings of the patches [n, M], and from them those of the
    prompts [P, n, 1]."""
    P, _, M = kernel.shape
    of_patches = (1 / M / (kernel * to_prompts).sum(0)).clamp(max=1)
    return of_patches, MASS / P / (kernel * of_patches).sum(-1, keepdim=True)
