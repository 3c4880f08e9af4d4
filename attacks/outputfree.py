"""Output-free: the released vectors alone, beside the gradients of the candidates; no model is asked anything.

Training on a record moves a prompt towards where the record's loss falls. So the score is how far the released prompt
lies in that direction,
    x = <p - p_start, -g / |g|>    g: gradient of the record's loss at the public start, moved as far as the shadows
                                   were on average: where training ends without knowing the members
beside the same number of each shadow model: as LiRA judges a confidence (`attacks.likelihood`), record by record, after
each model's own level and spread are taken out where there are reference records.

outputfree              log-likelihood ratio of x, shadows with the record against those without it.
outputfree/offline      standardised distance of x from the shadows without the record.
outputfree/projection   x less its mean over all shadows: of how far the prompt is from one step along each candidate.

In the spirit of PIPRA (Bian et al., Your Prompts Are Not Safe, AAAI 2026), the first attack without outputs, which
learns a common space of prompts and pictures instead. The adversary needs the public backbone, through which it
differentiates, and shadow models; of the target it has the vectors only.

Records without gradient, and, but for outputfree/projection, those without shadows of a kind, are nan.
"""

from dataclasses import dataclass

from attacks.facts import AttackFacts
from attacks.knowledge import Floats, Knowledge
from attacks.likelihood import likelihood_ratios, on_one_scale


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


class OutputFree:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        if seen.projections is None or seen.shadows is None or seen.shadows.projections is None:
            raise ValueError("the output-free attack needs projections on records' gradients, of shadow models too")
        member = seen.shadows.member
        target, shadows = on_one_scale(seen.projections, seen.shadows.projections, member, seen.known)
        online, offline = likelihood_ratios(target, shadows, member)
        return dict(zip(Facts.names(), (online, offline, target - shadows.mean(0)), strict=True))
