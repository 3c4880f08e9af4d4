"""FedPGP: a global prompt and a low-rank local one, both trained throughout (Cui et al. 2024; DP-FPL, A.2, baseline 3).

p_i = p_G + u v. The loss is the cross-entropy plus mu times a contrastive term over the classes, which pulls the
global prompt's text feature t_G towards the hard prompt's, t_0, and away from the personalised one's, t_i:
    -log(e^(cos(t_0, t_G) / tau) / (e^(cos(t_0, t_G) / tau) + e^(cos(t_G, t_i) / tau))).
`--mu 0` is DP-FPL's baseline. With privacy, u and v get the client's noise (LDP) and p_G the server's (GDP). The
contrastive term does not depend on records: its gradient is added after clipping and costs no privacy.

u and v start as independent draws from N(0, 0.02^2), as in both released codes, public and the same for all clients:
u v is nearly zero, so that a client starts from p_G. t_0 is CLIP's "a photo of a {class}."; FedPGP's released code uses
the text feature of its placeholder, "X X ... X {class}.", which its random prompt replaces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, number, whole
from fedaudit.trainers.base import Site, State, Update, Upload
from fedaudit.trainers.dpfpl import check_rank
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import Cohort, Learner, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "FedPGP"


@dataclass(frozen=True)
class Params(Parameters):
    rank: int = whole(8, "rank of the local prompt (DP-FPL: 8)", least=1, most=1024, sweep=True)
    mu: float = number(1.0, "weight of the contrastive term; 0 = DP-FPL's baseline", least=0, most=10**6)
    temperature: float = number(0.5, "temperature tau of the contrastive term", least=1e-6, most=10**6)


@dataclass(frozen=True)
class FedPGP(PromptMethod):
    local = ("u", "v")
    shared = ("p_G",)
    by_gradient = True
    prompts = 2  # the contrastive term's, p_G and p_i
    one_context = "its factors u and v are those of one prompt"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rank(self.params.rank, self.settings.prompt_length)

    def start(self, initial: State) -> State:
        k = self.params.rank
        return {"p_G": initial["p_G"], "u": initial["u"][:, :k], "v": initial["v"][:k], "hard": initial["hard"]}

    def download(self, server: State, client: object) -> State:
        return {name: server[name] for name in ("p_G", "hard")}

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_G, u, v = server["p_G"], own["u"], own["v"]
        for step in client.steps():
            G = step.gradient(p_G + u @ v)
            d_G, d_u, d_v = step.clip(G, "p_G"), step.clip(G @ v.mT, "u"), step.clip(u.mT @ G, "v")
            d_G, d_u, d_v = step.noise(d_G, "p_G"), step.noise(d_u, "u"), step.noise(d_v, "v")
            if self.params.mu:
                to_G, to_i = self.contrast(server["hard"], p_G, p_G + u @ v, client.learner)
                d_G, d_u, d_v = d_G + to_G + to_i, d_u + to_i @ v.mT, d_v + u.mT @ to_i
            p_G, u, v = step.descend(p_G, d_G, "p_G"), step.descend(u, d_u, "u"), step.descend(v, d_v, "v")
        return Update(upload=self.message(p_G, d_G), private={"u": u, "v": v})

    def contrast(self, hard: Tensor, p_G: Tensor, p_i: Tensor, learner: Learner) -> tuple[Tensor, Tensor]:
        """Gradients [N, b, d] in p_G and in p_i, each with the other fixed, of mu times the contrastive term, which is
        the mean over classes. `hard` is the public prompt; prompts are b vectors of d numbers for each of N clients."""
        t_0 = learner.text(hard)

        def term(p_G: Tensor, p_i: Tensor) -> Tensor:
            t_G, t_i = learner.text(torch.stack([p_G, p_i]))
            toward, away = (t_0 * t_G).sum(-1), (t_G * t_i).sum(-1)  # [N, C]
            loss = F.softplus((away - toward) / self.params.temperature)
            return self.params.mu * loss.mean(-1).sum()

        to_G, to_i = torch.func.grad(term, argnums=(0, 1))(p_G, p_i)
        return to_G, to_i

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return {"p_G": self.global_prompt(server["p_G"], uploads, site), "hard": server["hard"]}

    def prompt(self, state: State) -> Tensor:
        return state["p_G"] + state["u"] @ state["v"]

    @property
    def messages(self) -> "FedPGPMessages":
        return FedPGPMessages(self)


class FedPGPMessages(PromptMessages[FedPGP]):
    def replay(
        self, server: State, own: State, upload: State, learner: Learner, generator: object, sizes: object
    ) -> State:
        """{"u", "v"} after the clients' steps, exact for one step without noise and clipping: the upload's gradient
        less that of the contrastive term, which is public, gives the gradients of u and v."""
        p_G, u, v, G = server["p_G"], own["u"], own["v"], self.gradient_sum(server["p_G"], upload)
        if self.method.params.mu:
            G = G - self.method.contrast(server["hard"], p_G, p_G + u @ v, learner)[0]
        rate = self.method.settings.local_rate
        return {"u": u - rate * G @ v.mT, "v": v - rate * u.mT @ G}

    def data_gradient_sum(self, server: State, own: State, upload: State, learner: Learner, steps: int) -> Tensor:
        gradient_sum = super().data_gradient_sum(server, own, upload, learner, steps)
        if not self.method.params.mu:
            return gradient_sum
        terms = self.method.contrast(server["hard"], server["p_G"], self.method.prompt(own | server), learner)
        return gradient_sum - float(self.step_coefficients(steps).sum()) * (terms[0] + terms[1])
