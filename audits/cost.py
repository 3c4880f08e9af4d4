"""Costs of methods at equal utility: bytes of the tensors really sent, rounds, seconds by phase and peak memory.

FedRand, Figure 3, compares bytes of a round; what a method needs is bytes until its models are good. Each setting is
counted until the first round after which its utility (mean over seeds) reaches a common target. By default the target
is the lowest final utility of the settings that gain at least half of the largest gain in the same world: a setting
that noise ruined would make the others' costs those of doing nothing. No round is interpolated. Seconds and memory are
those of the machine that trained (`fedaudit.machinery.resource_usage`); they are shown for runs on disk only, since a
report holds nothing in which two equal runs could differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.run_comparison import METRICS, AuditedRun, Compared, Point, by_round, points, world_names
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, number
from fedaudit.terms.splits import SPLITS

OF_ROUNDS = (*SPLITS, "loss")  # utilities that may be measured after every round


class Facts(AuditFacts):
    on_request = True
    across = True


@dataclass(frozen=True)
class Params(Parameters):
    reach: float = number(
        0.0,
        "utility at which costs are compared; 0: the lowest end of settings that gain half of the most",
        least=0,
        most=10**6,
    )


def cost(runs: Sequence[AuditedRun], params: Params) -> Compared:
    """The tables `costs`, a row per setting, and `cost_by_round`, a setting's utility and bytes sent so far by round;
    with a sentence for each world without a common utility. Runs without the table `cost` are left out. InputError: no
    run has it."""
    counted = [run for run in runs if len(run.tables.get("cost", ()))]
    if not counted:
        raise InputError(
            "--audit cost: no run here has counted bytes; of runs on disk their analyses must still be there"
        )
    settings = points(counted)
    names, rows, lines, sentences = world_names(settings), [], [], []
    for world in names:
        in_world = [p for p in settings if p.world == world]
        utility = next((u for u in OF_ROUNDS if all(len(by_round(r, u)) for p in in_world for r in p.latest)), None)
        curves = {p: _curve(p, utility) for p in in_world}
        target = _target(curves, utility, params)
        rows += [_row(names[world], p, curves[p], utility, target) for p in in_world]
        lines += [
            {"world": names[world], "point": p.name, "method": p.method, "utility_metric": utility, **line}
            for p in in_world
            for line in curves[p].to_dict("records")
        ]
        if utility is None:
            sentences.append(
                f"{names[world]}: no utility of every round is in all runs, so that none are compared at one"
            )
    return Compared({"costs": pd.DataFrame(rows), "cost_by_round": pd.DataFrame(lines)}, sentences)


def _curve(point: Point, utility: str | None) -> pd.DataFrame:
    """The columns round (-1: before training), sent (bytes of all clients up to it) and utility (NaN without one), a
    row per round; means over seeds."""
    parts = []
    for run in point.latest:
        table = run.tables["cost"].sort_values("round")
        sent = (table.bytes_down + table.bytes_up).cumsum()
        part = pd.DataFrame({"round": [-1, *table["round"]], "sent": [0, *sent]}).set_index("round")
        part["utility"] = by_round(run, utility) if utility else math.nan
        parts.append(part.reset_index())
    return pd.concat(parts).groupby("round", as_index=False).mean()


def _target(curves: Mapping[Point, pd.DataFrame], utility: str | None, params: Params) -> float:
    """The utility at which the settings of a world are compared: `params.reach` or, if that is 0, the worst final
    utility among those settings that gain at least half of the largest gain. NaN without a common utility."""
    if utility is None:
        return math.nan
    better = -1.0 if METRICS.get(utility) == "lower" else 1.0
    last = [better * float(curve.utility.iloc[-1]) for curve in curves.values()]
    gains = [end - better * float(curve.utility.iloc[0]) for end, curve in zip(last, curves.values(), strict=True)]
    useful = [end for end, gain in zip(last, gains, strict=True) if gain >= max(gains) / 2]
    return params.reach or better * min(useful or last)


def _row(world: str, point: Point, curve: pd.DataFrame, utility: str | None, target: float) -> dict[str, Any]:
    """The row of a setting in the table `costs`: bytes per message, in all, and until the utility `target` is reached
    (NaN: never, or there is none), then `_times`."""
    tables = [run.tables["cost"] for run in point.latest]
    down, up, whole, messages = (
        sum(int(table[name].sum()) for table in tables)
        for name in ("bytes_down", "bytes_up", "fedavg_bytes", "messages")
    )
    reached = (
        curve[curve.utility <= target] if METRICS.get(utility or "") == "lower" else curve[curve.utility >= target]
    )
    first = None if reached.empty else reached.iloc[0]
    return {
        "world": world, "point": point.name, "method": point.method, **point.values, "seeds": len(tables),
        "rounds": int(curve["round"].max()) + 1,
        "down": down / messages if messages else 0.0, "up": up / messages if messages else 0.0,
        "of_fedavg": (down + up) / whole if whole else math.nan, "sent": float(curve.sent.iloc[-1]),
        "utility_metric": utility, "utility": float(curve.utility.iloc[-1]), "target": target,
        "rounds_to_target": math.nan if first is None else int(first["round"]) + 1,
        "sent_to_target": math.nan if first is None else float(first.sent),
    } | _times(point)  # fmt: skip


def _times(point: Point) -> dict[str, float]:
    """The columns seconds_PHASE, means over runs, and peak_bytes, the most memory of any run; empty if no run has the
    table `times`."""
    tables = [run.tables["times"] for run in point.latest if len(run.tables.get("times", ()))]
    if not tables:
        return {}
    times = pd.concat(tables)
    seconds = times[times.phase != "peak"].groupby("phase").value.mean()
    row = {f"seconds_{phase.replace(' ', '_')}": float(seconds[phase]) for phase in seconds.index}
    return row | {"peak_bytes": float(times[times.phase == "peak"].value.max())}
