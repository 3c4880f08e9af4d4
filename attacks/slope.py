"""Loss slope: the loss of records that are trained on falls faster from round to round.

The score is minus the least-squares slope of the record's loss over the observed rounds (nats per observed round): of
the target client's own model where its messages are seen, otherwise of the released global model, in which every
client's records take part. The loss trajectory as a membership signal: Nasr et al. 2019, section IV; Liu et al. 2022
("Membership inference attacks by exploiting loss trajectory").

Where the server sees whole participations of a client, begun with adapters that it sent, the slope is that within them:
how far the loss falls from where the client began to what it sent, a mean over its participations (the least-squares
slope with a level of its own for each).

Needs the broadcasts of a run. Rounds without the client are left out; with fewer than two left nothing can be said.
"""

from dataclasses import dataclass

import numpy as np

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    needs = ("broadcasts",)
    signals = (("slope", "loss slope", "the slope of the loss over rounds"),)


@dataclass(frozen=True)
class Params:
    """The slope attack has no parameters."""


class Slope:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        losses, began = seen.states, None if seen.rounds is None else seen.rounds.began
        if losses is None:
            raise ValueError("the slope attack needs losses over rounds")
        if began is None:
            return {"slope": -least_squares_slope(losses)}
        return {"slope": np.ma.masked_invalid(began - losses).mean(0).filled(np.nan)}


def least_squares_slope(losses: Floats) -> Floats:
    """Slopes [n] over T evenly spaced rounds of losses [T, n]; nan entries are left out, with fewer than two entries
    nan."""
    y = np.ma.masked_invalid(losses)
    t = np.ma.array(np.broadcast_to(np.arange(float(len(losses)))[:, None], losses.shape), mask=np.ma.getmaskarray(y))
    t = t - t.mean(0)
    slope = (t * (y - y.min(0))).sum(0) / (t**2).sum(0)  # less the minimum, so that a constant is exactly flat
    found: Floats = slope.filled(np.nan)
    return found
