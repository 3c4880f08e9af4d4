"""Quantile, per record: its confidence among models not trained on it (Ye et al. 2022; Watson et al. 2022).

quantile               share of the shadow models without the record that are less confident, ties counted half: 1 minus
                       the p-value of "not a member". A threshold on it is a quantile of the record's own losses (Ye et
                       al., Enhanced Membership Inference Attacks, CCS 2022, attack R); no normal distribution is
                       assumed. Bertran et al. (NeurIPS 2023) learn this quantile by regression over records instead.
quantile/difficulty    mean loss under these models - loss: the loss calibrated by the record's difficulty (Watson et
                       al., On the Importance of Difficulty Calibration in Membership Inference Attacks, ICLR 2022). No
                       loss counts as more than 100 nats.
quantile/rounds        quantile/difficulty with the mean loss over all states that the adversary sees of the attacked
                       model instead of the last one's. The shadows are in their last state: this shifts all records of
                       a client alike. On LoRA.

If there are reference records, each model's confidences and losses are first centred and scaled by them
(`attacks.likelihood.on_one_scale`), which the papers do not do.

Needs shadow models. A record that all of them were trained on is NaN. `quantile` has ties: 26 levels with 25 models.
`quantile/difficulty` has none, but does not consider how much a record's loss varies from model to model.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.attacks.likelihood import Values, on_one_scale
from fedaudit.attacks.loss import mean_over_states

LARGEST = 100.0  # loss in nats, and confidence in absolute value


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


class Quantile(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        assert knowledge.shadows is not None
        out, losses = ~knowledge.shadows.member, np.minimum(knowledge.shadows.loss, LARGEST)

        def scaled(target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
            return on_one_scale(target, shadows, ~out, knowledge.known)

        def difficulty(target: Floats) -> Floats:
            """How far losses [n] lie below the mean loss of the shadows without the record, after `scaled`."""
            gain, gains = scaled(-target, -losses)
            return gain - Values.of(gains, out).mean

        target, shadows = (np.clip(one.confidence, -LARGEST, LARGEST) for one in (knowledge.answers, knowledge.shadows))
        target, shadows = scaled(target, shadows)
        below, equal = (out & (shadows < target)).sum(0), (out & (shadows == target)).sum(0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            rank = (below + equal / 2) / out.sum(0)
        scores = {"quantile": rank, "quantile/difficulty": difficulty(np.minimum(knowledge.loss, LARGEST))}
        if (mean := mean_over_states(knowledge, LARGEST)) is not None:
            scores["quantile/rounds"] = difficulty(mean)
        return scores
