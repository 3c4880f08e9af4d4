"""PromptFL: one prompt, trained by all clients and averaged (Guo et al. 2023; DP-FPL, A.2, baseline 1).

With privacy every client noises its clipped gradient before the prompt leaves it (LDP), and the average is uniform:
weights n_i would raise the sensitivity. The noise that DP-FPL's released code adds once more at the server is not
reproduced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trainers.base import Site, State, Update, Upload, weighted_mean
from trainers.prompts import Cohort, PromptMethod

LEARNER = "prompts"
TITLE = "PromptFL"


@dataclass(frozen=True)
class Params:
    """PromptFL has no parameters of its own."""


@dataclass(frozen=True)
class PromptFL(PromptMethod):
    shared = ("p_G",)

    def start(self, initial: State) -> State:
        return {"p_G": initial["p_G"]}

    def update(self, server: State, own: State, client: Cohort) -> Update:
        gradient = client.noise(client.clip(client.gradient(server["p_G"]), "p_G"), "p_G")
        return Update(upload={"p_G": server["p_G"] - self.settings.global_rate * gradient}, private={})

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        n = [1 if self.protection.private else upload.records for upload in uploads]
        return weighted_mean([upload.state for upload in uploads], [k / sum(n) for k in n])

    def prompt(self, state: State) -> Tensor:
        return state["p_G"]
