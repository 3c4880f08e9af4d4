"""PromptFL: one prompt, trained by all clients and averaged (Guo et al. 2023; DP-FPL, A.2, baseline 1).

With privacy every client noises its clipped gradients (LDP), and the average is uniform: weights n_i would raise the
sensitivity. DP-FPL's released code adds noise at the server too; this is not reproduced.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaudit.trainers.base import State, Update
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompts import Cohort, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "PromptFL"


@dataclass(frozen=True)
class Params:
    """PromptFL has no parameters of its own."""


@dataclass(frozen=True)
class PromptFL(PromptMethod):
    shared = ("p_G",)

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_G = server["p_G"]
        for step in client.steps():
            gradient = step.noise(step.clip(step.gradient(p_G), "p_G"), "p_G")
            p_G = step.descend(p_G, gradient, "p_G")
        return Update(upload={"p_G": p_G}, private={})

    def prompt(self, state: State) -> Tensor:
        return state["p_G"]
