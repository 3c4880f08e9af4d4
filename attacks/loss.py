"""Loss: members have a lower loss than other records, and training has lowered theirs the most (Yeom et al. 2018).

loss         -loss = log p_y, of a text the mean over its tokens: Yeom et al., Privacy Risk in Machine Learning, CSF
             2018, Adversary 1, as a score instead of a threshold.
loss/base    loss before training - loss: how far training from the public start lowered it, so that an easy record does
             not look like a member.

Needs the attacked model only. `loss/base` is constant on the public start itself. A record that both models hold
impossible is nan there.
"""

from dataclasses import dataclass

import numpy as np

from attacks.knowledge import Floats, Knowledge

RECORDS = ("texts", "classes")
STRENGTH = 2
ON_TEXTS = ("loss/base",)
SIGNALS = {
    "loss": ("loss", "the loss"),
    "loss/base": ("calibrated loss", "the loss calibrated by the untrained model"),
}


@dataclass(frozen=True)
class Params:
    """The loss attack has no parameters."""


class Loss:
    signals = tuple(SIGNALS)

    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        return losses(seen)


def losses(seen: Knowledge) -> dict[str, Floats]:
    """The scores of the attack by name."""
    with np.errstate(invalid="ignore"):  # inf - inf
        return {"loss": -seen.loss, "loss/base": seen.base.loss - seen.loss}
