"""Server-side client reconstruction: clients rebuilt from messages, then attacked by calibrated loss (FedRand, 4.2).

reconstruct         calibrated loss (loss before training - loss) under the last rebuilt state of the client.
reconstruct/rounds  its mean over all rebuilt states of the client. On LoRA.

Reports show it beside the same loss under the other adversaries' models. They say which clients can be rebuilt, how
stale the parts are, and how far the result is from the client's true model; a client that cannot be rebuilt has no
score. `attacks/messages/` tells what each way of rebuilding fills in for parts that the last message lacked, and how
parts that are never sent are computed from the gradients that are.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.attacks.loss import losses, over_rounds
from fedaudit.attacks.settings import RebuiltWays


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
    """Which models are queried: `ways` and `novel_rows`, see `attacks.settings`."""


class Reconstruct(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        scores = {f"reconstruct/{name}": values for name, values in over_rounds(knowledge).items()}
        return {"reconstruct": losses(knowledge)["loss/base"]} | scores
