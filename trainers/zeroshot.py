"""Zero-shot CLIP: the hard prompt "a photo of a {class}.", nothing is trained (Radford et al. 2021).

It uses no training record, so nothing can leak and its epsilon is zero.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaudit.trainers.base import State, Update
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.prompts import Cohort, PromptMethod


class Facts(MethodFacts):
    learner = "prompts"
    title = "Zero-shot"
    trains = False


@dataclass(frozen=True)
class Params:
    """Zero-shot has no parameters of its own."""


@dataclass(frozen=True)
class ZeroShot(PromptMethod):
    def start(self, initial: State) -> State:
        return {"hard": initial["hard"]}

    def update(self, server: State, own: State, client: Cohort) -> Update:
        return Update(upload={}, private={})

    def prompt(self, state: State) -> Tensor:
        return state["hard"]
