"""What changed over the nights of a matrix of audits: a number against the band that earlier nights leave it, and leaks
that are new or healed.

A series is one number of one cell of the matrix under one adversary; seeds are its repetitions. Tonight's mean over the
runs that no earlier night had is held against the mean over the runs of the last nights since it last changed.

An AUROC's error is that of its interval over records and clients. How much further runs lie apart than that, seeds and
trainings being others, is estimated from all such series together and moderated for each (Smyth 2004): a variance of
`PRIOR` degrees of freedom at the ratio of all series, no less than 1, and that of its own runs. An accuracy's interval
is over the clients of one training and says nothing of other data: its runs' own spread alone counts (Student's two
samples), once that has `LEAST` degrees of freedom. The tail of Student's t is corrected for the number of distinct
tests of the night (Bonferroni), and half of `LEVEL` is kept in reserve: a night without a change says that something
changed with a probability of at most `LEVEL` (`benchmarks.nights`).

A leak of a night is a series whose runs' permutation statistics (`audits.permutation_test`), summed over independent
data (Stouffer), are off their centre after correction for all leaks that the night tests: of nights without a leak at
most `LEVEL` have one. It is new where the number has changed and most earlier nights had none; one that is shown for
the first time within its band may have been there before, or be chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean as mean
from typing import NamedTuple

import pandas as pd
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from audits.statistics.over_seeds import OfTraining, over_seeds

LEVEL = 0.05  # of nights without a change that say there is one
WINDOW = 14  # nights that tonight is held against, at most
SPENT = 0.5  # of LEVEL: variances are known from few nights only, and far tails are longer then (`benchmarks.nights`)
PRIOR = 10.0  # degrees of freedom of the variance that all AUROCs share
LEAST = 3  # degrees of freedom of a spread that stands alone
CONFIDENCE = 0.95  # of the interval beside tonight's number
VALUE, BASE, BLIND = "value", "base model", "blind"  # what is followed: the number itself, and its two controls
FIRST, SAME, WITHIN, CHANGED, UNTESTED = "first", "same runs", "within the band", "changed", "too few runs yet"
NEW_LEAK, HEALED, DRIFT, SHOWN = "new leak", "healed leak", "control drift", "leak shown for the first time"
PLACE = ("threat_model", "way", "population", "nonmembers", "signal")  # of a finding about an attack
LARGEST = {"auroc": 1.0}  # of a metric; accuracies are percent
GRAIN = 0.005  # least error of a number, as a share of the largest: intervals of ties have no width


class Series(NamedTuple):
    """What names a number that is followed over nights; a control has no adversary of its own."""

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
        return LARGEST.get(self.metric, 100.0)

    @property
    def by_spread(self) -> bool:
        """Whether runs' own spread alone says how far they lie apart."""
        return self.metric not in LARGEST


class Measured(NamedTuple):
    """A run's number with its interval, what records it is of, and its permutation statistic."""

    run: str
    data: str
    value: float
    low: float | None
    high: float | None
    confidence: float
    z: float | None

    @property
    def of_training(self) -> OfTraining:
        return OfTraining(self.value, self.low, self.high, self.confidence, self.data)


@dataclass
class Followed:
    """What the nights so far have left of a series."""

    past: dict[int, list[Measured]] = field(default_factory=dict)  # by night, since it last changed
    known: set[str] = field(default_factory=set)  # runs of all nights
    leaks: list[bool] = field(default_factory=list)  # whether the nights of `past` were leaks, as far as tested
    new_leak: bool = False  # and has not healed
    shown: bool = False  # as a leak, on any night

    @property
    def leaking(self) -> bool:
        """Whether it leaks by what is known so far: a new leak did not heal, or most nights show one."""
        return self.new_leak or 2 * sum(self.leaks) > len(self.leaks)

    def before(self, night: int) -> list[Measured]:
        """The runs that tonight is held against."""
        return [one for earlier, runs in self.past.items() if earlier >= night - WINDOW for one in runs]


@dataclass(frozen=True)
class Difference:
    """Tonight's mean less that of earlier nights, its error by intervals alone (by a spread of 1, without them), and
    how far runs of either lie from their mean: squares in units of those errors, with their degrees of freedom.
    `prior` are the degrees of freedom of the variance that it shares with others."""

    now: float
    before: float
    error: float
    squares: float
    degrees: int
    prior: float = PRIOR


