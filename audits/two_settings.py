"""Differences between two settings, each with its trainings: leakage by adversary, and utility.

Where trainings of both have the same records and coins, they are compared pair by pair on these
(`audits.shared_records`); else by the intervals of their own numbers, joined by square-and-add (Zou and Donner 2008),
which is wider. Several trainings are joined as everywhere (`audits.statistics.over_seeds`).

Of each adversary one score counts, the same for both, by its freshest model: a score of `permutation_test.NAMED`, or
the first headline score that both have. It is fixed before looking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd

from fedaudit.audits.permutation_test import NAMED
from fedaudit.audits.run_comparison import METRICS, UTILITIES, AuditedRun, utilities
from fedaudit.audits.shared_records import Ends, Finding, OnShared, Shared, shared_records
from fedaudit.audits.statistics.over_seeds import OfTraining, OverSeeds, over_seeds
from fedaudit.audits.statistics.paired import p_by_interval
from fedaudit.audits.utility import mean_interval
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import WHOLE
from fedaudit.terms.splits import SPLITS
from fedaudit.terms.threat_models import THREAT_MODELS

FPRS = {"tpr@1%": 0.01, "tpr@10%": 0.1}  # the first that both have is compared
ONE_TRAINING = "no interval: one training of each"
LEAKAGE, UTILITY = "leakage", "utility"

Row = dict[str, Any]
Pair = tuple[AuditedRun, AuditedRun]


@dataclass(frozen=True)
class _Part:
    """The values of a quantity in one training of each setting; `ends` (None: no interval) gives (low, high) of their
    difference at a confidence."""

    data: Any
    a: float
    b: float
    ends: Ends | None


def rows(a: Sequence[AuditedRun], b: Sequence[AuditedRun], confidence: float) -> Iterator[Row]:
    """Yield a row per quantity that both settings have, of `b` less `a`.

    Columns: part ("leakage" or "utility"), metric, threat_model and signal ("" for utility), value_a, value_b,
    difference, low, high and p (None without an interval), paired, why (it is not, or has no interval), how, seeds;
    members, nonmembers_n, clients (0: not counted). Differences of named records are numbers of records, of accuracies
    points of percent.
    """
    pairs = _pairs(a, b)
    for threat in THREAT_MODELS:
        yield from _leakage(a, b, pairs, threat, confidence)
    for name in UTILITIES:
        if all(name in utilities(run) for run in (*a, *b)):
            yield _utility(a, b, pairs, name, confidence)


def _pairs(a: Sequence[AuditedRun], b: Sequence[AuditedRun]) -> list[Pair]:
    """Trainings of both settings by the same seeds; if there are none, those on the same data in their order."""
    same = [(x, y) for x in a for y in b if x.draw == y.draw]
    if same:
        return same
    data = dict.fromkeys(run.draw[0] for run in a)
    return [
        pair
        for one in data
        for pair in zip((r for r in a if r.draw[0] == one), (r for r in b if r.draw[0] == one), strict=False)
    ]


def _leakage(
    a: Sequence[AuditedRun], b: Sequence[AuditedRun], pairs: Sequence[Pair], threat: str, confidence: float
) -> Iterator[Row]:
    """Yield the rows of one adversary; none if the settings have no score in common."""
    of_runs = {run.key: _by_signal(run, threat) for run in (*a, *b)}
    common = [s for s in of_runs[a[0].key] if all(s in by_signal for by_signal in of_runs.values())]
    if not common:
        return
    signal = next((s for s in NAMED if s in common), common[0])
    aurocs = {key: by_signal[signal] for key, by_signal in of_runs.items()}
    head = {"part": LEAKAGE, "threat_model": threat, "signal": signal}
    both = [shared_records(pair, [aurocs[run.key] for run in pair]) for pair in pairs]
    shared = [one for one in both if isinstance(one, Shared)]
    why = next((one for one in both if isinstance(one, str)), "" if pairs else "they have no data in common")
    counts = shared[0].counts if shared else {"members": 0, "nonmembers_n": 0, "clients": 0}
    unit = f"over {shared[0].candidates.unit}" if shared else ""
    rates = {m: [_rate(run, aurocs[run.key], m) for run in (*a, *b)] for m in FPRS}
    rate = next((m for m, fs in rates.items() if all(fs)), None)

    def row(metric: str, quantity: Callable[[Shared], OnShared], least: float, most: float) -> Row:
        parts = [
            _Part(pair[0].draw[0], q.a, q.b, q.ends)
            for pair, one in zip(pairs, shared, strict=True)
            for q in [quantity(one)]
        ]
        return head | counts | {"metric": metric} | _joined(parts, confidence, least, most, unit)

    if why:
        yield head | _apart(a, b, lambda run: aurocs[run.key], "auroc", why, confidence) | counts
    else:
        yield row("auroc", Shared.auroc, -1.0, 1.0)
    if rate is not None:
        of = dict(zip([run.key for run in (*a, *b)], rates[rate], strict=True))
        elsewhere = any("reference records" not in f["interval"] for f in rates[rate] if f)
        unlike = why or ("the thresholds are those of adversaries' own models" if elsewhere else "")
        if unlike:
            yield head | _apart(a, b, lambda run: of[run.key], rate, unlike, confidence) | counts
        else:
            yield row(rate, lambda one: one.tpr(FPRS[rate]), -1.0, 1.0)
    records = [_least_named(f) for f in aurocs.values()]
    if not why and all(records):
        most = max(records)
        yield row(f"named@{most}", lambda one: one.named(most), -float(most), float(most))


def _by_signal(run: AuditedRun, threat: str) -> dict[str, Finding]:
    """By headline score the AUROC of an adversary against held-out records, by its freshest model that reaches half of
    the clients."""
    rows = [
        f
        for f in run.findings
        if f["metric"] == "auroc" and f["headline"] and not f.get("best_of") and f["value"] is not None
        and (f["threat_model"], f["nonmembers"]) == (threat, HELD_OUT) and f["population"] in WHOLE
    ]  # fmt: skip
    wide = [f for f in rows if 2 * f["clients"] >= max(g["clients"] for g in rows) and f["way"] in FRESHEST]
    freshest = min((f["way"] for f in wide), key=FRESHEST.index, default=None)
    return {f["signal"]: f for f in wide if f["way"] == freshest}


def _least_named(f: Finding) -> int:
    """How many named records would have been called a leak; 0: no number would, or no coins decided."""
    records = f.get("detectable_named")
    return 0 if records is None or math.isnan(records) else int(records)


def _rate(run: AuditedRun, auroc: Finding, metric: str) -> Finding | None:
    """The finding of a rate beside that of an AUROC; None if it was not measured."""
    place = ("threat_model", "way", "population", "nonmembers", "signal")
    alike = (f for f in run.findings if f["metric"] == metric and all(f[name] == auroc[name] for name in place))
    return next((f for f in alike if f["value"] is not None), None)


def _utility(
    a: Sequence[AuditedRun], b: Sequence[AuditedRun], pairs: Sequence[Pair], name: str, confidence: float
) -> Row:
    """The row of one utility; of accuracies client by client, where the settings have the same ones."""
    head = {"part": UTILITY, "threat_model": "", "signal": "", "members": 0, "nonmembers_n": 0, "clients": 0}
    least, most = (-math.inf, math.inf) if name in METRICS else (-100.0, 100.0)
    if not pairs:
        why = "they have no data in common"
        return head | _apart(a, b, lambda run: utilities(run)[name], name, why, confidence)
    parts, clients = [], 0
    for x, y in pairs:
        values = utilities(x)[name]["value"], utilities(y)[name]["value"]
        by_client = [_by_client(run, name) for run in (x, y)]
        both = pd.concat(by_client, axis=1, join="inner")
        if len(both) < 2:
            parts.append(_Part(x.draw[0], *values, None))
            continue
        clients, differ = len(both), (both.iloc[:, 1] - both.iloc[:, 0]).to_numpy()
        ends = None if differ.std() < 1e-9 else _student(differ)
        parts.append(_Part(x.draw[0], float(both.iloc[:, 0].mean()), float(both.iloc[:, 1].mean()), ends))
    return head | {"metric": name, "clients": clients} | _joined(parts, confidence, least, most, "over clients")


def _student(differ: Any) -> Ends:
    """Student's intervals over clients of their differences, in points of percent."""

    def ends(level: float) -> tuple[float, float]:
        low, high = mean_interval(differ, level, least=-100.0)
        assert low is not None
        assert high is not None
        return low, high

    return ends


