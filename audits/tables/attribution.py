"""Whether a server that sees messages can tell whose record it is: how often source inference names the right client.

Guessing is right once in so many clients as a record is looked for among: those that sent something which could be
rebuilt in the rounds that are looked at. Where that is the record's own client alone, nothing is told apart, and the
record is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from scipy.stats import binomtest, t

from audits.comparisons import FEW, ScoredModel, ScoredRun
from fedaudit.tasks.base import client_name
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.record_kinds import CANDIDATES

COLUMNS = "way client kind accuracy low high n chance".split()


def attribution_table(run: ScoredRun, confidence: float) -> pd.DataFrame:
    """The share of each target's records that are given to it, of its members and of what was held out, with intervals
    over its records; where all clients are attacked first their mean, with an interval over clients.

    Of several ways to rebuild clients, the freshest of those that reach half of them.
    """
    table = pd.DataFrame([row for model in _asking(run) for row in _rows(run, model, confidence)], columns=COLUMNS)
    kinds = [rows for _, rows in table.groupby("kind", sort=False) if len(rows) > FEW and not run.few]
    means = pd.DataFrame([_mean(rows, confidence) for rows in kinds], columns=COLUMNS)
    return pd.concat([means, table], ignore_index=True) if len(means) else table


def _asking(run: ScoredRun) -> list[ScoredModel]:
    """The models whose adversary asked several clients' models about their records, rebuilt in one way."""
    several = [m for m in run.models if m.facts is not None and "owners" in m.facts and (m.facts.owners > 1).any()]
    reached = {way: sum(m.way == way for m in several) for way in FRESHEST}
    first = next((way for way in FRESHEST if reached[way] and 2 * reached[way] >= max(reached.values())), None)
    return [m for m in several if m.way == first]


def _rows(run: ScoredRun, model: ScoredModel, confidence: float) -> Iterator[tuple[object, ...]]:
    assert model.client is not None
    assert model.facts is not None
    kinds = run.kinds(model.client)
    for kind in CANDIDATES:
        facts = model.facts.reindex([r for r, is_kind in kinds.items() if is_kind == kind])
        facts = facts[facts.owners > 1]
        if len(facts):
            right = int((facts.owner == model.client).sum())
            low, high = binomtest(right, len(facts)).proportion_ci(confidence)
            place = model.way, client_name(model.client), kind
            yield *place, right / len(facts), low, high, len(facts), (1 / facts.owners).mean()


def _mean(rows: pd.DataFrame, confidence: float) -> tuple[object, ...]:
    mean = rows.accuracy.mean()
    error = t.ppf((1 + confidence) / 2, len(rows) - 1) * rows.accuracy.sem()
    place = rows.way.iloc[0], f"mean of {len(rows)} clients", rows.kind.iloc[0]
    return *place, mean, max(0.0, mean - error), min(1.0, mean + error), rows.n.sum(), rows.chance.mean()