def judged(history: pd.DataFrame, *, level: float = LEVEL) -> pd.DataFrame:
    """A row per night and series: its fields, `value` with `low` and `high` over tonight's runs, `runs` of which `new`
    no earlier night had; `before`, `band_low` and `band_high`, `p` and `p_adjusted` where it was tested; `status`,
    whether it is a `leak` of the night (None: nothing new was tested), whether it is `leaking` by all nights so far,
    the `event`, "" where there is none, and whether that is an `alarm`: all are but SHOWN.

    `history` holds a row per finding and night, with the fields of `audits.findings` and `night`, `cell` and `data`.
    """
    followed: dict[Series, Followed] = {}
    rows: list[dict[str, object]] = []
    for night, own in history.groupby("night") if len(history) else ():
        rows += _night(int(night), series(own), followed, level)
    columns = [
        "night", *Series._fields, "value", "low", "high", "runs", "new", "before", "band_low", "band_high", "p",
        "p_adjusted", "status", "leak", "leaking", "event", "alarm",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype({"alarm": bool})


def series(findings: pd.DataFrame) -> dict[Series, list[Measured]]:
    """The numbers of one night that are followed: primary AUROCs (named beforehand, coins decide) with the controls
    beside them, and accuracies; a control once for all adversaries who are asked about the same records."""
    found: dict[Series, dict[str, Measured]] = {}
    for f in findings.to_dict("records"):
        for name, one in _followed(f):
            found.setdefault(name, {}).setdefault(one.run, one)
    return {name: list(runs.values()) for name, runs in found.items()}


def _followed(f: Mapping[str, object]) -> Iterator[tuple[Series, Measured]]:
    """The series that a finding belongs to, each with its number."""
    place = str(f["cell"]), str(f["method"])
    if str(f["metric"]).startswith("accuracy"):
        yield Series(*place, VALUE, str(f["metric"])), _measured(f, "")
    elif f["metric"] == "auroc" and f.get("family") == "primary":
        threat_model, way, population, nonmembers, signal = (str(f[name]) for name in PLACE)
        if _number(f["value"]) is not None:
            yield Series(*place, VALUE, "auroc", threat_model, way, population, nonmembers, signal), _measured(f, "")
        if _number(f["base_value"]) is not None:
            yield Series(*place, BASE, "auroc", "", "", population, nonmembers, signal), _measured(f, "base_")
        if _number(f["blind_value"]) is not None:
            yield Series(*place, BLIND, "auroc", "", "", population, nonmembers), _measured(f, "blind_")


def _measured(f: Mapping[str, object], prefix: str) -> Measured:
    value, low, high = (_number(f[f"{prefix}{name}"]) for name in ("value", "low", "high"))
    assert value is not None
    z = None if prefix else _number(f.get("z"))
    return Measured(str(f["run"]), str(f["data"]), value, low, high, float(str(f["confidence"])), z)


def _number(value: object) -> float | None:
    """A number; None for what is missing."""
    return float(value) if isinstance(value, (int, float)) and not math.isnan(value) else None


def _night(
    night: int, found: Mapping[Series, Sequence[Measured]], followed: dict[Series, Followed], level: float
) -> list[dict[str, object]]:
    """The rows of a night; `followed` goes on to it."""
    states = {name: followed.setdefault(name, Followed()) for name in found}
    new = {name: [one for one in runs if one.run not in states[name].known] for name, runs in found.items()}
    compared = {name: _compared(name, new[name], states[name].before(night)) for name in found}
    differences = {name: d for name, d in compared.items() if d is not None}
    tests = max(1, len(set(differences.values())))
    ratio = shared_ratio(differences.values())
    sums = {name: z for name in found if (z := stouffer(new[name])) is not None}
    leaks = {name: 2 * float(ndtr(-abs(z))) * len(set(sums.values())) <= level for name, z in sums.items()}
    rows = []
    for name, runs in found.items():
        state = states[name]
        row: dict[str, object] = {"night": night, **name._asdict(), **tonight(runs, ratio, name)}
        row |= {"runs": len(runs), "new": len(new[name])}
        changed = False
        if (own := differences.get(name)) is not None:
            told = band(own, ratio, SPENT * level / tests, name.largest)
            row |= told | {"p_adjusted": min(1.0, told["p"] * tests / SPENT)}
            changed = told["p"] * tests / SPENT <= level
        row["status"] = _status(state, new[name], own, changed=changed)
        row["leak"] = leaks.get(name)
        row["event"] = _event(name, state, changed=changed, leak=leaks.get(name), compared=own)
        row["alarm"] = row["event"] not in ("", SHOWN)
        rows.append(row)
        row["leaking"] = _go_on(state, night, new[name], changed=changed, leak=leaks.get(name), event=str(row["event"]))
    return rows


def _status(state: Followed, new: Sequence[Measured], compared: Difference | None, *, changed: bool) -> str:
    if compared is not None:
        return CHANGED if changed else WITHIN
    return FIRST if not state.known else SAME if not new else UNTESTED


def _event(name: Series, state: Followed, *, changed: bool, leak: bool | None, compared: Difference | None) -> str:
    """What the night says of a series. That a leak is new or gone takes a change: a night that shows a leak for the
    first time, or does not find it again, has not shown that it came or went."""
    if not changed or compared is None:
        return SHOWN if leak and state.known and not state.shown else ""
    if name.quantity != VALUE:
        return DRIFT
    middle = name.largest / 2
    closer = abs(compared.now - middle) < abs(compared.before - middle)
    if closer:
        return HEALED if state.leaking and leak is False else CHANGED
    return NEW_LEAK if leak and not state.leaking else CHANGED


def _go_on(
    state: Followed, night: int, new: Sequence[Measured], *, changed: bool, leak: bool | None, event: str
) -> bool:
    """Take a night's new runs over; what lies before a change is no longer compared. Returns whether it leaks."""
    if changed:
        state.past.clear()
        state.leaks.clear()
    if new:
        state.past[night] = list(new)
        state.known |= {one.run for one in new}
    if leak is not None:
        state.leaks.append(leak)
        state.shown |= leak
    state.new_leak = (state.new_leak or event == NEW_LEAK) and event != HEALED
    return state.leaking


def _compared(name: Series, new: Sequence[Measured], before: Sequence[Measured]) -> Difference | None:
    """Tonight's runs against earlier ones; None where there is nothing to compare, or nothing that says how well."""
    if name.by_spread:
        found = spread(new, before) if new and before else None
        return found if found is not None and found.degrees >= LEAST else None
    known = [one for one in before if one.low is not None]
    whole = new and known and all(one.low is not None for one in new)
    return difference(new, known, name.largest * GRAIN) if whole else None


def spread(new: Sequence[Measured], before: Sequence[Measured]) -> Difference:
    """Tonight's runs against earlier ones by how far they lie apart: Student's two samples, of means of data sets."""
    now, then = ([value for value, _, _ in _by_data(runs)] for runs in (new, before))
    squares = sum((v - mean(side)) ** 2 for side in (now, then) for v in side)
    error = math.sqrt(1 / len(now) + 1 / len(then))
    return Difference(mean(now), mean(then), error, squares, len(now) + len(then) - 2, prior=0.0)


def difference(new: Sequence[Measured], before: Sequence[Measured], grain: float) -> Difference:
    """Tonight's runs against earlier ones, all with intervals. Of an interval that is not symmetric counts the side
    towards the other mean. Runs on the same data share their error."""
    now, then = (list(_by_data(runs)) for runs in (new, before))
    means = mean(v for v, _, _ in now), mean(v for v, _, _ in then)
    up = means[0] >= means[1]
    squares, degrees, errors = 0.0, 0, []
    for groups, middle, side in ((now, means[0], 1 if up else 2), (then, means[1], 2 if up else 1)):
        own = [max(grain, group[side]) for group in groups]
        squares += sum(((value - middle) / error) ** 2 for (value, _, _), error in zip(groups, own, strict=True))
        degrees += len(groups) - 1
        errors.append(math.sqrt(sum(e**2 for e in own)) / len(own))
    return Difference(*means, math.hypot(*errors), squares, degrees)


def _by_data(runs: Iterable[Measured]) -> Iterator[tuple[float, float, float]]:
    """Of every data set the mean of its runs, and its errors below and above."""
    groups: dict[str, list[OfTraining]] = {}
    for one in runs:
        groups.setdefault(one.data, []).append(one.of_training)
    for own in groups.values():
        below, above = (math.sqrt(mean(e**2 for e in side)) for side in zip(*(o.errors for o in own), strict=True))
        yield mean(o.value for o in own), below, above


def shared_ratio(found: Iterable[Difference]) -> float:
    """How many times the variance of their intervals the runs of all series that have these vary by; no less than 1."""
    distinct = {d for d in found if d.prior}
    squares, degrees = sum(d.squares for d in distinct), sum(d.degrees for d in distinct)
    return max(1.0, (PRIOR + squares) / (PRIOR + degrees))


def band(d: Difference, ratio: float, error: float, largest: float) -> dict[str, float]:
    """`before` with the ends of its band, beyond which tonight's number lies with a probability of `error` if nothing
    changed, and the two-sided `p` of the difference."""
    degrees = d.prior + d.degrees
    scale = max(d.error * math.sqrt((d.prior * ratio + d.squares) / degrees), largest * GRAIN)
    reach = -float(stdtrit(degrees, error / 2)) * scale
    p = 2 * float(stdtr(degrees, -abs(d.now - d.before) / scale))
    ends = {"band_low": max(0.0, d.before - reach), "band_high": min(largest, d.before + reach)}
    return {"before": d.before, **ends, "p": p}


def tonight(runs: Sequence[Measured], ratio: float, name: Series) -> dict[str, float | None]:
    """The mean of a night's runs with its interval: of AUROCs by the errors of the runs, at the ratio of all series, as
    Student's of two seeds would say nothing."""
    shown = over_seeds([one.of_training for one in runs], confidence=CONFIDENCE, least=0.0, most=name.largest)
    low, high = shown.low, shown.high
    if not name.by_spread and all(one.low is not None for one in runs):
        reach = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(ratio)
        groups = list(_by_data(runs))
        below, above = (reach * math.sqrt(sum(group[side] ** 2 for group in groups)) / len(groups) for side in (1, 2))
        low, high = max(0.0, shown.value - below), min(name.largest, shown.value + above)
    return {"value": shown.value, "low": low, "high": high}


def stouffer(runs: Sequence[Measured]) -> float | None:
    """The statistics of runs as one that is standard normal where nothing leaks: those of the same data count as their
    mean, which is smaller at most. None where no run has one."""
    groups: dict[str, list[float]] = {}
    for one in runs:
        if one.z is not None:
            groups.setdefault(one.data, []).append(one.z)
    return sum(mean(own) for own in groups.values()) / math.sqrt(len(groups)) if groups else None
