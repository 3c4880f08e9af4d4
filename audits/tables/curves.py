"""The tables behind figures of the attacks' success: ROC curves with bands, AUROCs by client and by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.audits.comparisons import Comparison, ScoredRun, by_round
from fedaudit.audits.membership import measure
from fedaudit.audits.statistics.ranking import client_auroc
from fedaudit.audits.statistics.roc_curves import Band, client_roc_band, mean_roc_band, roc_band
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import LAST_ROUND_MEMBERS

CURVE_POINTS = 40
ROUNDS = "round population signal auroc low high members".split()
CLIENTS = "threat_model way client signal auroc members nonmembers".split()


def rounds_table(run: ScoredRun, confidence: float) -> pd.DataFrame:
    """AUROC of the released model after each attacked round, a row per round, population and headline score: round,
    population, signal, auroc, low, high, members. Only scores that the models of all rounds have, and rows with enough
    members and non-members to be measured."""
    table, rows = [], by_round(run)
    for row in rows:
        for signal in (s for s in run.headline if all(s in other.scores for other in rows)):
            c = row.with_values(row.scores[signal])
            if c.measurable:
                i = measure(c, c.scores[signal], confidence)
                table.append((c.round, c.population, signal, i.value, i.low, i.high, i.members))
    return pd.DataFrame(table, columns=ROUNDS)


def clients_table(rows: Sequence[Comparison], signals: Sequence[str]) -> pd.DataFrame:
    """AUROC between every client's members and held-out records, a row per model, client and score: threat_model, way
    (kind of model), client, signal, auroc, members, nonmembers. Without clients that lack either, and without the
    comparisons of the last round's members."""
    table = []
    for row in (c for c in rows if c.nonmembers == HELD_OUT and c.population != LAST_ROUND_MEMBERS):
        for signal in (s for s in signals if s in row.scores):
            c = row.with_values(row.scores[signal])
            values = client_auroc(c.scores[signal], c.member, c.client)[1] if c.measurable else {}
            for client, auroc in values.items():
                of_client = c.member[c.client == client]
                counts = int(of_client.sum()), int((~of_client).sum())
                table.append((c.threat_model, c.way, str(client), signal, auroc, *counts))
    return pd.DataFrame(table, columns=CLIENTS)


def curve(row: Comparison, signal: str, confidence: float) -> pd.DataFrame:
    """The ROC curve of a score on a comparison with its band, a row per FPR: fpr, tpr, low, high, at CURVE_POINTS FPRs
    from `floor`, the smallest that can be measured, to 1; the other columns name the comparison and the score."""
    c = row.with_values(row.scores[signal])
    sizes = [int((~c.member[c.client == name]).sum()) for name in np.unique(c.client)]
    floor = 1 / (min(filter(None, sizes)) if c.per_client else sum(sizes))
    grid = np.geomspace(floor, 1, CURVE_POINTS)
    tpr, low, high = _band(c, c.scores[signal].to_numpy(), grid, confidence)
    where = {name: getattr(c, name) for name in ("threat_model", "way", "population", "nonmembers")}
    return pd.DataFrame({**where, "signal": signal, "fpr": grid, "tpr": tpr, "low": low, "high": high, "floor": floor})


def _band(c: Comparison, values: NDArray[np.float64], grid: NDArray[np.float64], confidence: float) -> Band:
    """ROC curve and band on the grid: a bootstrap for a shared model; for one model per client the mean of the clients'
    curves, with a t interval over clients, or a bootstrap of records if the clients are few."""
    if c.per_client:
        band = client_roc_band if c.unit == "records" else mean_roc_band
        return band(values, c.member, c.client, fpr_grid=grid, confidence=confidence)
    clients = np.zeros(len(c.member)) if c.unit == "records" else c.client
    return roc_band(values, c.member, clients, fpr_grid=grid, confidence=confidence)
