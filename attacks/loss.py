"""Loss: members have a lower loss than other records, and training has lowered theirs the most (Yeom et al. 2018).

loss         -loss = log p_y: Yeom et al., Privacy Risk in Machine Learning, CSF 2018, Adversary 1, as a score instead
             of a threshold.
loss/base    loss before training - loss: how far training from the public start lowered it, so that an easy record does
             not look like a member.

Needs the attacked model only. `loss/base` is constant on the public start itself. A record that both models hold
impossible is nan there.
"""

from dataclasses import dataclass

import numpy as np

from attacks.knowledge import Floats, Knowledge, own_class

RECORDS = ("texts", "classes")
TOKENS = ("loss-base/caption", "loss/caption")
SIGNALS = {
    "loss": ("loss", "the loss"),
    "loss/base": ("loss, base", "the loss calibrated by the untrained prompt"),
}


@dataclass(frozen=True)
class Params:
    """The loss attack has no parameters."""


class Loss:
    signals = tuple(SIGNALS)

    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        with np.errstate(invalid="ignore"):  # inf - inf
            gain = -seen.loss - own_class(seen.base, seen.labels)
        return {"loss": -seen.loss, "loss/base": gain}
