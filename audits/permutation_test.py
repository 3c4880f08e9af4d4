"""The permutation test of a run: do scores tell how the coins fell that decided which candidates are used?

Each score gets a statistic and a raw p-value. The largest statistic of each family, under every exchange of the coins,
is kept too: a report corrects p-values by it (`audits.verdicts`).

Families: *primary*, at most eight scores named beforehand: for each adversary, its freshest model that reaches half of
the clients, members against held-out records, the first two headline scores in the order of the attacks. *secondary*:
all other scores of all comparisons that coins decided, headline scores of other models too. *controls*: the base
model's scores beside them. One exchange of all coins of a run serves all scores of all families.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from audits.comparisons import Comparison, ScoredRun, comparisons
from audits.statistics.arrays import Bools, Floats
from audits.statistics.permutation import PERMUTATIONS, Scored, exchanged, p_value, standardised, weighted_auroc
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import WHOLE
from fedaudit.terms.threat_models import THREAT_MODELS

FAMILIES = ("primary", "secondary", "controls")
PRIMARY_EACH = 2  # scores for each of the four adversaries
EXCHANGES = 11  # the generator of the exchanges is seeded with (seed, EXCHANGES)

Row = tuple[str, ...]  # threat model, way, population, non-members, signal


@dataclass(frozen=True)
class Tested:
    """A score's statistic in standard deviations of its permutations, its raw two-sided p-value, and its family."""

    z: float
    p: float
    family: str


@dataclass(frozen=True, eq=False)
class ByCoin:
    """The tests of every score that coins decided, and of the base model's scores beside them; `largest` has a column
    per family and a row per exchange, the coins as they fell first: the largest absolute statistic."""

    scores: Mapping[Row, Tested]
    base: Mapping[Row, Tested]
    largest: pd.DataFrame


def row_of(c: Comparison, signal: str) -> Row:
    """The key of a score on a comparison: threat model, way, population, kind of non-members, signal."""
    return c.threat_model, c.way, c.population, c.nonmembers, signal


@functools.lru_cache(maxsize=1)
def by_coin(run: ScoredRun) -> ByCoin:
    """The permutation tests of a run; all parts are empty if no coins decided any comparison."""
    rows = [c for c in comparisons(run) if c.coin]
    if not rows:
        return ByCoin({}, {}, pd.DataFrame(columns=list(FAMILIES)))
    members, coin_index = exchanges(run)
    primary = primary_rows(rows, run.headline)
    scores = _statistics(rows, members, coin_index, "scores")
    base = _statistics(rows, members, coin_index, "base")
    family = {row: "primary" if row in primary else "secondary" for row in scores}
    of_family = {name: [z for row, z in scores.items() if family[row] == name] for name in FAMILIES[:2]}
    of_family["controls"] = [*base.values()]
    return ByCoin(
        {row: _tested(z, family[row]) for row, z in scores.items()},
        {row: _tested(z, "controls") for row, z in base.items()},
        pd.DataFrame({name: _largest(statistics, members) for name, statistics in of_family.items()}),
    )


def exchanges(run: ScoredRun, times: int = PERMUTATIONS) -> tuple[Bools, dict[str, int]]:
    """The coins of a run, whether each made its record a member, as they fell and then exchanged within strata, [1 +
    times, coins]; and {record id: index of its coin}."""
    names = list(run.coins)
    order = {coin: i for i, coin in enumerate(dict.fromkeys(coin for coin, _ in run.coins.values()))}
    coin_index = {record: order[run.coins[record][0]] for record in names}
    first = {coin_index[record]: record for record in reversed(names)}
    fell = [run.truth[first[i]] for i in range(len(order))]
    strata = [run.coins[first[i]][1] for i in range(len(order))]
    return exchanged(fell, strata, seed=(run.seed, EXCHANGES), times=times), coin_index


def primary_rows(rows: Sequence[Comparison], headline: Sequence[str]) -> set[Row]:
    """The keys (see `row_of`) of the scores in the primary family: per adversary the first PRIMARY_EACH of `headline`
    against held-out records, on its first kind of model in FRESHEST (an order of preference) that reaches half as many
    clients as any. They do not depend on how coins fell."""
    primary = set()
    for threat in THREAT_MODELS:
        held_out = [c for c in rows if c.threat_model == threat and c.nonmembers == HELD_OUT and c.way in FRESHEST]
        held_out = [c for c in held_out if c.population in WHOLE]
        clients = {id(c): len(np.unique(c.client)) for c in held_out}
        wide = [c for c in held_out if 2 * clients[id(c)] >= max(clients.values())]
        for c in sorted(wide, key=lambda c: FRESHEST.index(c.way))[:1]:
            signals = [s for s in headline if s in c.scores and c.scores[s].notna().any()]
            primary |= {row_of(c, s) for s in signals[:PRIMARY_EACH]}
    return primary


def _statistics(
    rows: Sequence[Comparison], members: np.ndarray, coin_index: Mapping[str, int], part: str
) -> dict[Row, Floats]:
    """{key of a comparison and score: its standardised AUROCs [1 + exchanges]}, from each comparison's table `part`:
    "scores" or "base". `members` are the exchanged coins [1 + exchanges, coins]."""
    names, scored = list[Row](), list[Scored]()
    for c in rows:
        table = getattr(c, part).select_dtypes("number")
        client, coin = np.unique(c.client, return_inverse=True)[1], np.array([coin_index[r] for r in c.record])
        present = table.notna()
        alike: dict[bytes, list[str]] = {}  # signals that the same records have
        for signal in (s for s in table if present[s].any()):
            alike.setdefault(present[signal].to_numpy().tobytes(), []).append(signal)
        for signals in alike.values():
            kept = present[signals[0]].to_numpy()
            scored.append(Scored(table.loc[kept, signals].to_numpy(dtype=float), client[kept], coin[kept]))
            names += [row_of(c, s) for s in signals]
    z = standardised(weighted_auroc(members, scored)) if scored else np.empty((len(members), 0))
    return dict(zip(names, z.T, strict=True))


def _largest(statistics: Sequence[Floats], members: np.ndarray) -> Floats:
    """The largest absolute statistic under each exchange [1 + exchanges]; 0 without statistics."""
    return np.abs(statistics).max(axis=0) if len(statistics) else np.zeros(len(members))


def _tested(z: Floats, family: str) -> Tested:
    """The test of a score from its statistics [1 + exchanges]."""
    return Tested(float(z[0]), float(p_value(z[0], np.abs(z))), family)
