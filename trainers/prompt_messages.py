"""Reading uploads of prompt methods, for attacks (`trainers.messages`)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.trainers.base import Site, State, Upload
from fedaudit.trainers.protection import Protection
from fedaudit.trainers.steps import PrivateMessages

if TYPE_CHECKING:
    from fedaudit.trainers.prompts import Learner, PromptMethod

KnownPrompts = TypeVar("KnownPrompts", bound="PromptMethod")


class PromptMessages(PrivateMessages[KnownPrompts]):
    """Reads a prompt method's uploads: each is a gradient in p_G, or p_G after the client's steps."""

    def round_start(self, server: State, own: State) -> State:
        """The state in which clients take their first step of a round: their prompt is `method.prompt` of it."""
        return own | server

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        """Each client's model: with the prompt that it uploads, or as if the server had received its gradient only."""
        after = self.server_after_one(server, upload) if "gradient" in upload else upload
        return {"prompt": self.method.prompt(own | after)}

    def update_vector(self, server: State, upload: State) -> Tensor:
        """The change of p_G; up to a positive factor if a gradient is uploaded."""
        return -upload["gradient"] if "gradient" in upload else upload["p_G"] - server["p_G"]

    def server_after_one(self, server: State, upload: State) -> State:
        """The server's state after aggregating this upload only, without noise."""
        noise_free = dataclasses.replace(self.method, protection=Protection())
        return noise_free.aggregate(server, [Upload(0, 1, upload)], Site(seed=0, round=0))

    def gradient_sum(self, p_G: Tensor, upload: State) -> Tensor:
        """The uploaded gradient, or (p_G - uploaded p_G) / global rate: the sum of the steps' gradients, which momentum
        weighs (`step_coefficients`). It has the client's noise."""
        return upload["gradient"] if "gradient" in upload else (p_G - upload["p_G"]) / self.method.settings.global_rate

    def data_gradient_sum(self, server: State, own: State, upload: State, learner: Learner, steps: int) -> Tensor:
        """The part of `gradient_sum` that comes from records, estimated from uploads alone: without the method's
        regularisers, if it has any, which for several steps are taken to first order."""
        return self.gradient_sum(server["p_G"], upload)

    def step_coefficients(self, steps: int) -> NDArray[np.float64]:
        """Coefficients [steps] of the records' gradients of a round's steps in `data_gradient_sum`, which is linear in
        them; all are 1 without momentum."""
        return unit_moves(steps, rate=self.method.settings.global_rate, momentum=self.method.settings.momentum)


def unit_moves(steps: int, *, rate: float, momentum: float, pull: float = 0.0) -> NDArray[np.float64]:
    """How far a tensor moves against the gradient in a round of SGD with momentum, divided by the rate, [steps]: entry
    s is for gradient 1 in step s and 0 in all others. A proximal term adds `pull` times (tensor - start) to each
    gradient."""
    moves = np.zeros(steps)
    for s in range(steps):
        moved = velocity = 0.0
        for t in range(s, steps):
            velocity = momentum * velocity + (t == s) - pull * rate * moved
            moved += velocity
        moves[s] = moved
    return moves
