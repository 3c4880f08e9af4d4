"""ProjRes: what entered a layer in training lies in the span of its change (Deng et al. 2026, arXiv 2604.21197).

A step of SGD adds multiples of the inputs x of its batch to the rows of A: the gradient is B^T sum_t d_t x_t^T. So the
change of A, which a client sends, has its rows in the span of the inputs of the records that it was trained on, and at
most as many directions as the rank. Score: minus the relative projection residual |x - P x| / |x| of a record's own
inputs on the rows of the change, where the client began; a mean over the rows that predict its text, over the layers,
and over the observed rounds.

- Exact after one SGD step whose batch has no more inputs than the rank: residual 0 of a member. With more inputs the
  change has fewer directions than they span, and a member's residual is below 1 only in part.
- With B = 0 A does not move in the first step: such layers say nothing, and a round in which none moved is left out.
- AdamW divides every number of the gradient by its own size and sums over steps: rows of such a change lie in no span
  of inputs. docs/attacks.md has what is left after 1, 4 and 8 of its steps.

Needs the server's view (uploads), and rounds in which the client sent A.
"""

from dataclasses import dataclass

import numpy as np

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge

STILL = 1e-6  # of the length of A: a smaller change is weight decay's or rounding
FLAT = 1e-6  # of the largest singular value: directions below it are rounding


class Facts(AttackFacts):
    records = ("texts",)
    strength = 1
    needs = ("uploads",)
    signals = (("projres", "projection residual", "the projection residual on what its client's adapters changed by"),)


@dataclass(frozen=True)
class Params:
    """The projection residual has no parameters."""


class ProjRes:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.rounds is None or seen.rounds.residual is None:
            raise ValueError("the projection residual needs what was seen of rounds")
        return {"projres": -np.ma.masked_invalid(seen.rounds.residual).mean(0).filled(np.nan)}
