"""FedProx: PromptFL whose clients are held near the global prompt (Li et al. 2020, eq. 2, on prompts).

A client minimises f_k(p) + mu / 2 |p - p_G|^2. The term does not depend on records: its gradient mu (p - p_G) is added
after clipping and noise, and costs no privacy. It is zero in the first local step, so that with one step a round, or
mu = 0, this is PromptFL.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, number
from fedaudit.trainers.base import State, Update
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompt_messages import PromptMessages, unit_moves
from fedaudit.trainers.prompts import Cohort, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "FedProx"


@dataclass(frozen=True)
class Params(Parameters):
    mu: float = number(
        0.1, "weight of the proximal term, which acts from a round's second local step on", least=0, most=10**6
    )

    def caution(self, settings: Any, task: Any, clients: int) -> str:
        """A warning if the proximal term has no effect with these settings; else ""."""
        if self.mu and settings.several:
            return ""
        why = "a round is one local step, at which its term is zero" if self.mu else "its term weighs mu = 0"
        more = "add --local-steps or --local-epochs" if self.mu else "give --mu a positive number"
        return f"FedProx is PromptFL here: {why}; {more}."


@dataclass(frozen=True)
class FedProx(PromptMethod):
    shared = ("p_G",)

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p = p_G = server["p_G"]
        for step in client.steps():
            gradient = step.noise(step.clip(step.gradient(p), "p_G"), "p_G")
            p = step.descend(p, gradient + self.params.mu * (p - p_G), "p_G")
        return Update(upload={"p_G": p}, private={})

    def prompt(self, state: State) -> Tensor:
        return state["p_G"]

    @property
    def messages(self) -> "FedProxMessages":
        return FedProxMessages(self)


class FedProxMessages(PromptMessages[FedProx]):
    def step_coefficients(self, steps: int) -> NDArray[np.float64]:
        settings, mu = self.method.settings, self.method.params.mu
        return unit_moves(steps, rate=settings.global_rate, momentum=settings.momentum, pull=mu)
