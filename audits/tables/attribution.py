"""The table of a report about source inference: how often a server that sees messages names a record's client.

A record is looked for among the clients that sent something which could be rebuilt in the attacked rounds; of n clients
chance names the right one once in n times. Records with their own client as the only candidate are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from scipy.stats import binomtest

from fedaudit.audits.comparisons import FEW, ScoredModel, ScoredRun
from fedaudit.audits.statistics.intervals import quantile
from fedaudit.tasks.base import client_name
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.record_kinds import CANDIDATES

COLUMNS = "way client kind accuracy low high n chance".split()


def attribution_table(run: ScoredRun, confidence: float) -> pd.DataFrame:
    """The share of records that are attributed to their client: a row per attacked client and kind (members, held-out
    records), with intervals over records. If all clients are attacked, rows for their mean come first, with intervals
    over clients. Records with one candidate client are left out.

    Columns: way (kind of rebuilt model, the same in all rows), client, kind, accuracy with low and high, n records, and
    chance (accuracy of guessing). No rows if no model tells owners among several clients.
    """
    table = pd.DataFrame([row for model in _asking(run) for row in _rows(run, model, confidence)], columns=COLUMNS)
    kinds = [rows for _, rows in table.groupby("kind", sort=False) if len(rows) > FEW and not run.few]
    means = pd.DataFrame([_mean(rows, confidence) for rows in kinds], columns=COLUMNS)
    return pd.concat([means, table], ignore_index=True) if len(means) else table


def _asking(run: ScoredRun) -> list[ScoredModel]:
    """The models whose facts tell each record's owner among several clients. All are of one kind, the first in FRESHEST
    (an order of preference) with at least half as many such models as any; empty if there are none."""
    several = [m for m in run.models if m.facts is not None and "owners" in m.facts and (m.facts.owners > 1).any()]
    reached = {way: sum(m.way == way for m in several) for way in FRESHEST}
    first = next((way for way in FRESHEST if reached[way] and 2 * reached[way] >= max(reached.values())), None)
    return [m for m in several if m.way == first]


def _rows(run: ScoredRun, model: ScoredModel, confidence: float) -> Iterator[tuple[object, ...]]:
    """Yield the rows of one client in the attribution table, for members and for held-out records, where there are
    any."""
    assert model.client is not None
    assert model.facts is not None
    kinds = run.kinds(model.client)
    for kind in CANDIDATES:
        facts = model.facts.reindex([r for r, is_kind in kinds.items() if is_kind == kind])
        facts = facts[facts.owners > 1]
        if len(facts):
            right = int((facts.owner == model.client).sum())
            low, high = binomtest(right, len(facts)).proportion_ci(confidence)
            yield (
                model.way,
                client_name(model.client),
                kind,
                right / len(facts),
                low,
                high,
                len(facts),
                (1 / facts.owners).mean(),
            )


def _mean(rows: pd.DataFrame, confidence: float) -> tuple[object, ...]:
    """The attribution table's row of the mean over clients, from their rows of one kind."""
    mean = rows.accuracy.mean()
    error = quantile(len(rows) - 1, confidence) * rows.accuracy.sem()
    name = f"mean of {len(rows)} clients"
    return (
        rows.way.iloc[0],
        name,
        rows.kind.iloc[0],
        mean,
        max(0.0, mean - error),
        min(1.0, mean + error),
        rows.n.sum(),
        rows.chance.mean(),
    )
