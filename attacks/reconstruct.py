"""Server-side client reconstruction: clients rebuilt from messages, then attacked by calibrated loss (FedRand, 4.2).

Needs the server's view (uploads). The report says who can be rebuilt, how stale the parts are and how far the result is
from the owner's true model; a client that cannot be rebuilt gets no number. `attacks.rebuild` says what each way takes
for the parts that a last message did not hold.
"""

from dataclasses import dataclass, field

from attacks.attacked_models import Model
from attacks.base import View
from attacks.settings import NovelRows
from attacks.tokens.attack import TokenAttack


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

    def __init__(self, params: Params) -> None:
        self.params, self.novel_rows = params, params.novel_rows

    def models(self, view: View) -> list[Model]:
        found = super().models(view)
        wanted = {"base", "exact", "final", "best utility", "true state", self.params.ways}
        return found if self.params.ways == "all" else [model for model in found if model.way in wanted]
