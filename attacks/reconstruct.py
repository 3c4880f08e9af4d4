"""Server-side client reconstruction: clients rebuilt from messages, then attacked by calibrated loss (FedRand, 4.2).

What it adds is the server's; the same loss of the other adversaries' models stands beside it. The report says who can
be rebuilt, how stale the parts are and how far the result is from the owner's true model; a client that cannot be
rebuilt gets no number. `attacks.rebuild` says what each way takes for the parts that a last message did not hold,
`attacks.replay` how parts that are never sent follow from the gradients that are.
"""

from dataclasses import dataclass, field

import numpy as np

from attacks.attacked_models import Model
from attacks.base import View
from attacks.knowledge import Floats, Knowledge, own_class
from attacks.settings import NovelRows
from attacks.tokens.attack import TokenAttack

RECORDS = ("texts", "classes")
SIGNALS = {"reconstruct": ("reconstruction", "the loss of rebuilt clients calibrated by the untrained model")}


@dataclass(frozen=True)
class Params(NovelRows):
    ways: str = field(
        default="all", metadata={"help": "all, literal, newest or server-fill (exact where nothing is hidden)"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ways not in ("all", "literal", "newest", "server-fill"):
            raise ValueError(f"ways must be all, literal, newest or server-fill, not {self.ways!r}")


class Reconstruct(TokenAttack):
    signal = "loss-base/caption"
    signals = tuple(SIGNALS)

    def __init__(self, params: Params) -> None:
        self.params, self.novel_rows = params, params.novel_rows

    def models(self, view: View) -> list[Model]:
        found = super().models(view)
        wanted = {"base", "exact", "final", "best utility", "true state", self.params.ways}
        return found if self.params.ways == "all" else [model for model in found if model.way in wanted]

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        with np.errstate(invalid="ignore"):  # inf - inf
            return {"reconstruct": -seen.loss - own_class(seen.base, seen.labels)}
