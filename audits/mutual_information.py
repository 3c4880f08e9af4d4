"""Mutual information: how many bits a score holds about membership, a lower bound on what the adversary's view holds.

A score is computed from the view, so it holds no more about membership than the view does (data processing): a small
estimate does not show that the view holds little. Scores are ranked first, within each client if each has a model of
its own. Then they are spread evenly within a rank's width, since whole ranks are equally far from each other, on which
estimates by distances are too high. Neither changes the information.
Estimated by `audits.statistics.mutual_information.ross`, with an interval, and with the null distribution of the
verdicts' test (`audits.permutation_test`): coins exchanged within clients; without coins, candidates are exchanged.

If clients release prompts: the information between leading directions of the prompts and of the clients' class
proportions (`ksg`). There are as many points as clients, which is few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import entr
from scipy.stats import rankdata

from fedaudit.audits.comparisons import Comparison, ScoredRun, comparisons
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import INFORMATION, Names, SharedInformation
from fedaudit.audits.permutation_test import exchanges
from fedaudit.audits.settings import Confident
from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics.arrays import Bools, Floats
from fedaudit.audits.statistics.permutation import Exchanges, exchanged
from fedaudit.audits.subject import Result, Subject
from fedaudit.machinery.parameters import whole
from fedaudit.terms.held_models import BEST_UTILITY
from fedaudit.terms.nonmembers import BY_COIN
from fedaudit.terms.threat_models import PROMPT_USER
from fedaudit.trainers.transcript import Transcript

EXCHANGES = 500
INSIDE = 13  # the generator of places within ranks is seeded with (seed, INSIDE)
BESIDE = ("loss/base",)  # scores that are measured beside an attack's headline ones
LEAST_CLIENTS = 8  # for a comparison of released prompts with class proportions
COLUMNS = (
    "threat_model way population nonmembers attack signal bits low high null_low null_high p p_adjusted base_bits "
    "ceiling members nonmembers_n clients interval"
).split()
OF_PROMPTS = "directions spread class_spread clients bits low high null_low null_high p".split()


class Facts(AuditFacts):
    needs = ("attacks",)
    on_request = True


@dataclass(frozen=True)
class Params(Confident):
    neighbours: int = whole(5, "nearest neighbours k of estimates of mutual information", least=1, most=100)
    directions: int = whole(1, "leading directions of released prompts and of class proportions", least=1, most=1000)


def mutual_information(subject: Subject, params: Params) -> Result:
    """The findings of how many bits scores hold about membership, one per row of the table `information` (see
    `information`), and, if the prompt-user is one of the run's adversaries, the table `prompt_information` (see
    `of_prompts`). Empty without an attack."""
    run = subject.attacked
    if run is None:
        return Result()
    tables = {"information": information(run, params)}
    if PROMPT_USER in subject.threat_models:
        tables["prompt_information"] = of_prompts(subject.transcript, run, params)
    return Result(findings(tables["information"], params, names=subject.names), tables)


def findings(table: pd.DataFrame, params: Params, *, names: Names) -> list[SharedInformation]:
    """The rows of the table of `information` as findings, whose `value` is in bits, with the control's as `base_value`
    (None if it is NaN)."""
    renamed = table.rename(columns={"bits": "value", "base_bits": "base_value"}).to_dict("records")
    return [
        SharedInformation(
            **names,
            metric=INFORMATION,
            confidence=params.confidence,
            **row | {"base_value": None if math.isnan(row["base_value"]) else row["base_value"]},
        )
        for row in renamed
    ]


@dataclass(frozen=True, eq=False)
class _Row:
    """A score on a comparison: its ranks [n] (see `_ranks`), and the estimates of mutual information with membership in
    nats [1 + exchanges], as the coins fell first."""

    comparison: Comparison
    signal: str
    ranks: Floats
    null: Floats


def information(run: ScoredRun, params: Params) -> pd.DataFrame:
    """Mutual information in bits of headline scores and `loss/base` with membership, against held-out records and
    left-out canaries: a row per score and comparison; no row if none can be measured.

    Beside the names, the columns are `bits` with its interval `low`, `high`; `null_low`, `null_high`, quantiles over
    exchanges of the coins; `p` raw, `p_adjusted` corrected for all rows by the largest standardised estimate under each
    exchange (Westfall and Young 1993); `base_bits` of the control; and `ceiling`, the entropy of membership.
    """
    rows = [*_rows(run, params)]
    z = np.array([(row.null - row.null.mean()) / (row.null.std() or 1.0) for row in rows])
    largest = z.max(axis=0) if rows else np.empty(0)
    table = []
    for row, z_row in zip(rows, z, strict=True):
        c, null, i = row.comparison, row.null, _interval(row, params)
        share = c.member.mean()
        low, high = np.quantile(null[1:], [(1 - params.confidence) / 2, (1 + params.confidence) / 2])
        table.append((
            c.threat_model, c.way, c.population, c.nonmembers, run.signals[row.signal], row.signal,
            *(mi.BITS * v for v in (i.value, i.low, i.high, low, high)),
            _p_value(null[0], null), _p_value(z_row[0], largest), mi.BITS * _of_base(c, row.signal, params, run.seed),
            mi.BITS * float(entr(share) + entr(1 - share)),
            int(c.member.sum()), int((~c.member).sum()), len(np.unique(c.client)), i.how,
        ))  # fmt: skip
    return pd.DataFrame(table, columns=COLUMNS)


def _rows(run: ScoredRun, params: Params) -> Iterator[_Row]:
    """Yield the measurable headline scores, and `loss/base`, each on every comparison with held-out records or left-out
    canaries."""
    shared = exchanges(run, EXCHANGES) if run.coins else None
    for c in comparisons(run):
        if c.nonmembers not in BY_COIN or c.descriptive or c.way == BEST_UTILITY:
            continue
        members = _exchanged(c, run.seed, shared)
        for signal in dict.fromkeys(s for s in (*run.headline, *BESIDE) if s in c.scores):
            kept = c.scores[signal].notna().to_numpy()
            on = c.with_values(c.scores[signal])
            if on.measurable:
                ranks = _ranks(on, on.scores[signal], run.seed)
                yield _Row(on, signal, ranks, mi.ross_of_coins(members[:, kept], ranks, k=params.neighbours))


def _exchanged(c: Comparison, seed: int, shared: tuple[Exchanges, Mapping[str, int]] | None) -> Bools:
    """Membership of a comparison's entries [1 + exchanges, n]: as it fell, then exchanged. `shared` are the exchanges
    of the run's coins, and each record's index among these; None: there are no coins, clients are the strata."""
    if shared is None:
        return exchanged(c.member, c.client, seed=(seed,), times=EXCHANGES)
    coins, coin_index = shared
    return coins[:][:, [coin_index[r] for r in c.record]]


def _ranks(c: Comparison, values: pd.Series, seed: int) -> Floats:
    """Ranks [n] in [0, 1] of `values`, within each client if each has its own model; ties are spread at random about
    their mean rank."""
    scores, inside = values.to_numpy(dtype=float), np.random.default_rng((seed, INSIDE)).random(len(values))
    ranks = np.empty(len(scores))
    for rows in [c.client == k for k in np.unique(c.client)] if c.per_client else [np.ones(len(scores), dtype=bool)]:
        ranks[rows] = (rankdata(scores[rows]) - inside[rows]) / rows.sum()
    return ranks


def _interval(row: _Row, params: Params) -> mi.Information:
    """The estimate in nats with its interval: over clients or, if records are the units, within client and
    membership."""
    c = row.comparison
    clients = c.unit == "clients"
    return mi.interval(
        lambda rows: mi.ross(c.member[rows], row.ranks[rows], k=params.neighbours),
        len(c.member),
        unit=c.client if clients else None,
        stratum=None if clients else np.unique(c.client, return_inverse=True)[1] * 2 + c.member,
        confidence=params.confidence,
    )


def _of_base(c: Comparison, signal: str, params: Params, seed: int) -> float:
    """The estimate of mutual information for the control's scores, in nats; NaN if they cannot be measured or are all
    equal."""
    if signal not in c.base or c.base[signal].nunique() < 2:
        return math.nan
    on = c.with_values(c.base[signal])
    if not on.measurable:
        return math.nan
    return mi.ross(on.member, _ranks(on, on.base[signal], seed), k=params.neighbours)


def _p_value(value: float, null: Floats) -> float:
    """One-sided p-value; `null` holds the estimate of the coins as they fell too."""
    return float((null >= value - 1e-9).mean())


def of_prompts(transcript: Transcript, run: ScoredRun, params: Params) -> pd.DataFrame:
    """One row, or none, about the information in bits between leading directions of the clients' released prompts and
    of their class proportions. No row for fewer than LEAST_CLIENTS with members or than two classes, or if all prompts
    or all proportions are equal.

    Columns: directions (their number), spread and class_spread (shares of variance that they explain), clients, bits
    with low, high, null_low and null_high (quantiles when prompts are dealt to other clients), p.
    """
    clients = [k for k in run.records if any(run.truth[r] for r in run.records[k])]
    classes = sorted({run.group[r] for k in clients for r in run.records[k]})
    if len(clients) < LEAST_CLIENTS or len(classes) < 2:
        return pd.DataFrame(columns=OF_PROMPTS)
    proportions = np.array([[_share(run, k, name) for name in classes] for k in clients])
    released = (transcript.released(k) for k in clients)
    prompts = np.array([np.concatenate([t.double().numpy().ravel() for t in state.values()]) for state in released])
    (x, spread), (y, class_spread) = (_leading(a, params.directions) for a in (prompts, proportions))
    if math.isnan(spread) or math.isnan(class_spread):
        return pd.DataFrame(columns=OF_PROMPTS)
    k = min(mi.NEIGHBOURS, len(clients) // 2 - 1)  # half of the clients must have so many neighbours, too
    i = mi.interval(lambda rows: mi.ksg(x[rows], y[rows], k=k), len(clients), confidence=params.confidence)
    null = mi.permuted(lambda order: mi.ksg(x, y[order], k=k), len(clients), times=EXCHANGES)
    low, high = np.quantile(null, [(1 - params.confidence) / 2, (1 + params.confidence) / 2])
    bits = [mi.BITS * v for v in (i.value, i.low, i.high, low, high)]
    p = _p_value(i.value, np.r_[i.value, null])
    return pd.DataFrame([(x.shape[1], spread, class_spread, len(clients), *bits, p)], columns=OF_PROMPTS)


def _share(run: ScoredRun, client: int, name: str) -> float:
    """The share of class `name` among a client's members."""
    members = [r for r in run.records[client] if run.truth[r]]
    return sum(run.group[r] == name for r in members) / len(members)


def _leading(a: Floats, directions: int) -> tuple[Floats, float]:
    """Coordinates [n, at most `directions`] of the rows of a [n, ..] along the directions in which they vary most, and
    the share of the variance that these explain; NaN: the rows are equal."""
    u, s, _ = np.linalg.svd(a - a.mean(axis=0), full_matrices=False)
    k = min(directions, len(s))
    total = float((s**2).sum())
    alike = total <= 1e-20 * float((a**2).sum())
    return u[:, :k] * s[:k], math.nan if alike else float((s[:k] ** 2).sum()) / total
