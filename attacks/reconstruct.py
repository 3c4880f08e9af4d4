"""Server-side client reconstruction: clients rebuilt from messages, then attacked by calibrated loss (FedRand, 4.2).

`reconstruct` is of the last state of each, `reconstruct/rounds`, on LoRA, the mean over all its rebuilt states.

What it adds is the server's; the same loss of the other adversaries' models stands beside it. The report says who can
be rebuilt, how stale the parts are and how far the result is from the owner's true model; a client that cannot be
rebuilt gets no number. `attacks/messages/` says what each way takes for the parts that a last message did not hold, and
how parts that are never sent follow from the gradients that are.
"""

from dataclasses import dataclass

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge
from attacks.loss import losses, over_rounds
from attacks.settings import RebuiltWays


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 2
    rounds = True
    signals = (
        ("reconstruct", "reconstruction", "the loss of rebuilt clients calibrated by the untrained model"),
        ("reconstruct/rounds", "reconstruction, all rounds", "the calibrated loss of clients rebuilt after each round"),
    )


@dataclass(frozen=True)
class Params(RebuiltWays):
    """`ways` and `novel_rows` say which models are asked."""


class Reconstruct:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        over = {f"reconstruct/{name}": values for name, values in over_rounds(seen).items()}
        return {"reconstruct": losses(seen)["loss/base"]} | over
