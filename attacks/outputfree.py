"""Output-free: the released vectors alone, beside the gradients of the candidates; no model is asked anything.

Training on a record moves a prompt in the direction in which the record's loss falls. So we measure how far the
released prompt p has moved in that direction,
    x = <p - p_start, -g / |g|>    g: gradient of the record's loss at the mean of the shadows, which is where training
                                   ends for an adversary who does not know the members
and compare it with the same number of each shadow model: as LiRA judges a confidence (`attacks.likelihood`), record by
record. If there are reference records, each model's numbers are first centred and scaled by them.

outputfree              log-likelihood ratio of x, shadows with the record against those without it.
outputfree/offline      standardised distance of x from the shadows without the record.
outputfree/projection   x minus its mean over all shadows.

In the spirit of PIPRA (Bian et al., Your Prompts Are Not Safe, AAAI 2026), the first attack without outputs, which
learns a common space of prompts and images instead. The adversary needs the public backbone, through which it
differentiates, and shadow models; of the target it has the vectors only.

A record without gradient is NaN. So is one that all shadows or none were trained on, except for outputfree/projection.
"""

from dataclasses import dataclass

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.attacks.likelihood import likelihood_ratios, on_one_scale


class Facts(AttackFacts):
    records = ("classes",)
    shadows = True
    vectors = True
    signals = (
        ("outputfree", "output-free", "the released vectors alone"),
        ("outputfree/offline", "output-free, offline", "the released vectors alone (offline)"),
        ("outputfree/projection", "output-free, projection", "the released vectors' projection on its gradient"),
    )


@dataclass(frozen=True)
class Params:
    """The output-free attack has no parameters."""


class OutputFree(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.projections is None or knowledge.shadows is None or knowledge.shadows.projections is None:
            raise ValueError("the output-free attack needs projections on records' gradients, of shadow models too")
        member = knowledge.shadows.member
        target, shadows = on_one_scale(knowledge.projections, knowledge.shadows.projections, member, knowledge.known)
        online, offline = likelihood_ratios(target, shadows, member)
        return dict(zip(Facts.names(), (online, offline, target - shadows.mean(0)), strict=True))
