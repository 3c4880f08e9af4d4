"""What the coins say of every score of a run: its statistic and raw p-value, and the largest statistic of each family
under every exchange of the coins, from which a report corrects them (`audits.verdicts`).

Families: *primary*, at most eight scores named beforehand: of each adversary, its freshest model that reaches half of
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
from audits.statistics.permutation import (
    PERMUTATIONS,
    Bools,
    Floats,
    Scored,
    exchanged,
    p_value,
    standardised,
    weighted_auroc,
)
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import WHOLE
from fedaudit.terms.threat_models import THREAT_MODELS

FAMILIES = ("primary", "secondary", "controls")
PRIMARY_EACH = 2  # per adversary, of which there are four: at most eight scores
EXCHANGES = 11  # of the generator (seed, EXCHANGES)

Row = tuple[str, ...]  # threat model, way, population, non-members, signal


@dataclass(frozen=True)
class Tested:
    """A score's statistic in standard deviations of its permutations, its raw two-sided p-value, and its family."""

    z: float
    p: float
    family: str


@dataclass(frozen=True, eq=False)
class ByCoin:
    """Every row that coins decided, the base model's scores beside them, and the largest absolute statistic of each
    family [1 + exchanges], as the coins fell first."""

    scores: Mapping[Row, Tested]
    base: Mapping[Row, Tested]
    largest: pd.DataFrame


def row_of(c: Comparison, signal: str) -> Row:
    """What names a score on a comparison."""
    return c.threat_model, c.way, c.population, c.nonmembers, signal


@functools.lru_cache(maxsize=1)
def by_coin(run: ScoredRun) -> ByCoin:
    """The permutation tests of a run; no row where no coin of ours decided."""
    rows = [c for c in comparisons(run) if c.coin]
    if not rows:
        return ByCoin({}, {}, pd.DataFrame(columns=list(FAMILIES)))
    members, place = exchanges(run)
    named = primary_rows(rows, run.headline)
    scores = _statistics(rows, members, place, "scores")
    base = _statistics(rows, members, place, "base")
    family = {row: "primary" if row in named else "secondary" for row in scores}
    of_family = {name: [z for row, z in scores.items() if family[row] == name] for name in FAMILIES[:2]}
    of_family["controls"] = [*base.values()]
    return ByCoin(
        {row: _tested(z, family[row]) for row, z in scores.items()},
        {row: _tested(z, "controls") for row, z in base.items()},
        pd.DataFrame({name: _largest(statistics, members) for name, statistics in of_family.items()}),
    )


def exchanges(run: ScoredRun, times: int = PERMUTATIONS) -> tuple[Bools, dict[str, int]]:
    """The coins of a run as they fell and exchanged [1 + times, coins], and each record's place among them."""
    names = list(run.coins)
    order = {coin: i for i, coin in enumerate(dict.fromkeys(coin for coin, _ in run.coins.values()))}
    place = {record: order[run.coins[record][0]] for record in names}
    first = {place[record]: record for record in reversed(names)}
    fell = [run.truth[first[i]] for i in range(len(order))]
    strata = [run.coins[first[i]][1] for i in range(len(order))]
    return exchanged(fell, strata, seed=(run.seed, EXCHANGES), times=times), place


def primary_rows(rows: Sequence[Comparison], headline: Sequence[str]) -> set[Row]:
    """The rows of the primary family: who may see what is known before any coin is looked at."""
    found = set()
    for threat in THREAT_MODELS:
        own = [c for c in rows if c.threat_model == threat and c.nonmembers == HELD_OUT and c.way in FRESHEST]
        own = [c for c in own if c.population in WHOLE]
        reach = {id(c): len(np.unique(c.client)) for c in own}
        wide = [c for c in own if 2 * reach[id(c)] >= max(reach.values())]
        for c in sorted(wide, key=lambda c: FRESHEST.index(c.way))[:1]:
            there = [s for s in headline if s in c.scores and c.scores[s].notna().any()]
            found |= {row_of(c, s) for s in there[:PRIMARY_EACH]}
    return found


def _statistics(
    rows: Sequence[Comparison], members: np.ndarray, place: Mapping[str, int], part: str
) -> dict[Row, Floats]:
    """By row the standardised statistics [1 + exchanges]."""
    names, scored = list[Row](), list[Scored]()
    for c in rows:
        table = getattr(c, part).select_dtypes("number")
        client, coin = np.unique(c.client, return_inverse=True)[1], np.array([place[r] for r in c.record])
        known = table.notna()
        alike: dict[bytes, list[str]] = {}  # signals that the same records have
        for signal in (s for s in table if known[s].any()):
            alike.setdefault(known[signal].to_numpy().tobytes(), []).append(signal)
        for signals in alike.values():
            kept = known[signals[0]].to_numpy()
            scored.append(Scored(table.loc[kept, signals].to_numpy(dtype=float), client[kept], coin[kept]))
            names += [row_of(c, s) for s in signals]
    found = standardised(weighted_auroc(members, scored)) if scored else np.empty((len(members), 0))
    return dict(zip(names, found.T, strict=True))


def _largest(statistics: Sequence[Floats], members: np.ndarray) -> Floats:
    return np.abs(statistics).max(axis=0) if len(statistics) else np.zeros(len(members))


def _tested(z: Floats, family: str) -> Tested:
    return Tested(float(z[0]), float(p_value(z[0], np.abs(z))), family)
