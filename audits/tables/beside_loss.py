"""The table that compares attacks with the calibrated loss, which needs only the model and its public start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import Comparison, ScoredRun, comparisons
from fedaudit.audits.membership import difference, measure, simultaneous
from fedaudit.audits.verdicts import CALIBRATED
from fedaudit.terms.held_models import BEST_UTILITY, FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import WHOLE

COLUMNS = (
    "threat_model way signal auroc low high members nonmembers loss_way loss_auroc gain gain_low gain_high".split()
)


def beside_loss_table(run: ScoredRun, confidence: float) -> pd.DataFrame:
    """AUROC of every headline score and of the calibrated loss against held-out records, a row per score and model:
    auroc with low and high, loss_auroc of the calibrated loss on the same records under the same adversary, and `gain`,
    their difference, with gain_low and gain_high.

    Attacks on messages have no loss of their own: they are compared with that of the adversary's first kind of clients'
    models in FRESHEST that has it (`loss_way`). The intervals of gains hold all at once (Bonferroni over the table), so
    that the best of many attacks does not win by luck; a row of the calibrated loss itself has no gain. Empty without
    any gain.
    """
    rows = [c for c in comparisons(run) if c.nonmembers == HELD_OUT and c.population in WHOLE and c.way != BEST_UTILITY]
    signals = dict.fromkeys((*run.headline, CALIBRATED))
    pairs = [(c, s, beside) for c in rows for s in signals if s in c.scores for beside in _beside(rows, c)]
    measured = [
        (both, signal, beside.way) for c, signal, beside in pairs if (both := _on_both(c, signal, beside)).measurable
    ]
    level = simultaneous(confidence, max(1, sum(signal != CALIBRATED for _, signal, _ in measured)))
    table = []
    for c, signal, loss_way in measured:
        auroc = measure(c, c.scores[signal], confidence)
        loss = measure(c, c.scores[CALIBRATED], confidence).value
        gain: tuple[float, ...] = (np.nan, np.nan, np.nan)
        if signal != CALIBRATED:
            i = difference(c, c.scores[signal], c.scores[CALIBRATED], level)
            gain = (i.value, i.low, i.high)
        ends = (auroc.value, auroc.low, auroc.high, auroc.members, auroc.nonmembers)
        table.append((c.threat_model, c.way, signal, *ends, loss_way, loss, *gain))
    frame = pd.DataFrame(table, columns=COLUMNS)
    return frame if frame.gain.notna().any() else frame[:0]


def _beside(rows: Sequence[Comparison], c: Comparison) -> list[Comparison]:
    """The comparison, of `rows`, whose calibrated loss an attack on `c` is compared with, in a list: `c` itself, or
    that of the adversary's first kind of models in FRESHEST that has such a loss. Empty: there is none."""
    if CALIBRATED in c.scores:
        return [c]
    by_way = {o.way: o for o in rows if (o.threat_model, o.per_client) == (c.threat_model, c.per_client)}
    return [by_way[way] for way in FRESHEST if way in by_way and CALIBRATED in by_way[way].scores][:1]


def _on_both(c: Comparison, signal: str, beside: Comparison) -> Comparison:
    """The comparison `c` on those records that have the score and the calibrated loss of `beside`; that loss becomes
    one of its scores."""
    losses = pd.Series(beside.scores[CALIBRATED].to_numpy(), pd.MultiIndex.from_arrays([beside.client, beside.record]))
    loss = losses.reindex(pd.MultiIndex.from_arrays([c.client, c.record])).to_numpy()
    both = dataclasses.replace(c, scores=c.scores.assign(**{CALIBRATED: loss}))
    return both.with_values(np.where(np.isnan(loss), np.nan, both.scores[signal]))
