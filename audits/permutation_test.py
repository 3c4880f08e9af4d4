"""The permutation test of a run: do scores tell how the coins fell that decided which candidates are used?

Each score gets a statistic and a raw p-value. The statistic is the largest of three, in standard deviations: the AUROC
within clients, in either direction (`audits.statistics.permutation`), and how many members are among a score's highest,
within clients and of all (`audits.statistics.highest`). The largest statistic of each family, under every exchange of
the coins, is kept too: a report corrects p-values by it (`audits.verdicts`).

Families: *named*, one score named beforehand, which has half of the error for itself: of the strongest adversary that
has it the decomposition of a revealed sum or of messages, else the calibrated loss, else its first headline score.
*primary*, two scores of each adversary named beforehand: its freshest model that reaches half of the clients, members
against held-out records, the first two headline scores in the order of the attacks. *secondary*: all other scores of
all comparisons that coins decided, headline scores of other models too. *controls*: the AUROCs of the base model's
scores beside them. One exchange of all coins of a run serves all scores of all families.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import Comparison, ScoredRun, comparisons
from fedaudit.audits.findings import NEAR_CHANCE, WHOLE_RANKING
from fedaudit.audits.statistics.arrays import Floats
from fedaudit.audits.statistics.highest import Highest, of_each
from fedaudit.audits.statistics.permutation import (
    PERMUTATIONS,
    Exchanges,
    Scored,
    p_value,
    standardised,
    weighted_auroc,
)
from fedaudit.machinery.threads import in_threads
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import WHOLE
from fedaudit.terms.threat_models import STRONGEST, THREAT_MODELS

FAMILIES = ("named", "primary", "secondary", "controls")
NAMED = (
    "scatter",
    "decompose",
    "loss/base",
)  # the headline scores, in order of preference, of which one is named beforehand
PRIMARY_EACH = 2  # scores for each adversary
NEAR = 0.05  # where the p-value of the AUROC alone is larger, it is near chance
POWER = 0.8416  # quantile of a normal number at 80 %
EXCHANGES = 11  # the generator of the exchanges is seeded with (seed, EXCHANGES)

Row = tuple[str, ...]  # threat model, way, population, non-members, signal


@dataclass(frozen=True)
class Tested:
    """The test of a score."""

    z: float  # its AUROC within clients, in standard deviations of its permutations
    # the largest of |z| and the two statistics of its highest scores, with a minus where |z| is the largest and z < 0
    t: float
    p: float  # raw p-value of t
    part: str  # which of the three that is, in words
    family: str
    spread: float  # standard deviation of the AUROC under exchanges; 0: none can be compared
    full: Mapping[int, float]  # by number of highest scores, the statistic if all of these were members

    def detectable(self, critical: float) -> tuple[float, int | None]:
        """The smallest AUROC that is called a leak with a power of 80 % where t must exceed `critical`, and the
        smallest number of records that are if all are named and members; None: no number that was looked at."""
        named = [k for k, statistic in self.full.items() if statistic > critical]
        auroc = 0.5 + self.spread * (critical + POWER) if self.spread else 1.0
        return min(1.0, auroc), min(named, default=None)


@dataclass(frozen=True, eq=False)
class ByCoin:
    """The tests of every score that coins decided, the standardised AUROCs of the base model's scores beside them, and
    `largest`, which has a column per family and a row per exchange, the coins as they fell first: the largest absolute
    statistic."""

    scores: Mapping[Row, Tested]
    base: Mapping[Row, float]
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
    named, primary = named_row(rows, run.headline), primary_rows(rows, run.headline)
    scores = _statistics(rows, members, coin_index)
    base = _base(rows, members, coin_index)
    family = {row: "named" if row == named else "primary" if row in primary else "secondary" for row in scores}
    of_family = {name: [s.t for row, s in scores.items() if family[row] == name] for name in FAMILIES[:3]}
    of_family["controls"] = [*base.values()]
    return ByCoin(
        {row: _tested(statistic, family[row]) for row, statistic in scores.items()},
        {row: float(z[0]) for row, z in base.items()},
        pd.DataFrame({name: _largest(statistics, members) for name, statistics in of_family.items()}),
    )


def exchanges(run: ScoredRun, times: int = PERMUTATIONS) -> tuple[Exchanges, dict[str, int]]:
    """The coins of a run, whether each made its record a member, as they fell and then exchanged within strata, [1 +
    times, coins]; and {record id: index of its coin}."""
    names = list(run.coins)
    order = {coin: i for i, coin in enumerate(dict.fromkeys(coin for coin, _ in run.coins.values()))}
    coin_index = {record: order[run.coins[record][0]] for record in names}
    first = {coin_index[record]: record for record in reversed(names)}
    fell = [run.truth[first[i]] for i in range(len(order))]
    strata = [run.coins[first[i]][1] for i in range(len(order))]
    return Exchanges(fell, strata, seed=(run.seed, EXCHANGES), times=times), coin_index


def primary_rows(rows: Sequence[Comparison], headline: Sequence[str]) -> set[Row]:
    """The keys (see `row_of`) of the scores in the primary family, and maybe of the named one: per adversary the first
    PRIMARY_EACH of `headline` on its first comparison of `_fresh`. They do not depend on how coins fell."""
    primary = set()
    for threat in THREAT_MODELS:
        for c in _fresh(rows, threat)[:1]:
            primary |= {row_of(c, s) for s in _scored(c, headline)[:PRIMARY_EACH]}
    return primary


def named_row(rows: Sequence[Comparison], headline: Sequence[str]) -> Row | None:
    """The key of the one score that has half of the error for itself: the first of NAMED that is in `headline` and that
    any adversary has, of the strongest one that has it; if there is none, the strongest adversary's first score. None
    without a comparison with held-out records. It does not depend on how coins fell."""
    fresh = [c for threat in STRONGEST for c in _fresh(rows, threat)]
    preferred = [s for s in NAMED if s in headline]
    pairs = [(c, s) for s in preferred for c in fresh if s in _scored(c, headline)]
    pairs += [(c, s) for c in fresh for s in _scored(c, headline)]
    return row_of(*pairs[0]) if pairs else None


def _fresh(rows: Sequence[Comparison], threat: str) -> list[Comparison]:
    """An adversary's comparisons with held-out records that reach half as many clients as any, by its kind of model in
    the order of FRESHEST."""
    held_out = [c for c in rows if c.threat_model == threat and c.nonmembers == HELD_OUT and c.way in FRESHEST]
    held_out = [c for c in held_out if c.population in WHOLE]
    clients = {id(c): len(np.unique(c.client)) for c in held_out}
    wide = [c for c in held_out if 2 * clients[id(c)] >= max(clients.values())]
    return sorted(wide, key=lambda c: FRESHEST.index(c.way))


def _scored(c: Comparison, headline: Sequence[str]) -> list[str]:
    """Those of the headline scores that some record of a comparison has."""
    return [s for s in headline if s in c.scores and c.scores[s].notna().any()]


@dataclass(frozen=True, eq=False)
class _Statistic:
    """The parts of a score's statistic: AUROCs under every exchange [P], standardised ones, and the members among its
    highest scores within clients and of all."""

    aurocs: Floats
    z: Floats
    highest: tuple[Highest, Highest]

    @property
    def t(self) -> Floats:
        """The statistic [P], not negative."""
        inside, whole = self.highest
        return np.maximum(np.abs(self.z), np.maximum(inside.statistic, whole.statistic))


def _statistics(rows: Sequence[Comparison], members: Exchanges, coin_index: Mapping[str, int]) -> dict[Row, _Statistic]:
    """{key of a comparison and score: its statistic}; `members` are the exchanged coins [1 + exchanges, coins]."""
    names, scored = _entries(rows, coin_index, "scores")
    if not scored:
        return {}
    aurocs = weighted_auroc(members, scored)
    tops = itertools.chain(*in_threads(functools.partial(of_each, members), scored))
    parts = zip(aurocs.T, standardised(aurocs).T, tops, strict=True)
    return {name: _Statistic(*part) for name, part in zip(names, parts, strict=True)}


def _base(rows: Sequence[Comparison], members: Exchanges, coin_index: Mapping[str, int]) -> dict[Row, Floats]:
    """{key of a comparison and score: standardised AUROCs [1 + exchanges] of the base model's score}."""
    names, scored = _entries(rows, coin_index, "base")
    return dict(zip(names, standardised(weighted_auroc(members, scored)).T, strict=True)) if scored else {}


def _entries(rows: Sequence[Comparison], coin_index: Mapping[str, int], part: str) -> tuple[list[Row], list[Scored]]:
    """Keys of comparisons and scores, and the scores in the same order, those of the same records together, from each
    comparison's table `part`: "scores" or "base"."""
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
    return names, scored


def _largest(statistics: Sequence[Floats], members: Exchanges) -> Floats:
    """The largest absolute statistic under each exchange [1 + exchanges]; 0 without statistics."""
    return np.abs(statistics).max(axis=0) if len(statistics) else np.zeros(len(members))


def _tested(s: _Statistic, family: str) -> Tested:
    """The test of a score from its statistics under all exchanges."""
    of_largest = s.t
    part, sign = WHOLE_RANKING, -1.0 if s.z[0] < 0 else 1.0
    if abs(s.z[0]) < of_largest[0]:
        near = float(p_value(s.z[0], np.abs(s.z))) > NEAR
        inside = s.highest[0].statistic[0] >= s.highest[1].statistic[0]
        part, sign = s.highest[0 if inside else 1].words(within=inside) + (NEAR_CHANCE if near else ""), 1.0
    p = float(p_value(of_largest[0], of_largest))
    return Tested(float(s.z[0]), sign * float(of_largest[0]), p, part, family, float(s.aurocs.std()), s.highest[1].full)