def _by_client(run: AuditedRun, split: str) -> pd.Series:
    """By client its accuracy, as the mean over the last rounds that the finding counts; empty for other utilities."""
    finding = next((f for f in run.findings if split in SPLITS and f["metric"] == f"accuracy/{split}"), None)
    table = run.tables.get("accuracy", pd.DataFrame())
    if finding is None or not len(table):
        return pd.Series(dtype=float)
    trained = table[(table["round"] >= 0) & (table.client != "mean")]
    last = sorted(trained["round"].unique())[-finding["rounds"] :]
    rows = trained[trained["round"].isin(last) & (trained.split == split)]
    return rows.groupby("client").accuracy.mean()


def _joined(parts: Sequence[_Part], confidence: float, least: float, most: float, unit: str) -> Row:
    """The columns of a difference from pairs of trainings; `unit`: what an interval of one pair is over."""

    def over(level: float) -> OverSeeds:
        ends = [part.ends(level) if part.ends else (None, None) for part in parts]
        numbers = [OfTraining(p.b - p.a, low, high, level, p.data) for p, (low, high) in zip(parts, ends, strict=True)]
        return over_seeds(numbers, confidence=level, least=least, most=most)

    values = {"value_a": mean(p.a for p in parts), "value_b": mean(p.b for p in parts)}
    joined = over(confidence)
    bare = joined.low is None or (joined.low == joined.high and joined.low != 0)
    how = unit if parts[0].ends else "over trainings"
    return values | _numbers(joined.value, lambda level: _ends(over(level)), confidence, bare) | {
        "paired": True, "why": ONE_TRAINING if bare else "", "how": how, "seeds": len(parts),
    }  # fmt: skip


