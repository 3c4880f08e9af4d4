"""What an outsider who knows a method of prompts can compute of its messages (`trainers.messages`)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainers.base import Site, State, Upload
from trainers.protection import Protection
from trainers.steps import PrivateMessages

if TYPE_CHECKING:
    from trainers.prompts import Learner, PromptMethod

KnownPrompts = TypeVar("KnownPrompts", bound="PromptMethod")


class PromptMessages(PrivateMessages[KnownPrompts]):
    """Of a method of prompts: a message is a gradient in p_G, or what p_G became."""

    def round_start(self, server: State, own: State) -> State:
        """What `prompt` makes the prompt of that a client's first step of a round is taken at."""
        return own | server

    def after_local_steps(self, server: State, own: State, upload: State) -> State:
        """The prompts with the server's step on each client's message alone."""
        return {"prompt": self.method.prompt(own | self.server_after_one(server, upload))}

    def update_vector(self, server: State, upload: State) -> Tensor:
        """Of p_G, up to a factor where a gradient is sent."""
        return -upload["gradient"] if "gradient" in upload else upload["p_G"] - server["p_G"]

    def server_after_one(self, server: State, upload: State) -> State:
        """The server's state after a step on one client's message alone, without noise."""
        noise_free = dataclasses.replace(self.method, protection=Protection())
        return noise_free.aggregate(server, [Upload(0, 1, upload)], Site(seed=0, round=0))

    def gradient_sum(self, p_G: Tensor, upload: State) -> Tensor:
        """What an upload says of the gradients in p_G: their sum over the steps of the round."""
        return upload["gradient"] if "gradient" in upload else (p_G - upload["p_G"]) / self.method.settings.global_rate

    def data_gradient_sum(self, server: State, own: State, upload: State, learner: Learner, steps: int) -> Tensor:
        """What of `gradient_sum` the clients' records made, for who sees no more than the uploads: less the terms of
        the loss that see no record, of several steps to first order."""
        return self.gradient_sum(server["p_G"], upload)

    def step_coefficients(self, steps: int) -> NDArray[np.float64]:
        """What the records' gradient in each of a round's steps counts for in `data_gradient_sum` [steps], which is
        linear in them: 1 without momentum."""
        return unit_moves(steps, rate=self.method.settings.global_rate, momentum=self.method.settings.momentum)


def unit_moves(steps: int, *, rate: float, momentum: float, pull: float = 0.0) -> NDArray[np.float64]:
    """How far a unit gradient in each of some steps of SGD with momentum has moved a tensor after the last one, over
    the rate [steps]; a proximal term pulls by `pull` times what it has moved."""
    found = np.zeros(steps)
    for s in range(steps):
        moved = velocity = 0.0
        for t in range(s, steps):
            velocity = momentum * velocity + (t == s) - pull * rate * moved
            moved += velocity
        found[s] = moved
    return found
