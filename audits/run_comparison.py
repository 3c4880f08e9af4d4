"""What an audit is given that compares runs (`Facts.across`), and what it returns; which runs are one point.

A point is what was trained: runs whose settings are the same but for the seed. Points are compared within a world: the
same task and frozen model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedaudit.terms.splits import SPLITS

# entries of a setting, by how their paths begin, that say nothing about what was trained
BESIDE = (
    "seed", "data_seed", "device", "keys.", "manifests.", "versions.", "fedaudit", "code", "attack", "audit.",
    "adversary.",
)  # fmt: skip
WORLD = ("task.", "backbone.")
METHOD, EPSILON = "method.name", "privacy.epsilon"
METRICS = {"exact_match": "higher", "cider": "higher", "loss": "lower"}  # of answers, and which is better
UTILITIES = (*SPLITS, *METRICS)


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A training with what audits said of it; `setting` holds every entry by its path, as `method.rank`."""

    key: str  # of its analysis
    method: str  # what tables call it
    seed: int
    setting: Mapping[str, Any]
    findings: Sequence[Mapping[str, Any]]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def draw(self) -> tuple[Any, int]:
        """Which data and coins it had, and which training it is of these."""
        return self.setting.get("data_seed"), self.seed


@dataclass(frozen=True)
class Compared:
    """What an audit says of several runs: tables by name, and sentences. `empty` says why nothing could be compared,
    where that is so."""

    tables: Mapping[str, pd.DataFrame]
    sentences: Sequence[str] = ()
    empty: str = ""


@dataclass(frozen=True, eq=False)
class Point:
    """Runs of one setting. `parameters` are the entries that say what was trained, `name` those that differ."""

    world: str
    parameters: Mapping[str, Any]
    runs: Sequence[AuditedRun]
    swept: tuple[str, ...] = ()  # the entries that differ between points of its world

    @property
    def method(self) -> str:
        return str(self.parameters.get(METHOD, self.runs[0].method))

    @property
    def values(self) -> dict[str, Any]:
        """Its values of what is swept, as far as it has them."""
        return {name: self.parameters[name] for name in self.swept if name in self.parameters}

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        own = (f"{name.partition('.')[2]}={shown(value)}" for name, value in self.values.items() if name != METHOD)
        return " ".join([self.method, *own])

    @property
    def latest(self) -> list[AuditedRun]:
        """A run for each draw, of several the one that stands last."""
        return list({run.draw: run for run in self.runs}.values())


def shown(value: Any) -> str:
    """A value of a parameter as tables and figures write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ("inf", math.inf):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def points(runs: Iterable[AuditedRun]) -> list[Point]:
    """The points that runs are of, in their order."""
    found: dict[tuple[str, str], tuple[Mapping[str, Any], list[AuditedRun]]] = {}
    for run in runs:
        own = _parameters(run)
        found.setdefault((_world(run), repr(sorted(own.items()))), (own, []))[1].append(run)
    bare = [Point(world, own, tuple(mine)) for (world, _), (own, mine) in found.items()]
    swept = {world: _swept([p for p in bare if p.world == world]) for world in {p.world for p in bare}}
    return [Point(p.world, p.parameters, p.runs, swept[p.world]) for p in bare]


def _parameters(run: AuditedRun) -> dict[str, Any]:
    """What was trained. Where there is no noise, nothing else of privacy decides anything."""
    own = {name: v for name, v in run.setting.items() if not name.startswith((*BESIDE, *WORLD)) and "." in name}
    if own.get(EPSILON) == "inf":
        own = {name: v for name, v in own.items() if name == EPSILON or not name.startswith("privacy.")}
    return own


def _world(run: AuditedRun) -> str:
    entries = {name: v for name, v in run.setting.items() if name.startswith(WORLD)}
    return repr(sorted((name, repr(v)) for name, v in entries.items()))


def _swept(found: Sequence[Point]) -> tuple[str, ...]:
    """The entries that differ between points of one method, and the method where there are several."""
    names: dict[str, None] = dict.fromkeys([METHOD] if len({p.method for p in found}) > 1 else [])
    for method in dict.fromkeys(p.method for p in found):
        mine = [p.parameters for p in found if p.method == method]
        for name in dict.fromkeys(itertools.chain(*mine)):
            if len({repr(own[name]) for own in mine if name in own}) > 1:
                names[name] = None
    return tuple(names)


def world_names(found: Sequence[Point]) -> dict[str, str]:
    """What tables call the worlds: by their tasks, numbered where several worlds have one task."""
    tasks = {p.world: str(p.runs[0].setting.get("task.name", p.runs[0].setting.get("task", ""))) for p in found}
    several = {task for task in tasks.values() if list(tasks.values()).count(task) > 1}
    count = itertools.count(1)
    return {world: f"{task} {next(count)}" if task in several else task for world, task in tasks.items()}


def utility_names(runs: Iterable[AuditedRun]) -> list[str]:
    """The utilities that all of some runs have at their end, in the order of `UTILITIES`."""
    have = [set(utilities(run)) for run in runs]
    return [name for name in UTILITIES if all(name in own for own in have)]


def utilities(run: AuditedRun) -> dict[str, dict[str, Any]]:
    """The utilities of a run at its end: accuracies as findings say them, the last round's of answers without an
    interval."""
    found = {f["metric"].partition("/")[2]: dict(f) for f in run.findings if str(f["metric"]).startswith("accuracy/")}
    for name in METRICS:
        if len(lines := by_round(run, name)):
            found[name] = {"value": float(lines.iloc[-1]), "low": None, "high": None, "confidence": 0.95}
    return found


def by_round(run: AuditedRun, utility: str) -> pd.Series:
    """A utility of the global model, or the mean over clients, by round (-1: before training); empty where it was not
    measured."""
    if utility in METRICS:
        table = run.tables.get("utility", pd.DataFrame())
        if utility not in table:
            return pd.Series(dtype=float)
        own = table[table.model == "global"]
        return pd.Series(own[utility].to_numpy(float), own["round"]).dropna().sort_index()
    table = run.tables.get("accuracy", pd.DataFrame(columns=["round", "client", "split", "accuracy"]))
    own = table[(table.client == "mean") & (table.split == utility)]
    return pd.Series(own.accuracy.to_numpy(float), own["round"]).sort_index()
