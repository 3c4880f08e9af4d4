"""ProjRes: what entered a layer in training lies in the span of its change (Deng et al. 2026, arXiv 2604.21197).

An SGD step adds multiples of its batch's layer inputs x to the rows of A: the gradient is B^T sum_t d_t x_t^T. So the
rows of the change of A, which a client sends, lie in the span of the inputs of its training records, and span at most
as many directions as the rank. The score is minus the relative residual |x - P x| / |x|, P the projection on these
rows, of a record's inputs in the model from which the client started the round; a mean over the tokens that predict its
text, over layers, and over the observed rounds.

- Exact after one SGD step whose batch has no more inputs than the rank: a member's residual is 0. With more inputs the
  change spans fewer directions than they do, and only a part of a member's inputs lies in it.
- With B = 0 A does not move in the first step. Layers in which A did not move are left out, and so are rounds in which
  none moved.
- AdamW divides every entry of the gradient by its own size and sums over steps: the rows of its change lie in no span
  of inputs. docs/benchmarks/attacks-on-lora.md tells what is left after 1, 4 and 8 of its steps.

Needs the server's view (uploads), and rounds in which the client sent A.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, mean_of_finite


class Facts(AttackFacts):
    records = ("texts",)
    strength = 1
    needs = ("uploads",)
    signals = (("projres", "projection residual", "the projection residual on what its client's adapters changed by"),)


@dataclass(frozen=True)
class Params:
    """The projection residual has no parameters."""


class ProjRes(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.rounds is None or knowledge.rounds.residual is None:
            raise ValueError("the projection residual needs what was seen of rounds")
        return {"projres": -mean_of_finite(knowledge.rounds.residual)}
