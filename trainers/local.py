"""Local prompts: every client learns a prompt on its own records, nothing is exchanged (CoOp; Zhou et al. 2022).

With privacy, the clipped gradient carries the client's own noise (LDP), as p_L does in DP-FPL.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaudit.trainers.base import State, Update
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompts import Cohort, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "Local prompts"


@dataclass(frozen=True)
class Params:
    """Local prompts have no parameters of their own."""


@dataclass(frozen=True)
class Local(PromptMethod):
    local = ("p_L",)

    def update(self, server: State, own: State, client: Cohort) -> Update:
        p_L = own["p_L"]
        for step in client.steps():
            gradient = step.noise(step.clip(step.gradient(p_L), "p_L"), "p_L")
            p_L = step.descend(p_L, gradient, "p_L")
        return Update(upload={}, private={"p_L": p_L})

    def prompt(self, state: State) -> Tensor:
        return state["p_L"]
