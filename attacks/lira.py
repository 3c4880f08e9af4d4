"""LiRA: is the confidence that of a model trained on the record, or of one that was not (Carlini et al. 2022).

The confidence phi = log(p_y / (1 - p_y)) is nearly normal over models. Among the shadow models trained with the record
and among those trained without it,
    lira/online     log p(phi | with it) - log p(phi | without it)       Algorithm 1
    lira/offline    (phi - mu_out) / sigma_out                            eq. 4
(Membership Inference Attacks From First Principles, S&P 2022). The paper's offline score 1 - Pr[N(mu_out, sigma_out) >
phi] is an increasing function of ours, which ranks equally and does not round to 1 for the strongest members. For a
text phi is the mean log p of its learnt tokens.

Needs shadow models. A record that no shadow was trained on is NaN online, one that all were trained on is NaN in both.

With few models the variance of one record is a poor estimate, and one variance for all is wrong where records differ.
The paper switches between them at 64 models. Here each record's mean and variance have a prior, fitted to all records,
and p is Student's t (`attacks.likelihood`; Brännvall 2026, arXiv:2603.11799). If there are reference records, each
model's phi are first centred and scaled by them, because what its whole federation had in common is no sign of a
member. `--variance fixed` and `per-record` are the paper's own variants, without either. phi is clipped to +-100, as it
is infinite for a probability of 0 or 1.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.attacks.likelihood import likelihood_ratios, on_one_scale
from fedaudit.machinery.parameters import Parameters, choice

LARGEST = 100.0  # confidence, in absolute value


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 4
    shadows = True
    signals = (("lira/online", "LiRA, online", "LiRA (online)"), ("lira/offline", "LiRA, offline", "LiRA (offline)"))


@dataclass(frozen=True)
class Params(Parameters):
    variance: str = choice(
        "prior",
        "prior: each record's own, by a prior fitted to all; fixed: one of all",
        ("prior", "fixed", "per-record"),
    )


class LiRA:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        assert knowledge.shadows is not None
        target, shadows = (
            np.clip(values, -LARGEST, LARGEST)
            for values in (knowledge.answers.confidence, knowledge.shadows.confidence)
        )
        if self.params.variance == "prior":
            target, shadows = on_one_scale(target, shadows, knowledge.shadows.member, knowledge.known)
        ratios = likelihood_ratios(target, shadows, knowledge.shadows.member, variance=self.params.variance)
        return dict(zip(Facts.names(), ratios, strict=True))
