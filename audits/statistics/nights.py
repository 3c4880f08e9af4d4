"""Changes over the nights of a matrix of audits: numbers outside the band of earlier nights, new and healed leaks.

A series is one number of one cell of the matrix under one adversary; seeds are its repetitions. The mean over tonight's
new runs is compared with the mean over the runs of the last nights since the series last changed.

An AUROC's error is that of its interval over records and clients. Runs differ by more than that, since seeds and
trainings differ. The ratio of the variances is estimated from all such series together, with at least 1 and `PRIOR`
degrees of freedom, and joined with the variance of the series' own runs (Smyth 2004). An accuracy's interval is over
the clients of one training and does not cover other data: only the spread of its own runs counts (Student's two
samples), once that has `LEAST` degrees of freedom. The tail of Student's t is corrected for the number of distinct
tests of the night (Bonferroni), and half of `LEVEL` is kept in reserve: a night without a change reports one with a
probability of at most `LEVEL` (`benchmarks.nights`).

A series has a leak on a night if its runs' permutation statistics (`audits.permutation_test`), summed over independent
data (Stouffer), are off their centre after correction for all leaks that the night tests: of nights without a leak at
most `LEVEL` have one. A leak is new if the number has changed and most earlier nights had none. A leak that is shown
for the first time while its number is within its band may have been there before, or be chance.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean as mean
from typing import NamedTuple

import pandas as pd
from scipy.special import ndtr, stdtr, stdtrit

from fedaudit.audits.findings import BEFOREHAND
from fedaudit.audits.statistics.intervals import quantile
from fedaudit.audits.statistics.over_seeds import OfTraining, over_seeds

LEVEL = 0.05  # share of nights without a change that report one
WINDOW = 14  # largest number of earlier nights that tonight is compared with
# share of LEVEL that is used: variances are estimated from few nights, so far tails are longer (`benchmarks.nights`)
USED_SHARE = 0.5
PRIOR = 10.0  # degrees of freedom of the variance ratio that all AUROCs share
LEAST = 3  # least degrees of freedom of the spread of an accuracy
CONFIDENCE = 0.95  # of the interval of tonight's number
VALUE, BASE, BLIND = "value", "base model", "blind"  # quantities of a series: the number itself, and its two controls
FIRST, SAME, WITHIN, CHANGED, UNTESTED = "first", "same runs", "within the band", "changed", "too few runs yet"
NEW_LEAK, HEALED, DRIFT, SHOWN = "new leak", "healed leak", "control drift", "leak shown for the first time"
PLACE = ("threat_model", "way", "population", "nonmembers", "signal")  # fields of a finding about an attack
LARGEST = {"auroc": 1.0}  # largest value of a metric; accuracies are percent
GRAIN = 0.005  # least error of a number, as a share of its largest value: intervals of ties have no width


class Series(NamedTuple):
    """The key of a number that is followed over nights. Fields that do not apply are "": a control has no adversary."""

    cell: str
    method: str
    quantity: str
    metric: str
    threat_model: str = ""
    way: str = ""
    population: str = ""
    nonmembers: str = ""
    signal: str = ""

    @property
    def largest(self) -> float:
        """The largest value that the number can have."""
        return LARGEST.get(self.metric, 100.0)

    @property
    def by_spread(self) -> bool:
        """Whether only the spread of its runs gives its error, not their intervals."""
        return self.metric not in LARGEST


class Measured(NamedTuple):
    """A run's number with its interval and permutation statistic; `number.data` is equal for runs on the same
    records."""

    run: str
    number: OfTraining
    z: float | None


@dataclass
class Followed:
    """The state of a series after the nights so far; each night updates it."""

    past: dict[int, list[Measured]] = field(default_factory=dict)  # new runs by night, since it last changed
    runs: set[str] = field(default_factory=set)  # keys of the runs of all nights
    leaks: list[bool] = field(default_factory=list)  # whether the tested nights of `past` had a leak
    new_leak: bool = False  # whether there was a new leak that has not healed
    ever_leaked: bool = False  # whether any night had a leak

    @property
    def leaking(self) -> bool:
        """Whether it leaks by all nights so far: a new leak has not healed, or most tested nights since the last change
        have one."""
        return self.new_leak or 2 * sum(self.leaks) > len(self.leaks)

    def before(self, night: int) -> list[Measured]:
        """The runs that were new in the WINDOW nights before `night` and since the number last changed: it is compared
        with these."""
        return [one for past_night, runs in self.past.items() if past_night >= night - WINDOW for one in runs]


@dataclass(frozen=True)
class Difference:
    """Tonight's mean `now` and that of earlier nights, `before`. `error` is that of their difference by intervals alone
    (for a spread of 1 without intervals); `squares` is the sum of squared distances of runs from their mean in units of
    their errors, with `degrees` of freedom; `prior` are those of the variance ratio shared with other series."""

    now: float
    before: float
    error: float
    squares: float
    degrees: int
    prior: float = PRIOR


def judged(history: pd.DataFrame, *, level: float = LEVEL) -> pd.DataFrame:
    """A row per night and series. Columns: the fields of `Series`; `value`, `low`, `high` over tonight's runs; the
    numbers of `runs` and of `new` ones; if it was tested `before`, `band_low`, `band_high`, `p`, `p_adjusted`;
    `status`; `leak`, whether the night has one (None: not tested); `leaking`, by all nights so far; `event`, "" without
    one; `alarm`, whether there is an event other than SHOWN.

    `history` has a row per finding and night, with the fields of `audits.findings` and `night`, `cell` and `data`.
    """
    followed: dict[Series, Followed] = {}
    rows: list[dict[str, object]] = []
    for night, findings in history.groupby("night") if len(history) else ():
        rows += _night(int(night), series(findings), followed, level)
    columns = [
        "night", *Series._fields, "value", "low", "high", "runs", "new", "before", "band_low", "band_high", "p",
        "p_adjusted", "status", "leak", "leaking", "event", "alarm",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype({"alarm": bool})


def series(findings: pd.DataFrame) -> dict[Series, list[Measured]]:
    """The numbers of one night that are followed, {series: one number per run}: AUROCs of scores named beforehand,
    their controls, and accuracies. Adversaries that attack the same records share a control: its first number in a run
    is kept."""
    by_run: dict[Series, dict[str, Measured]] = {}
    for f in findings.to_dict("records"):
        for name, one in _followed(f):
            by_run.setdefault(name, {}).setdefault(one.run, one)
    return {name: list(runs.values()) for name, runs in by_run.items()}


def _followed(f: Mapping[str, object]) -> Iterator[tuple[Series, Measured]]:
    """Yield each series that a finding belongs to, with the finding's number in it: itself and up to two controls;
    nothing for findings that are not followed."""
    cell = str(f["cell"]), str(f["method"])
    if str(f["metric"]).startswith("accuracy"):
        yield Series(*cell, VALUE, str(f["metric"])), _measured(f, "")
    elif f["metric"] == "auroc" and f.get("family") in BEFOREHAND:
        threat_model, way, population, nonmembers, signal = (str(f[name]) for name in PLACE)
        if _number(f["value"]) is not None:
            yield Series(*cell, VALUE, "auroc", threat_model, way, population, nonmembers, signal), _measured(f, "")
        if _number(f["base_value"]) is not None:
            yield Series(*cell, BASE, "auroc", "", "", population, nonmembers, signal), _measured(f, "base_")
        if _number(f["blind_value"]) is not None:
            yield Series(*cell, BLIND, "auroc", "", "", population, nonmembers), _measured(f, "blind_")


def _measured(f: Mapping[str, object], prefix: str) -> Measured:
    """The number of a finding whose fields begin with `prefix`: "" for itself, "base_" or "blind_" for a control."""
    value, low, high = (_number(f[f"{prefix}{name}"]) for name in ("value", "low", "high"))
    assert value is not None
    z = None if prefix else _number(f.get("z"))
    return Measured(str(f["run"]), OfTraining(value, low, high, float(str(f["confidence"])), str(f["data"])), z)


def _number(value: object) -> float | None:
    """The value as a float; None for NaN and for what is no number."""
    return float(value) if isinstance(value, (int, float)) and not math.isnan(value) else None


def _night(
    night: int, measured: Mapping[Series, Sequence[Measured]], followed: dict[Series, Followed], level: float
) -> list[dict[str, object]]:
    """The rows of a night for the table of `judged`, one per series that was measured; `followed`, the states of all
    series, is updated."""
    states = {name: followed.setdefault(name, Followed()) for name in measured}
    new = {name: [one for one in runs if one.run not in states[name].runs] for name, runs in measured.items()}
    compared = {name: _compared(name, new[name], states[name].before(night)) for name in measured}
    differences = {name: d for name, d in compared.items() if d is not None}
    tests = max(1, len(set(differences.values())))
    ratio = shared_ratio(differences.values())
    sums = {name: z for name in measured if (z := stouffer(new[name])) is not None}
    leaks = {name: 2 * float(ndtr(-abs(z))) * len(set(sums.values())) <= level for name, z in sums.items()}
    rows = []
    for name, runs in measured.items():
        state = states[name]
        row: dict[str, object] = {"night": night, **name._asdict(), **tonight(runs, ratio, name)}
        row |= {"runs": len(runs), "new": len(new[name])}
        changed = False
        if (compared_means := differences.get(name)) is not None:
            columns = band(compared_means, ratio, USED_SHARE * level / tests, name.largest)
            p_adjusted = columns["p"] * tests / USED_SHARE
            row |= columns | {"p_adjusted": min(1.0, p_adjusted)}
            changed = p_adjusted <= level
        row["status"] = _status(state, new[name], compared_means, changed=changed)
        row["leak"] = leaks.get(name)
        row["event"] = _event(name, state, changed=changed, leak=leaks.get(name), compared=compared_means)
        row["alarm"] = row["event"] not in ("", SHOWN)
        rows.append(row)
        row["leaking"] = _update(
            state, night, new[name], changed=changed, leak=leaks.get(name), event=str(row["event"])
        )
    return rows


def _status(state: Followed, new: Sequence[Measured], compared: Difference | None, *, changed: bool) -> str:
    """The status of a series on a night: FIRST (no earlier runs), SAME (no new runs), UNTESTED (too few to compare),
    else CHANGED or WITHIN the band."""
    if compared is not None:
        return CHANGED if changed else WITHIN
    return FIRST if not state.runs else SAME if not new else UNTESTED


def _event(name: Series, state: Followed, *, changed: bool, leak: bool | None, compared: Difference | None) -> str:
    """The event of a series on a night, "" without one. A leak is new or healed only if the number changed: a night
    that shows a leak for the first time, or not again, has not shown that it came or went."""
    if not changed or compared is None:
        return SHOWN if leak and state.runs and not state.ever_leaked else ""
    if name.quantity != VALUE:
        return DRIFT
    middle = name.largest / 2
    closer = abs(compared.now - middle) < abs(compared.before - middle)
    if closer:
        return HEALED if state.leaking and leak is False else CHANGED
    return NEW_LEAK if leak and not state.leaking else CHANGED


def _update(
    state: Followed, night: int, new: Sequence[Measured], *, changed: bool, leak: bool | None, event: str
) -> bool:
    """Add a night's new runs to the series' state, and forget the nights before a change. Returns whether the series
    leaks by all nights so far."""
    if changed:
        state.past.clear()
        state.leaks.clear()
    if new:
        state.past[night] = list(new)
        state.runs |= {one.run for one in new}
    if leak is not None:
        state.leaks.append(leak)
        state.ever_leaked |= leak
    state.new_leak = (state.new_leak or event == NEW_LEAK) and event != HEALED
    return state.leaking


def _compared(name: Series, new: Sequence[Measured], before: Sequence[Measured]) -> Difference | None:
    """The difference between a night's `new` runs and those `before`; None: there are no runs, or too few for an
    error."""
    if name.by_spread:
        compared = spread(new, before) if new and before else None
        return compared if compared is not None and compared.degrees >= LEAST else None
    with_interval = [one for one in before if one.number.low is not None]
    complete = new and with_interval and all(one.number.low is not None for one in new)
    return difference(new, with_interval, name.largest * GRAIN) if complete else None


def spread(new: Sequence[Measured], before: Sequence[Measured]) -> Difference:
    """The difference between a night's `new` runs and those `before`, whose error is that of Student's test: from the
    spread of the means of data sets on each side."""
    now, then = ([value for value, _, _ in _by_data(runs)] for runs in (new, before))
    squares = sum((v - mean(side)) ** 2 for side in (now, then) for v in side)
    error = math.sqrt(1 / len(now) + 1 / len(then))
    return Difference(mean(now), mean(then), error, squares, len(now) + len(then) - 2, prior=0.0)


def difference(new: Sequence[Measured], before: Sequence[Measured], grain: float) -> Difference:
    """The difference between a night's `new` runs and those `before`, all with intervals, whose side towards the other
    mean is their error. Runs on the same data share their error; `grain` is the least one."""
    now, then = (list(_by_data(runs)) for runs in (new, before))
    means = mean(v for v, _, _ in now), mean(v for v, _, _ in then)
    up = means[0] >= means[1]
    squares, degrees, errors = 0.0, 0, []
    for groups, middle, side in ((now, means[0], 1 if up else 2), (then, means[1], 2 if up else 1)):
        of_groups = [max(grain, group[side]) for group in groups]
        squares += sum(((value - middle) / error) ** 2 for (value, _, _), error in zip(groups, of_groups, strict=True))
        degrees += len(groups) - 1
        errors.append(math.sqrt(sum(e**2 for e in of_groups)) / len(groups))
    return Difference(*means, math.hypot(*errors), squares, degrees)


def _by_data(runs: Iterable[Measured]) -> Iterator[tuple[float, float, float]]:
    """Yield for every data set the mean of its runs, and the mean's standard errors below and above."""
    groups: dict[Hashable, list[OfTraining]] = {}
    for one in runs:
        groups.setdefault(one.number.data, []).append(one.number)
    for group in groups.values():
        below, above = (math.sqrt(mean(e**2 for e in side)) for side in zip(*(o.errors for o in group), strict=True))
        yield mean(o.value for o in group), below, above


