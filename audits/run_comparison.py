"""Input and result of an audit that compares runs (`Facts.across`), and how runs are grouped into points.

A point is one training setting: runs that differ in the seed only. A world is a task with a frozen model: points are
compared within it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedaudit.terms.splits import SPLITS

# beginnings of the paths of entries that say nothing about what was trained
BESIDE = (
    "seed", "data_seed", "device", "precision", "keys.", "manifests.", "versions.", "fedaudit", "code", "attack",
    "audit.", "adversary.",
)  # fmt: skip
WORLD = ("task.", "backbone.")
METHOD, EPSILON = "method.name", "privacy.epsilon"
METRICS = {
    "exact_match": "higher",
    "cider": "higher",
    "loss": "lower",
}  # of answers, and whether higher or lower is better
UTILITIES = (*SPLITS, *METRICS)


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run with its findings and tables by name; `setting` has every entry by its path, such as `method.rank`."""

    key: str  # of its analysis
    method: str  # its name in tables
    seed: int
    setting: Mapping[str, Any]
    findings: Sequence[Mapping[str, Any]]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def draw(self) -> tuple[Any, int]:
        """The data seed, which decides data and coins, and the training seed."""
        return self.setting.get("data_seed"), self.seed


@dataclass(frozen=True)
class Compared:
    """The result of an audit of several runs: tables by name, sentences, and `empty`: why nothing was compared, or
    ""."""

    tables: Mapping[str, pd.DataFrame]
    sentences: Sequence[str] = ()
    empty: str = ""


@dataclass(frozen=True, eq=False)
class Point:
    """Runs of one setting. `parameters` are the entries that say what was trained, by path."""

    world: str
    parameters: Mapping[str, Any]
    runs: Sequence[AuditedRun]
    swept: tuple[str, ...] = ()  # the entries that differ between points of its world

    @property
    def method(self) -> str:
        """The method's name on the command line."""
        return str(self.parameters.get(METHOD, self.runs[0].method))

    @property
    def values(self) -> dict[str, Any]:
        """Its values of the swept entries, without those that it lacks."""
        return {name: self.parameters[name] for name in self.swept if name in self.parameters}

    @property
    def name(self) -> str:
        """The point's name in tables and figures: the method, then entry=value for what is swept."""
        entries = (
            f"{name.partition('.')[2]}={format_value(value)}" for name, value in self.values.items() if name != METHOD
        )
        return " ".join([self.method, *entries])

    @property
    def latest(self) -> list[AuditedRun]:
        """The last run of each `draw`."""
        return list({run.draw: run for run in self.runs}.values())


def format_value(value: Any) -> str:
    """A value of a parameter as tables and figures write it: "yes" or "no" for a bool, "none" for None and infinity."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ("inf", math.inf):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def points(runs: Iterable[AuditedRun]) -> list[Point]:
    """The runs grouped into points, one per setting of a world, in the order of the runs."""
    grouped: dict[tuple[str, str], tuple[Mapping[str, Any], list[AuditedRun]]] = {}
    for run in runs:
        parameters = _parameters(run)
        grouped.setdefault((_world(run), repr(sorted(parameters.items()))), (parameters, []))[1].append(run)
    bare = [Point(world, parameters, tuple(members)) for (world, _), (parameters, members) in grouped.items()]
    swept = {world: _swept([p for p in bare if p.world == world]) for world in {p.world for p in bare}}
    return [Point(p.world, p.parameters, p.runs, swept[p.world]) for p in bare]


def _parameters(run: AuditedRun) -> dict[str, Any]:
    """The entries {path: value} of a run's setting that say what was trained, without those of its world. Without noise
    no other privacy entry counts."""
    entries = {name: v for name, v in run.setting.items() if not name.startswith((*BESIDE, *WORLD)) and "." in name}
    if entries.get(EPSILON) == "inf":
        entries = {name: v for name, v in entries.items() if name == EPSILON or not name.startswith("privacy.")}
    return entries


def _world(run: AuditedRun) -> str:
    """A key of a run's task and frozen model."""
    entries = {name: v for name, v in run.setting.items() if name.startswith(WORLD)}
    return repr(sorted((name, repr(v)) for name, v in entries.items()))


def _swept(in_world: Sequence[Point]) -> tuple[str, ...]:
    """The paths of the entries, such as "method.rank", that differ between points of one method; METHOD comes first if
    there are several methods."""
    names: dict[str, None] = dict.fromkeys([METHOD] if len({p.method for p in in_world}) > 1 else [])
    for method in dict.fromkeys(p.method for p in in_world):
        of_method = [p.parameters for p in in_world if p.method == method]
        for name in dict.fromkeys(itertools.chain(*of_method)):
            if len({repr(parameters[name]) for parameters in of_method if name in parameters}) > 1:
                names[name] = None
    return tuple(names)


def world_names(settings: Sequence[Point]) -> dict[str, str]:
    """By world (the key of a task with its data) its name in tables: the task, numbered if several worlds have the same
    task."""
    tasks = {p.world: str(p.runs[0].setting.get("task.name", p.runs[0].setting.get("task", ""))) for p in settings}
    several = {task for task in tasks.values() if list(tasks.values()).count(task) > 1}
    count = {task: itertools.count(1) for task in several}
    return {world: f"{task} {next(count[task])}" if task in several else task for world, task in tasks.items()}


def utility_names(runs: Iterable[AuditedRun]) -> list[str]:
    """The utilities that all these runs have at their end, in the order of `UTILITIES`."""
    measured = [set(utilities(run)) for run in runs]
    return [name for name in UTILITIES if all(name in of_run for of_run in measured)]


def utilities(run: AuditedRun) -> dict[str, dict[str, Any]]:
    """By name the utilities of a run at its end, {value, low, high, confidence}: accuracies as their findings have
    them; utilities of answers (loss, exact match, CIDEr) of the last round, with low and high None."""
    at_end = {f["metric"].partition("/")[2]: dict(f) for f in run.findings if str(f["metric"]).startswith("accuracy/")}
    for name in METRICS:
        if len(trained := by_round(run, name).loc[0:]):
            at_end[name] = {"value": float(trained.iloc[-1]), "low": None, "high": None, "confidence": 0.95}
    return at_end


def by_round(run: AuditedRun, utility: str) -> pd.Series:
    """A utility by round (-1: before training): of answers (`METRICS`) that of the global model, of accuracies the mean
    over clients. Empty if it was not measured."""
    if utility in METRICS:
        table = run.tables.get("utility", pd.DataFrame())
        if utility not in table:
            return pd.Series(dtype=float)
        rows = table[table.model == "global"]
        return pd.Series(rows[utility].to_numpy(float), rows["round"]).dropna().sort_index()
    table = run.tables.get("accuracy", pd.DataFrame(columns=["round", "client", "split", "accuracy"]))
    rows = table[(table.client == "mean") & (table.split == utility)]
    return pd.Series(rows.accuracy.to_numpy(float), rows["round"]).sort_index()
