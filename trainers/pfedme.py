"""pFedMe: personal prompts by Moreau envelopes (T. Dinh et al. 2020, Algorithm 1, on prompts).

In each local step a client solves theta ~ argmin f_k(theta) + lambda / 2 |theta - w|^2 by K steps of SGD, and moves its
copy of the global prompt towards theta: w - eta lambda (w - theta). It sends w and keeps theta, the prompt that it
releases. The server mixes: (1 - beta) p_G + beta times the mean of the w.

The paper uses one minibatch for all K inner steps. Here each has its own minibatch and noise, so that a record is in no
more steps than the ledger counts. With privacy the client noises each inner gradient (LDP); theta and w are computed
from these only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, number, whole
from fedaudit.trainers.base import Site, State, Update, Upload
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompt_messages import PromptMessages
from fedaudit.trainers.prompts import Cohort, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "pFedMe"


@dataclass(frozen=True)
class Params(Parameters):
    envelope: float = number(15.0, "lambda of the Moreau envelope (the paper: 15)", above=0, most=10**6)
    inner: int = whole(5, "steps K toward the personal prompt in each local step", least=1, most=10**6)
    mixing: float = number(1.0, "beta: the new mean's share of the global prompt", above=0, most=2)


@dataclass(frozen=True)
class PFedMe(PromptMethod):
    shared = ("p_G",)  # the gradient in theta: w and theta are computed from it

    def steps(self, records: int) -> int:
        return super().steps(records) * self.params.inner

    def update(self, server: State, own: State, client: Cohort) -> Update:
        w = theta = server["p_G"]
        for _ in range(client.due // self.params.inner):
            for step in client.steps(self.params.inner):
                gradient = step.noise(step.clip(step.gradient(theta), "p_G"), "p_G")
                theta = step.descend(theta, gradient + self.params.envelope * (theta - w), "theta")
            w = w - self.settings.global_rate * self.params.envelope * (w - theta)
        return Update(upload={"p_G": w}, private={"theta": theta})

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        mean, beta = self.global_prompt(server["p_G"], uploads, site), self.params.mixing
        return {"p_G": (1 - beta) * server["p_G"] + beta * mean}

    def prompt(self, state: State) -> Tensor:
        """theta, or the global prompt if the state has none."""
        return state.get("theta", state["p_G"])

    @property
    def messages(self) -> "PFedMeMessages":
        return PFedMeMessages(self)


class PFedMeMessages(PromptMessages[PFedMe]):
    def replay(
        self, server: State, own: State, upload: State, learner: object, generator: object, sizes: Sequence[int]
    ) -> State:
        """{"theta"}, the personal prompts, estimated as if every inner step had the same gradient: theta - p_G is then
        a known multiple of w - p_G. Exact after one local step. `sizes` are the clients' numbers of records."""
        moves = [self._moves([1.0] * self.method.steps(n)) for n in sizes]
        moved = upload["p_G"] - server["p_G"]
        ratios = torch.tensor([theta / w for w, theta in moves]).reshape(-1, *[1] * (moved.ndim - 1))
        return {"theta": server["p_G"] + ratios * moved}

    def round_start(self, server: State, own: State) -> State:
        return server  # theta starts at the broadcast in each round

    def step_coefficients(self, steps: int) -> NDArray[np.float64]:
        """Coefficients [steps] of the inner steps' gradients in (p_G - w) / global rate, w being uploaded; some are
        negative if steps overshoot the envelope's minimum."""
        return np.array([-self._moves(unit)[0] for unit in np.eye(steps).tolist()]) / self.method.settings.global_rate

    def _moves(self, gradients: Sequence[float]) -> tuple[float, float]:
        """(w, theta) after a round that starts with both at 0, and whose inner steps have these gradients."""
        settings, envelope, inner = self.method.settings, self.method.params.envelope, self.method.params.inner
        w = theta = velocity = 0.0
        for t, gradient in enumerate(gradients, 1):
            velocity = settings.momentum * velocity + gradient + envelope * (theta - w)
            theta -= settings.local_rate * velocity
            if t % inner == 0:
                w -= settings.global_rate * envelope * (w - theta)
        return w, theta
