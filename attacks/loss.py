"""Loss: members have a lower loss than other records, and training has lowered theirs the most (Yeom et al. 2018).

loss         -loss = log p_y, of a text the mean over its tokens: Yeom et al., Privacy Risk in Machine Learning, CSF
             2018, Adversary 1, as a score instead of a threshold.
loss/base    loss before training - loss: how far training from the public start lowered it, so that an easy record does
             not look like a member.
loss/rounds  the mean of loss/base over all states that the adversary sees of what it attacks: a client rebuilt after
             each of its participations, or all broadcasts. On LoRA.

Needs the attacked model only. `loss/base` is constant on the public start itself. A record that both models hold
impossible is nan there.
"""

from dataclasses import dataclass

import numpy as np

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 2
    on_texts = ("loss/base",)
    rounds = True
    signals = (
        ("loss", "loss", "the loss"),
        ("loss/base", "calibrated loss", "the loss calibrated by the untrained model"),
        ("loss/rounds", "calibrated loss, all rounds", "the calibrated loss of all rounds"),
    )


@dataclass(frozen=True)
class Params:
    """The loss attack has no parameters."""


class Loss:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        return losses(seen) | {f"loss/{name}": values for name, values in over_rounds(seen).items()}


def over_rounds(seen: Knowledge) -> dict[str, Floats]:
    """`rounds`: loss before training less the loss, a mean over all states that are seen; nothing where none are."""
    mean = mean_over_states(seen)
    return {} if mean is None else {"rounds": seen.base.loss - mean}


def mean_over_states(seen: Knowledge, largest: float = np.inf) -> Floats | None:
    """Mean loss [n] over all states that are seen, none counted as more than `largest`; None where none are."""
    if seen.states is None:
        return None
    found: Floats = np.ma.masked_invalid(np.minimum(seen.states, largest)).mean(0).filled(np.nan)
    return found


def losses(seen: Knowledge) -> dict[str, Floats]:
    """The scores of one model by name."""
    with np.errstate(invalid="ignore"):  # inf - inf
        return {"loss": -seen.loss, "loss/base": seen.base.loss - seen.loss}