def shared_ratio(differences: Iterable[Difference]) -> float:
    """The variance of runs over that of their intervals, of all series with intervals together; at least 1."""
    distinct = {d for d in differences if d.prior}
    squares, degrees = sum(d.squares for d in distinct), sum(d.degrees for d in distinct)
    return max(1.0, (PRIOR + squares) / (PRIOR + degrees))


def band(d: Difference, ratio: float, error: float, largest: float) -> dict[str, float]:
    """The columns before, band_low, band_high and p of a difference: without a change tonight's number lies outside the
    band with a probability of `error`; p is two-sided."""
    degrees = d.prior + d.degrees
    scale = max(d.error * math.sqrt((d.prior * ratio + d.squares) / degrees), largest * GRAIN)
    reach = -float(stdtrit(degrees, error / 2)) * scale
    p = 2 * float(stdtr(degrees, -abs(d.now - d.before) / scale))
    ends = {"band_low": max(0.0, d.before - reach), "band_high": min(largest, d.before + reach)}
    return {"before": d.before, **ends, "p": p}


def tonight(runs: Sequence[Measured], ratio: float, name: Series) -> dict[str, float | None]:
    """The columns value, low and high of a night's runs: their mean with its interval; for AUROCs by the errors of the
    runs, their variances times the shared `ratio`, as Student's interval of two seeds would be too wide."""
    over_runs = over_seeds([one.number for one in runs], confidence=CONFIDENCE, least=0.0, most=name.largest)
    low, high = over_runs.low, over_runs.high
    if not name.by_spread and all(one.number.low is not None for one in runs):
        reach = quantile(None, CONFIDENCE) * math.sqrt(ratio)
        groups = list(_by_data(runs))
        below, above = (reach * math.sqrt(sum(group[side] ** 2 for group in groups)) / len(groups) for side in (1, 2))
        low, high = max(0.0, over_runs.value - below), min(name.largest, over_runs.value + above)
    return {"value": over_runs.value, "low": low, "high": high}


def stouffer(runs: Sequence[Measured]) -> float | None:
    """The permutation statistics of runs joined into one, standard normal if nothing leaks; None if no run has one.
    Runs on the same data count as their mean."""
    groups: dict[Hashable, list[float]] = {}
    for one in runs:
        if one.z is not None:
            groups.setdefault(one.number.data, []).append(one.z)
    return sum(mean(group) for group in groups.values()) / math.sqrt(len(groups)) if groups else None
