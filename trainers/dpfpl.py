"""DP-FPL: a global prompt noised at the server, a local one by its low-rank factors (Tran et al. 2025, Algorithm 1).

In every local step a client factorises p_L by one power iteration and noises the gradients of u and v (LDP); the server
noises the mean gradient of p_G (GDP). It receives the clients' gradients without noise: nothing is proven against the
server. With several local steps, which the paper does not have, clients noise and send p_G itself.

Departs from the paper, which says r = p_L - u v: u and v are orthonormal here (the carriers of RGP, Yu et al. 2021),
because only then eq. 4 is the projection of the gradient on the tangent space; the approximation of p_L is u (u^T p_L),
and r is the rest. Line 7 lists two text features; they are read as one, of p_G + p_L (section 3.2). Where the paper is
silent: without residual the forward pass uses the truncation u (u^T p_L),
gradients and noise still use the orthonormal u and v, and the client releases p_G with the best rank-k part of p_L.
Rank 0 is the full prompt: noise on the gradient of p_L itself. All clients start from the same public p_L.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, flag, whole
from fedaudit.trainers.base import Site, State, Update, Upload
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import Cohort, PromptMethod, Step

# Draws of a client's unknown Q over which `replay` averages. After 100 noise-free rounds of rank 8 the replayed p_L is
# off by 0.43 of its length; with one draw by 0.59, with 64 by 0.42.
GUESSES = 16


class Facts(MethodFacts):
    learner = "prompts"
    title = "DP-FPL"


@dataclass(frozen=True)
class Params(Parameters):
    rank: int = whole(
        8, "rank k of the local prompt's factors (the paper: 1, 2, 4, 8), 0 = full", least=0, most=1024, sweep=True
    )
    residual: bool = flag(True, "keep what the factors miss in the forward pass (section 3.2)")


@dataclass(frozen=True)
class DPFPL(PromptMethod):
    shared = ("p_G",)
    by_gradient = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rank(self.params.rank, self.settings.prompt_length)

    @property
    def local(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("u", "v") if self.params.rank else ("p_L",)

    @property
    def one_context(self) -> str:  # type: ignore[override]
        return "its factors u and v are those of one prompt; --rank 0 has none" if self.params.rank else ""

    def start(self, initial: State) -> State:
        return {"p_G": initial["p_G"], "p_L": initial["p_L"]}

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_G, p_L = server["p_G"], own["p_L"]  # line 4
        for step in client.steps():  # line 5
            G, d_L = self._gradients(p_G, p_L, step)
            d_G = step.noise(step.clip(G, "p_G"), "p_G")  # line 9; noised here with several steps only, else in line 16
            p_L = step.descend(p_L, d_L, "p_L")  # line 12
            p_G = step.descend(p_G, d_G, "p_G")  # counts with several steps only: else the server descends, line 17
        return Update(upload=self.message(p_G, d_G), private={"p_L": p_L})  # line 13

    def _gradients(self, p_G: Tensor, p_L: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """The records' gradients G [R, N, b, d] in the whole prompt (R = 1: the batch's mean), and the noised gradient
        [N, b, d] of p_L."""
        if self.params.rank == 0:
            G = step.gradient(p_G + p_L)
            return G, step.noise(step.clip(G, "p_L"), "p_L")
        Q = torch.stack([torch.randn(p_L.shape[-1], self.params.rank, generator=g) for g in step.generators("power")])
        u, v = power_iteration(p_L, Q)  # line 6
        # lines 7 and 8; with residual p_L = u u^T p_L + r
        G = step.gradient(p_G + (p_L if self.params.residual else u @ u.mT @ p_L))
        d_u = step.noise(step.clip(G @ v.mT, "u"), "u")  # lines 9 and 10
        d_v = step.noise(step.clip(u.mT @ G, "v"), "v")
        return G, full_gradient(u, v, d_u, d_v)  # line 11

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return {"p_G": self.global_prompt(server["p_G"], uploads, site)}  # lines 15 to 17

    def prompt(self, state: State) -> Tensor:
        p_L = state["p_L"]
        if self.params.rank and not self.params.residual:
            u, values, v = torch.linalg.svd(p_L, full_matrices=False)
            k = self.params.rank
            p_L = u[..., :k] * values[..., None, :k] @ v[..., :k, :]
        return state["p_G"] + p_L

    @property
    def messages(self) -> "DPFPLMessages":
        return DPFPLMessages(self)


class DPFPLMessages(PromptMessages[DPFPL]):
    def replay(
        self, server: State, own: State, upload: State, learner: object, generator: torch.Generator, sizes: object
    ) -> State:
        """{"p_L"}, each client's local prompt after line 12 without noise and clipping, once for all steps of the
        round. The client's Q is unknown, so that the step is averaged over GUESSES draws. Exact at rank 0, without
        noise."""
        p_L, G, rank = own["p_L"], self.gradient_sum(server["p_G"], upload), self.method.params.rank
        if rank:
            Q = torch.randn(GUESSES, 1, p_L.shape[-1], rank, generator=generator)
            u, v = power_iteration(p_L, Q)  # [GUESSES, N, ..]
            G = full_gradient(u, v, G @ v.mT, u.mT @ G).mean(0)
        return {"p_L": p_L - self.method.settings.local_rate * G}


def power_iteration(p: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns u [.., b, k] and rows v [.., k, d] that span most of p [.., b, d]; Q [.., d, k] is random."""
    u = torch.linalg.qr(p @ Q).Q
    v = torch.linalg.qr(p.mT @ u).Q.mT
    return u, v


def full_gradient(u: Tensor, v: Tensor, d_u: Tensor, d_v: Tensor) -> Tensor:
    """Eq. 4: with d_u = G v^T and d_v = u^T G it is P_u G + G P_v - P_u G P_v, G projected on the tangent space at u
    v."""
    return d_u @ v + u @ d_v - u @ u.mT @ d_u @ v


def check_rank(rank: int, prompt_length: int) -> None:
    """Raise InputError if a prompt of so many vectors cannot have this rank."""
    if rank > prompt_length:
        raise InputError(f"--rank {rank}: a prompt of {prompt_length} vectors (--prompt-length) has at most that rank")
