"""Utility audit: accuracy of every client's model on its own classes, its neighbours' and all, over the last rounds.

*local* measures personalisation, *neighbour* generalisation (DP-FPL, section 4.1). The value is the mean over clients
of each client's mean over the last rounds. The interval is Student's over the clients, whose prompts share a global
part and whose test images are the same: it says how much clients differ, not how much another training would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import Accuracy, Names
from fedaudit.audits.settings import Confident
from fedaudit.audits.statistics.intervals import quantile
from fedaudit.audits.subject import Result, Subject
from fedaudit.machinery.parameters import whole
from fedaudit.privacy.ledger import strict
from fedaudit.terms.splits import SPLITS
from fedaudit.trainers.transcript import Transcript


class Facts(AuditFacts):
    needs = ("classes",)
    after = ("epsilon",)


@dataclass(frozen=True)
class Params(Confident):
    last: int = whole(10, "last rounds that a reported accuracy averages (DP-FPL: 10)", least=1, most=10**6)


def utility(subject: Subject, params: Params) -> Result:
    """Findings of the accuracy on each split of test classes, and the table `accuracy` (see `accuracies`)."""
    table = accuracies(subject.transcript)
    privacy = subject.before.get("epsilon")
    noise = privacy.tables["noise"] if privacy else None
    return Result(findings(table, noise, params, epsilon=subject.epsilon, names=subject.names), {"accuracy": table})


def findings(
    accuracy: pd.DataFrame, noise: pd.DataFrame | None, params: Params, *, epsilon: float, names: Names
) -> list[Accuracy]:
    """A finding per split that was measured: the mean over clients and the last `params.last` rounds. `accuracy` is the
    table of `accuracies`, `noise` that of `audits.epsilon.noise_table` (None: no ledger), `epsilon` what the noise was
    chosen for."""
    rounds = sorted(accuracy["round"].unique())[-params.last :]
    recent = accuracy[accuracy["round"].isin([r for r in rounds if r >= 0]) & (accuracy.client != "mean")]
    start = accuracy[(accuracy["round"] == -1) & (accuracy.client == "mean")].set_index("split").accuracy
    rows = []
    for split in (s for s in SPLITS if (recent.split == s).any()):
        clients = recent[recent.split == split].groupby("client").accuracy.mean().to_numpy()
        rows.append(
            dataclasses.replace(
                over_clients(names, split.metric, clients, confidence=params.confidence, epsilon=epsilon),
                before=float(start[split]) if split in start else None,
                rounds=len([r for r in rounds if r >= 0]),
                noise_ratio=strict(float(noise.ratio.max())) if noise is not None and len(noise) else None,
                clipped=None if noise is None else _largest(noise.clipped),
            )
        )
    return rows


def over_clients(
    names: Names, metric: str, values: NDArray[np.float64], *, confidence: float, epsilon: float, least: float = 0.0
) -> Accuracy:
    """The finding, under `metric`, of the mean of percentages `values`, one per client (at least one), with Student's
    interval cut at `least` and 100; `low` and `high` are None for one client."""
    low, high = mean_interval(values, confidence, least=least)
    return Accuracy(
        **names,
        metric=metric,
        value=float(values.mean()),
        low=low,
        high=high,
        confidence=confidence,
        clients=len(values),
        epsilon=strict(epsilon),
        interval="Student's t over clients",
    )


def columns_over_clients(
    subject: Subject, table: pd.DataFrame, differences: Collection[str], confidence: float, prefix: str = ""
) -> list[Accuracy]:
    """A finding per column of `table`, which holds percentages of clients: their mean, NaN left out, under the metric
    `prefix` + column. Intervals end at 0, or -100 for columns in `differences`. Columns of NaN are left out."""
    rows = []
    for name in table.columns[table.notna().any()]:
        values, least = table[name].dropna().to_numpy(), -100.0 if name in differences else 0.0
        names = subject.names, f"{prefix}{name}"
        rows.append(over_clients(*names, values, confidence=confidence, epsilon=subject.epsilon, least=least))
    return rows


def _largest(shares: pd.Series) -> float | None:
    """The largest share; None if all are NaN: nothing was clipped, or there was no gradient."""
    return float(shares.max()) if shares.notna().any() else None


def mean_interval(values: Any, confidence: float, *, least: float = 0.0) -> tuple[float | None, float | None]:
    """Student's interval of the mean of independent percentages, cut at `least` and 100; None for fewer than two."""
    n = len(values)
    if n < 2:
        return None, None
    half = float(quantile(n - 1, confidence) * np.std(values, ddof=1) / n**0.5)
    middle = float(np.mean(values))
    return max(least, middle - half), min(100.0, middle + half)


def accuracies(transcript: Transcript) -> pd.DataFrame:
    """The table of accuracies in percent with the columns round (-1: before training), client ("mean": over the round's
    clients), split and accuracy."""
    by_round = [(-1, transcript.initial["utility"])]
    by_round += [(r, transcript.round(r)["utility"]) for r in range(transcript.schedule.rounds)]
    rows = [
        (r, "mean" if client == "clients" else client, split, value)
        for r, by_client in by_round
        for client, splits in by_client.items()
        for split, value in splits.items()
    ]
    return pd.DataFrame(rows, columns=["round", "client", "split", "accuracy"])
