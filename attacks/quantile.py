"""Quantile, per record: its confidence among models not trained on it (Ye et al. 2022; Watson et al. 2022).

quantile               share of the shadow models without the record that are less confident, ties counted half: 1 minus
                       the p-value of "not a member". A threshold on it is a quantile of the record's own losses (Ye et
                       al., Enhanced Membership Inference Attacks, CCS 2022, attack R); no normal distribution is
                       assumed. Bertran et al. (NeurIPS 2023) learn the same quantile by regression over records
                       instead.
quantile/difficulty    mean loss of those models - loss: the loss calibrated by how hard the record is (Watson et al.,
                       On the Importance of Difficulty Calibration in Membership Inference Attacks, ICLR 2022). A loss
                       counts as at most 100 nats.
quantile/rounds        the same over all states that the adversary sees of what it attacks, their mean loss in the place
                       of the last one's: the shadows are in their last state, and the order of a client's records does
                       not depend on how far earlier ones lie above it. On LoRA.

Where there are reference records, each model's own level and spread are taken out of its confidences and losses first
(`attacks.likelihood.on_one_scale`): ours, the papers have none of it.

Needs shadow models. Records that all of them were trained on are nan. `quantile` ties: with 25 models it has 26 levels.
`quantile/difficulty` does not, but takes a nat for a nat in records whose loss varies much and little from model to
model.
"""

from dataclasses import dataclass

import numpy as np

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge
from attacks.likelihood import Values, on_one_scale
from attacks.loss import mean_over_states

LARGEST = 100.0  # loss in nats, and confidence


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    shadows = True
    rounds = True
    signals = (
        ("quantile", "quantile", "its confidence among shadow models without it"),
        ("quantile/difficulty", "quantile, difficulty", "the loss calibrated by the record's difficulty"),
        ("quantile/rounds", "quantile, all rounds", "the loss of all rounds calibrated by the record's difficulty"),
    )


@dataclass(frozen=True)
class Params:
    """The quantile attack has no parameters."""


class Quantile:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        assert seen.shadows is not None
        out, losses = ~seen.shadows.member, np.minimum(seen.shadows.loss, LARGEST)

        def scaled(target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
            return on_one_scale(target, shadows, ~out, seen.known)

        def difficulty(target: Floats) -> Floats:
            """By how much [n] losses lie below their means over the shadows without the record."""
            gain, gains = scaled(-target, -losses)
            return gain - Values.of(gains, out).mean

        target, shadows = (np.clip(one.confidence, -LARGEST, LARGEST) for one in (seen.answers, seen.shadows))
        target, shadows = scaled(target, shadows)
        below, equal = (out & (shadows < target)).sum(0), (out & (shadows == target)).sum(0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            rank = (below + equal / 2) / out.sum(0)
        found = {"quantile": rank, "quantile/difficulty": difficulty(np.minimum(seen.loss, LARGEST))}
        if (mean := mean_over_states(seen, LARGEST)) is not None:
            found["quantile/rounds"] = difficulty(mean)
        return found
