"""RMIA: how many known non-members has training raised less than the record (Zarifzadeh et al. 2024).

    LR(x, z) = (Pr(x | theta) / Pr(x)) / (Pr(z | theta) / Pr(z))       eq. 2
    score(x) = share of the population z with LR(x, z) >= gamma        eq. 3
(Low-Cost High-Power Membership Inference Attacks, ICML 2024), where Pr(x | theta) = p_y, for a text the geometric mean
over its learnt tokens. The population is the reference records: known non-members of the client's own distribution.
Pr(x) is estimated from shadow models:
    rmia/online     half the mean over shadows with x + half the mean over those without it: (Pr_in(x) + Pr_out(x)) / 2
    rmia/offline    ((1 + a) Pr_out(x) + (1 - a)) / 2, which takes a Pr_out(x) + (1 - a) for Pr_in(x)       appendix B.2
No shadow was trained on a reference record, so Pr(z) has the offline form in both. A reference record is scored like
any other, with itself among the m records z: with gamma <= 1 its score is 1/m too high, which is conservative for a
threshold. Records that dominate equally many z are ordered by their own ratio LR = Pr(x | theta) / Pr(x): we add
LR / (1 + LR) / 2m, at most half a level.

The paper takes gamma = 2 and, for image classifiers that memorise their members, a = 0.3. If one record changes a model
little, such as a prompt of few parameters, no ratio reaches 2, and a = 0.3 ranks records by how hard they are. So by
default gamma is 1, and a is fitted to the shadow models: least squares of 1 - Pr_in = a (1 - Pr_out) over the records
that have both, near 1 if members are hardly likelier than other records.

Needs shadow models and reference records. A record that no shadow was trained on is NaN online, one that all were
trained on is NaN in both.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.machinery.parameters import Parameters, number

TIE = 1e-10  # log-ratios that differ by less count as equal: rounding of sums in another order


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 3
    shadows = True
    signals = (("rmia/online", "RMIA, online", "RMIA (online)"), ("rmia/offline", "RMIA, offline", "RMIA (offline)"))


@dataclass(frozen=True)
class Params(Parameters):
    gamma: float = number(
        1.0, "ratio from which a record counts as raised more than another (paper: 2)", above=0, most=10**6
    )
    offline_a: float = number(
        0.0, "a of the offline form, 0 = fitted to the shadow models (paper: 0.3)", least=0, most=1
    )


class RMIA:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        assert knowledge.shadows is not None
        target, shadows = -knowledge.loss, -knowledge.shadows.loss
        with np.errstate(invalid="ignore", divide="ignore"):  # log 0 for no model; inf - inf where all give 0
            member = knowledge.shadows.member
            inside, outside = (log_mean(shadows, used) for used in (member, ~member))
            a = self.params.offline_a or fit_a(np.exp(inside), np.exp(outside))
            online = target - (np.logaddexp(inside, outside) - math.log(2))
            offline = target - (np.logaddexp(math.log1p(a) + outside, np.log1p(-a)) - math.log(2))
            ratios = zip(Facts.names(), (online, offline), strict=True)
            return {name: share_dominated(ratio, offline[knowledge.known], self.params.gamma) for name, ratio in ratios}


def log_mean(log_p: Floats, used: NDArray[np.bool_]) -> Floats:
    """log of the mean probability [n] over the models where `used` [S, n], from log p [S, n]; NaN without any."""
    mean: Floats = logsumexp(log_p, 0, b=used) - np.log(used.sum(0))
    return mean


def fit_a(inside: Floats, outside: Floats) -> float:
    """Slope a, 0 to 1, of Pr_in against Pr_out [n], mean probabilities of n records among models with and without the
    record, through (1, 1); 1 if no record has both with Pr_out below 1."""
    both = ~np.isnan(inside + outside)
    not_in, not_out = 1 - inside[both], 1 - outside[both]
    squares = float(not_out @ not_out)
    return min(1.0, float(not_in @ not_out) / squares) if squares else 1.0


def share_dominated(log_x: Floats, log_z: Floats, gamma: float) -> Floats:
    """Share [n] of the m population ratios z that each ratio x exceeds by the factor gamma or more, plus
    x / (1 + x) / 2m, which breaks ties: the sum may exceed 1, by at most 1 / 2m.

    Ratios are natural logarithms [n] and [m]; z counts if log_x - log gamma + TIE >= log_z. NaN z are left out. NaN for
    a NaN x, or if there is no z. Sorting takes O((n + m) log m).
    """
    ordered = np.sort(log_z[~np.isnan(log_z)])
    level = np.searchsorted(ordered, log_x - math.log(gamma) + TIE, side="right") + expit(log_x) / 2
    return np.where(np.isnan(log_x) | (len(ordered) == 0), np.nan, level / max(len(ordered), 1))
