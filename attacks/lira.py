"""LiRA: is the confidence that of a model trained on the record, or of one that was not (Carlini et al. 2022).

The confidence phi = log(p_y / (1 - p_y)) is nearly normal over models. Over the shadow models with the record and over
those without it,
    lira/online     log N(phi; mu_in, sigma_in) - log N(phi; mu_out, sigma_out)         Algorithm 1
    lira/offline    (phi - mu_out) / sigma_out                                           eq. 4
(Membership Inference Attacks From First Principles, S&P 2022). The paper's offline score 1 - Pr[N(mu_out, sigma_out) >
phi] is an increasing function of ours, which ranks equally and does not round to 1 for the strongest members. Of a text
phi is the mean log p of its learnt tokens.

Needs shadow models. Records that no shadow was trained on are nan online, those that all were trained on are nan in
both.

With few models the variance of one record is a poor estimate: below 64 shadow models sigma_in and sigma_out are common
to all records (section VI), here of the deviations from each record's own mean (the released code's also holds the
spread between records). From 64 on each record has its own; one with a single value takes the common one. Both are
unbiased and at least 1e-6, less than which a confidence is not known from float32, so that equal confidences give a
large finite score. phi is clipped to +-100: a probability of 0 or 1 would have no variance.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from attacks.knowledge import Floats, Knowledge

RECORDS = ("texts", "classes")
STRENGTH = 4
SHADOWS = True
SIGNALS = {
    "lira/online": ("LiRA, online", "LiRA (online)"),
    "lira/offline": ("LiRA, offline", "LiRA (offline)"),
}
LARGEST = 100.0  # confidence
SMALLEST = 1e-6  # standard deviation of the confidence
ENOUGH = 64  # shadow models for a variance of each record's own


@dataclass(frozen=True)
class Params:
    variance: str = field(
        default="auto", metadata={"help": "fixed, per-record, or auto = per-record from 64 shadow models on"}
    )

    def __post_init__(self) -> None:
        if self.variance not in ("auto", "fixed", "per-record"):
            raise ValueError(f"variance must be auto, fixed or per-record, not {self.variance!r}")


class LiRA:
    signals = tuple(SIGNALS)

    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, seen: Knowledge) -> dict[str, Floats]:
        assert seen.shadows is not None
        member = seen.shadows.member
        enough = len(member) >= ENOUGH
        per_record = {"auto": enough, "fixed": False, "per-record": True}[self.params.variance]
        target, shadows = (
            np.clip(found, -LARGEST, LARGEST) for found in (seen.answers.confidence, seen.shadows.confidence)
        )
        return dict(zip(self.signals, likelihood_ratios(target, shadows, member, per_record=per_record), strict=True))


def likelihood_ratios(
    target: Floats, shadows: Floats, member: NDArray[np.bool_], *, per_record: bool
) -> tuple[Floats, Floats]:
    """Online and offline score [n] of confidences [n] under the attacked model and [S, n] under the shadows, of which
    some had the record [S, n]."""
    mean_in, std_in = _normal(shadows, member, per_record=per_record)
    mean_out, std_out = _normal(shadows, ~member, per_record=per_record)
    online = norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean_out, std_out)
    return online, (target - mean_out) / std_out


def _normal(values: Floats, used: NDArray[np.bool_], *, per_record: bool) -> tuple[Floats, Floats]:
    """Mean and standard deviation [n] of the used values [S, n] of each record; nan for records without any."""
    count = used.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0
        mean = np.where(used, values, 0.0).sum(0) / count
        squares = np.where(used, (values - mean) ** 2, 0.0).sum(0)
        common = squares.sum() / np.maximum(count - 1, 0).sum()
        own = np.where(count > 1, squares / (count - 1), common)
    variance = own if per_record else np.full(len(mean), common)
    return mean, np.maximum(np.sqrt(variance), SMALLEST)