def _apart(
    a: Sequence[AuditedRun],
    b: Sequence[AuditedRun],
    finding: Callable[[AuditedRun], Any],
    metric: str,
    why: str,
    confidence: float,
) -> Row:
    """The columns of a difference without pairs, from the intervals of both settings' own numbers."""

    def side(runs: Sequence[AuditedRun], level: float) -> OverSeeds:
        of_runs = [(finding(run), run.draw[0]) for run in runs]
        numbers = [OfTraining(f["value"], f["low"], f["high"], f["confidence"], data) for f, data in of_runs]
        return over_seeds(numbers, confidence=level)

    def at(level: float) -> tuple[float, float]:
        x, y = side(a, level), side(b, level)
        (low_x, high_x), (low_y, high_y), d = _ends(x), _ends(y), y.value - x.value
        return d - math.hypot(y.value - low_y, high_x - x.value), d + math.hypot(high_y - y.value, x.value - low_x)

    x, y = side(a, confidence), side(b, confidence)
    numbers = _numbers(y.value - x.value, at, confidence, x.low is None or y.low is None)
    return {"metric": metric, "value_a": x.value, "value_b": y.value} | numbers | {
        "paired": False, "why": why, "how": "square-and-add", "seeds": min(len(a), len(b)),
    }  # fmt: skip


def _ends(joined: OverSeeds) -> tuple[float, float]:
    assert joined.low is not None
    assert joined.high is not None
    return joined.low, joined.high


def _numbers(value: float, at: Ends, confidence: float, bare: bool) -> Row:
    """Difference, interval and raw p-value; without the last two if the interval is `bare`."""
    if bare:
        return {"difference": value, "low": None, "high": None, "p": None}
    low, high = at(confidence)
    return {"difference": value, "low": low, "high": high, "p": p_by_interval(at)}
