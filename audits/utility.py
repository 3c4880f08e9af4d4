"""Utility audit: accuracy of every client's model on its own classes, its neighbours' and all, over the last rounds.

*local* measures personalisation, *neighbour* generalisation (DP-FPL, section 4.1). The value is the mean over clients
of each client's mean over the last rounds; the interval is Student's over the clients, whose prompts share a global
part and whose test images are the same: it says how much clients differ, not how much another training would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from audits.facts import AuditFacts
from audits.findings import Accuracy, Names
from audits.settings import Confident
from audits.subject import Result, Subject
from fedaudit.machinery.parameters import whole
from fedaudit.privacy.ledger import strict
from fedaudit.terms.splits import SPLITS
from trainers.transcript import Transcript


class Facts(AuditFacts):
    needs = ("classes",)
    after = ("epsilon",)


@dataclass(frozen=True)
class Params(Confident):
    last: int = whole(10, "last rounds that a reported accuracy averages (DP-FPL: 10)", least=1, most=10**6)


def utility(subject: Subject, params: Params) -> Result:
    """How good a training's models are, and what they were noised by."""
    table = accuracies(subject.transcript)
    noised = subject.before.get("epsilon")
    spent = subject.privacy.epsilon if subject.privacy else math.inf
    noise = noised.tables["noise"] if noised else None
    return Result(findings(table, noise, params, epsilon=spent, names=subject.names), {"accuracy": table})


def findings(
    accuracy: pd.DataFrame, noise: pd.DataFrame | None, params: Params, *, epsilon: float, names: Names
) -> list[Accuracy]:
    """A finding per split; `names` holds run, method, task and seed, `epsilon` set the noise of the table `noise`."""
    rounds = sorted(accuracy["round"].unique())[-params.last :]
    recent = accuracy[accuracy["round"].isin([r for r in rounds if r >= 0]) & (accuracy.client != "mean")]
    start = accuracy[(accuracy["round"] == -1) & (accuracy.client == "mean")].set_index("split").accuracy
    found = []
    for split in (s for s in SPLITS if (recent.split == s).any()):
        clients = recent[recent.split == split].groupby("client").accuracy.mean().to_numpy()
        found.append(
            over_clients(
                names,
                split.metric,
                clients,
                confidence=params.confidence,
                epsilon=epsilon,
                before=float(start[split]) if split in start else None,
                rounds=len([r for r in rounds if r >= 0]),
                noise_ratio=strict(float(noise.ratio.max())) if noise is not None and len(noise) else None,
                clipped=None if noise is None else _largest(noise.clipped),
            )
        )
    return found


def over_clients(
    names: Names,
    metric: str,
    values: NDArray[np.float64],
    *,
    confidence: float,
    epsilon: float,
    least: float = 0.0,
    before: float | None = None,
    rounds: int = 1,
    noise_ratio: float | str | None = None,
    clipped: float | None = None,
) -> Accuracy:
    """The mean of percentages [clients], at least one, that lie between `least` and 100, with Student's interval; the
    other numbers as `Accuracy` has them."""
    low, high = mean_interval(values, confidence, least=least)
    return Accuracy(
        **names,
        metric=metric,
        value=float(values.mean()),
        low=low,
        high=high,
        confidence=confidence,
        before=before,
        clients=len(values),
        rounds=rounds,
        epsilon=strict(epsilon),
        noise_ratio=noise_ratio,
        clipped=clipped,
        interval="Student's t over clients",
    )


def _largest(shares: pd.Series) -> float | None:
    """None where nothing was clipped, or no gradient was there to be."""
    return float(shares.max()) if shares.notna().any() else None


def mean_interval(values: Any, confidence: float, *, least: float = 0.0) -> tuple[float | None, float | None]:
    """Student's interval of the mean of independent percentages, cut at `least` and 100; None for a single one."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None, None
    half = float(t.ppf((1 + confidence) / 2, n - 1) * np.std(values, ddof=1) / n**0.5)
    middle = float(np.mean(values))
    return max(least, middle - half), min(100.0, middle + half)


def accuracies(transcript: Transcript) -> pd.DataFrame:
    """Accuracy (percent) by round (-1 = before training), client ("mean" over the cohort) and split."""
    by_round = [(-1, transcript.initial["utility"])]
    by_round += [(r, transcript.round(r)["utility"]) for r in range(transcript.schedule.rounds)]
    rows = [
        (r, "mean" if client == "clients" else client, split, value)
        for r, found in by_round
        for client, splits in found.items()
        for split, value in splits.items()
    ]
    return pd.DataFrame(rows, columns=["round", "client", "split", "accuracy"])
