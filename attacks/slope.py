"""Loss slope: the loss of records that are trained on falls faster from round to round.

The score is minus the least-squares slope of the record's loss over the observed rounds (nats per observed round):
under the target client's own model if its messages are seen, otherwise under the released global model, which every
client's records change. The loss trajectory as a membership signal: Nasr et al. 2019, section IV; Liu et al. 2022
("Membership inference attacks by exploiting loss trajectory").

If the server sees both ends of a client's rounds (of adapters), the slope is taken within rounds: the loss in the model
from which the client started minus the loss in what it sent, averaged over its participations.

Needs the broadcasts of a run. Rounds without the client are left out; NaN if fewer than two are left.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, mean_of_finite


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("broadcasts",)
    signals = (("slope", "loss slope", "the slope of the loss over rounds"),)


@dataclass(frozen=True)
class Params:
    """The slope attack has no parameters."""


class Slope(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        losses, at_start = knowledge.states, None if knowledge.rounds is None else knowledge.rounds.start_loss
        if losses is None:
            raise ValueError("the slope attack needs losses over rounds")
        return {"slope": -least_squares_slope(losses) if at_start is None else mean_of_finite(at_start - losses)}


def least_squares_slope(losses: Floats) -> Floats:
    """Slope [n] per record of its losses [T, n] over T evenly spaced rounds, in loss per round; NaN and infinite
    entries are left out; NaN with fewer than two left."""
    y = np.ma.masked_invalid(losses)
    t = np.ma.array(np.broadcast_to(np.arange(float(len(losses)))[:, None], losses.shape), mask=np.ma.getmaskarray(y))
    t = t - t.mean(0)
    slope = (t * (y - y.min(0))).sum(0) / (t**2).sum(0)  # minus the minimum, so that a constant has slope 0 exactly
    filled: Floats = slope.filled(np.nan)
    return filled
