"""Loss: members have a lower loss than other records, and training has lowered theirs the most (Yeom et al. 2018).

loss         -loss = log p_y, for a text the mean over its learnt tokens: Yeom et al., Privacy Risk in Machine Learning,
             CSF 2018, Adversary 1, as a score instead of a threshold.
loss/base    loss before training - loss: how far training lowered it, so that an easy record does not look like a
             member.
loss/rounds  the mean of loss/base over all states that the adversary sees of the attacked model: a client rebuilt after
             each of its participations, or all broadcasts. On LoRA.

Needs the attacked model only. `loss/base` is 0 for the state before training itself. It is NaN for a record to which
both models give probability 0.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, mean_of_finite


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


class Loss(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        return losses(knowledge) | {f"loss/{name}": values for name, values in over_rounds(knowledge).items()}


def over_rounds(knowledge: Knowledge) -> dict[str, Floats]:
    """{"rounds": loss before training minus the mean loss over `Knowledge.states`}, [n]; {} without states."""
    mean = mean_over_states(knowledge)
    return {} if mean is None else {"rounds": knowledge.base.loss - mean}


def mean_over_states(knowledge: Knowledge, largest: float = np.inf) -> Floats | None:
    """Mean loss [n] over `Knowledge.states`, each clipped to at most `largest`; None without states."""
    return None if knowledge.states is None else mean_of_finite(np.minimum(knowledge.states, largest))


def losses(knowledge: Knowledge) -> dict[str, Floats]:
    """The scores "loss" and "loss/base", [n] each."""
    with np.errstate(invalid="ignore"):  # inf - inf
        return {"loss": -knowledge.loss, "loss/base": knowledge.base.loss - knowledge.loss}
