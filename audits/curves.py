"""Leakage against utility over everything that was swept: intervals from seeds and records, best attack, Pareto front.

A point is a setting, and its runs are trainings with different seeds (`audits.run_comparison`). Leakage is the AUROC,
and the TPR at 1 % FPR, of each attack's headline score against held-out records of the same clients. Intervals cover
other trainings and other records (`audits.statistics.over_seeds`).

For each adversary the best attack is, of those that ran at all points, the one with the highest mean over seeds of the
permutation statistic z (without coins, of the AUROC). Its interval is simultaneous over all n scores of these attacks
(Bonferroni), so it holds whichever is picked. Reversed scores are never picked: the sign was fixed beforehand.

A point is on the Pareto front if no point of its world leaks at most as much at no less utility, and is better in one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd
from scipy.stats import norm

from fedaudit.audits.attack_labels import attack_labels
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.run_comparison import (
    EPSILON,
    METRICS,
    AuditedRun,
    Compared,
    Point,
    points,
    utilities,
    utility_names,
    world_names,
)
from fedaudit.audits.settings import Confident
from fedaudit.audits.statistics.over_seeds import OfTraining, OverSeeds, over_seeds
from fedaudit.audits.statistics.pareto import front_probability, on_front
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import choice
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.splits import SPLITS

TPR = "tpr@1%"
NAMED = 3  # points that a sentence lists at most

Scored = tuple[str, ...]  # threat model, way, population, attack, signal
Leaks = dict[Scored, dict[Any, Mapping[str, Any]]]  # the finding by score, then by training


class Facts(AuditFacts):
    needs = ("attacks", "several")
    on_request = True
    across = True


@dataclass(frozen=True)
class Params(Confident):
    utility: str = choice(
        "",
        "utility of curves; by default the first of these that all runs have",
        ("", *SPLITS, "exact_match", "cider", "loss"),
    )


def curves(runs: Sequence[AuditedRun], params: Params) -> Compared:
    """The table `curves`: a row per point and score (`best_of` NaN), and one per point and adversary for the best of
    `best_of` scores; sentences about leakage as epsilon grows, and about what was left out. InputError: no two points
    can be compared."""
    settings = points(runs)
    names, rows = world_names(settings), []
    left_out: list[str] = []
    labels = attack_labels(runs)
    for world in names:
        attacked = [p for p in settings if p.world == world]
        attacked = [p for p in attacked if _leaks(p, TPR, labels) or _leaks(p, "auroc", labels)]
        if len(attacked) > 1:
            rows.append(_world(names[world], attacked, labels, params))
            left_out += _uncommon(names[world], attacked, labels)
        elif attacked:
            left_out.append(f"{names[world]}: a single setting was attacked, {attacked[0].name}: nothing was swept")
        else:
            left_out.append(f"{names[world]}: nothing was attacked; run it with --attack")
    if not rows:
        raise InputError(f"--audit curves: there are no two points to compare; {'; '.join(left_out)}")
    table = pd.concat(rows, ignore_index=True)
    best = table[table.best_of.notna()].groupby(["world", "threat_model"]).point.nunique()
    empty = "" if (best > 1).any() else "; ".join(left_out)
    return Compared({"curves": table}, [*_by_epsilon(table, params.confidence), *left_out], empty)


def _leaks(point: Point, metric: str, labels: Mapping[tuple[str, str], str]) -> Leaks:
    """A point's findings of one metric, {score: {training: finding}}: only of headline scores against held-out records,
    and only with a value. A score is (threat model, kind of model, population, label of the attack, signal), a training
    is `AuditedRun.draw`; of several analyses of one training the last counts."""
    leaks: Leaks = {}
    for run in point.runs:
        for f in run.findings:
            if f["metric"] == metric and f["headline"] and not f.get("best_of") and f["nonmembers"] == HELD_OUT:
                label = labels[run.key, f["attack"]]
                row = f["threat_model"], f["way"], f["population"], label, f["signal"]
                if f["value"] is not None:
                    leaks.setdefault(row, {})[run.draw] = f
    return leaks


def _world(name: str, attacked: Sequence[Point], labels: Mapping[tuple[str, str], str], params: Params) -> pd.DataFrame:
    """The rows of the world called `name`: one per attacked point and score, and one for the best of them. The column
    `front` says whether a row is on the Pareto front of all points' rows with the same score (False without an AUROC),
    `front_p` how probable that is. InputError: the points have no utility in common, or there are none."""
    utility = _utility(name, attacked, params)
    shared = _common(attacked, labels)
    rows = [row for p in attacked for row in _of_point(name, p, utility, labels, shared, params)]
    table = pd.DataFrame(rows)
    table["front"], table["front_p"] = False, math.nan
    sign = -1.0 if METRICS.get(utility) == "lower" else 1.0
    place = ["threat_model", "way", "population", "attack", "signal"]
    single = table[table.best_of.isna() & table.auroc.notna()]
    best = table[table.best_of.notna() & table.auroc.notna()]
    for part in [*(p for _, p in single.groupby(place)), *(p for _, p in best.groupby("threat_model"))]:
        u, leak = sign * part.utility.to_numpy(float), part.auroc.to_numpy(float)
        table.loc[part.index, "front"] = on_front(u, leak)
        chances = front_probability(u, part.utility_se.to_numpy(float), leak, part.auroc_se.to_numpy(float))
        table.loc[part.index, "front_p"] = chances
    return table


def _common(attacked: Sequence[Point], labels: Mapping[tuple[str, str], str]) -> dict[str, set[str]]:
    """By threat model, the labels (from `labels`) of the attacks that have an AUROC at all points attacked under it:
    only among these is a best one fair."""
    ran: dict[str, list[set[str]]] = {}
    for p in attacked:
        scores = _leaks(p, "auroc", labels)
        for threat in {score[0] for score in scores}:
            ran.setdefault(threat, []).append({score[3] for score in scores if score[0] == threat})
    return {threat: set.intersection(*of_points) for threat, of_points in ran.items()}


def _uncommon(name: str, attacked: Sequence[Point], labels: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A sentence for each adversary whose attacks did not all run at all its points: the attacks that did or, if there
    are none, the attack that lacks the fewest points, and which points these are."""
    for threat, shared in _common(attacked, labels).items():
        ran = {p.name: {score[3] for score in _leaks(p, "auroc", labels) if score[0] == threat} for p in attacked}
        ran = {point: attacks for point, attacks in ran.items() if attacks}
        every = sorted(set.union(*ran.values()))
        if shared and len(shared) < len(every):
            of = ", ".join(sorted(shared))
            yield f"{name}, {threat}: of {len(every)} attacks those that ran at all settings are compared: {of}"
        elif not shared:
            widest = max(every, key=lambda attack: sum(attack in attacks for attacks in ran.values()))
            lacking = [point for point, attacks in ran.items() if widest not in attacks]
            more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
            yield (
                f"{name}, {threat}: no attack ran with the same settings at all {len(ran)} points, so none are "
                f"compared; {widest} lacks {len(lacking)}: {', '.join(lacking[:NAMED])}{more}"
            )


def _utility(name: str, attacked: Sequence[Point], params: Params) -> str:
    """The name of the utility of the curves: `params.utility` or, if that is "", the first one that all runs have.
    InputError, naming the world `name`: the runs have none in common, or not the one that was asked for."""
    common = utility_names(run for p in attacked for run in p.latest)
    if not common:
        raise InputError(
            f"--audit curves: the runs on {name} have no utility in common; the same command as theirs, run again, "
            "makes what is missing"
        )
    if params.utility and params.utility not in common:
        raise InputError(f"--utility {params.utility}: the runs on {name} have {', '.join(common)}")
    return params.utility or common[0]


def _of_point(
    world: str,
    point: Point,
    utility: str,
    labels: Mapping[tuple[str, str], str],
    shared: Mapping[str, set[str]],
    params: Params,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a point: one per score, then one per adversary for its best score of the `shared` attacks (none
    without shared attacks). All repeat the point's swept values and its utility."""
    useful = _useful(point, utility, params)
    head = {"world": world, "point": point.name, "method": point.method} | point.values
    head |= {"utility_metric": utility, "utility": useful.value, "utility_low": useful.low, "utility_high": useful.high}
    head |= {"utility_se": useful.se, "utility_seeds": useful.seeds}
    aurocs, tprs = (_leaks(point, metric, labels) for metric in ("auroc", TPR))
    for score in aurocs:
        yield head | _row(score, aurocs[score], tprs.get(score, {}), params.confidence, None)
    for threat in dict.fromkeys(score[0] for score in aurocs):
        compared = [score for score in aurocs if score[0] == threat and score[3] in shared[threat]]
        if not compared:
            continue
        best = max(compared, key=lambda score: _strength(aurocs[score]))
        level = 1 - (1 - params.confidence) / len(compared)
        yield head | _row(best, aurocs[best], tprs.get(best, {}), level, len(compared))


def _useful(point: Point, utility: str, params: Params) -> OverSeeds:
    """The utility of that name of a point: mean over its trainings, with interval."""
    measured = [(utilities(run)[utility], run) for run in point.latest]
    parts = [OfTraining(f["value"], f["low"], f["high"], f["confidence"], run.draw[0]) for f, run in measured]
    most, least = (math.inf, -math.inf) if utility in METRICS else (100.0, 0.0)
    return over_seeds(parts, confidence=params.confidence, least=least, most=most)


def _strength(by_training: Mapping[Any, Mapping[str, Any]]) -> tuple[float, float]:
    """Sort key of a score: the mean z, then the mean AUROC; without z the AUROC alone."""
    z, value = _z(by_training), mean(f["value"] for f in by_training.values())
    return (-math.inf if math.isnan(z) else z), value


def _z(by_training: Mapping[Any, Mapping[str, Any]]) -> float:
    """Mean z over trainings; NaN if any has none."""
    z = [f["z"] for f in by_training.values() if f.get("z") is not None]
    return mean(z) if len(z) == len(by_training) else math.nan


def _row(
    score: Scored,
    aurocs: Mapping[Any, Mapping[str, Any]],
    tprs: Mapping[Any, Mapping[str, Any]],
    confidence: float,
    best_of: int | None,
) -> dict[str, Any]:
    """The columns about one score of a point: AUROC and TPR at 1 % FPR as means over trainings, from its findings by
    training; `best_of`: the number of scores that it is the best of (None: it stands for itself)."""
    names = dict(zip(("threat_model", "way", "population", "attack", "signal"), score, strict=True))
    some = next(iter(aurocs.values()))
    row = names | {"best_of": math.nan if best_of is None else best_of, "confidence": confidence, "z": _z(aurocs)}
    row |= _ends("auroc", aurocs, confidence) | _ends("tpr_1", tprs, confidence)
    coarse = any(f.get("status", "ok") != "ok" for f in tprs.values())
    row |= {"tpr_1_status": ("coarse" if coarse else "ok") if tprs else "not measurable"}
    return row | {name: some[name] for name in ("members", "nonmembers_n", "clients")}


def _ends(name: str, by_training: Mapping[Any, Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """The columns NAME, NAME_low, NAME_high, NAME_se and NAME_seeds: the mean over trainings; NaN, and 0 seeds, without
    any."""
    ends = (name, f"{name}_low", f"{name}_high", f"{name}_se", f"{name}_seeds")
    if not by_training:
        return dict(zip(ends, (*[math.nan] * 4, 0), strict=True))
    parts = [OfTraining(f["value"], f["low"], f["high"], f["confidence"], d[0]) for d, f in by_training.items()]
    i = over_seeds(parts, confidence=confidence, least=0.0, most=1.0)
    return dict(zip(ends, (i.value, i.low, i.high, i.se, i.seeds), strict=True))


def _by_epsilon(table: pd.DataFrame, confidence: float) -> Iterator[str]:
    """Yield a sentence per world and adversary with two or more epsilons: whether the best attack's leakage falls by
    more than chance between neighbouring epsilons as epsilon grows, which hints at a fault, or nowhere."""
    if EPSILON not in table:
        return
    best = table[table.best_of.notna() & table[EPSILON].notna()]
    others = [n for n in best if "." in n and n != EPSILON]
    for (world, threat), part in best.groupby(["world", "threat_model"], sort=False):
        steps = [step for _, line in _lines(part, others) for step in itertools.pairwise(line)]
        if not steps:
            continue
        limit = float(norm.ppf(1 - (1 - confidence) / len(steps)))
        falls = [
            (a, b) for a, b in steps if b["auroc"] - a["auroc"] < -limit * math.hypot(a["auroc_se"], b["auroc_se"])
        ]
        if falls:
            a, b = falls[0]
            yield (
                f"{world}, {threat}: leakage FALLS where noise does, from {a['point']} ({a['auroc']:.3f}) to "
                f"{b['point']} ({b['auroc']:.3f}), in {len(falls)} of {len(steps)} steps: look for a fault, or for a "
                "model that no longer learns"
            )
        else:
            yield (
                f"{world}, {threat}: as epsilon grows leakage falls in none of {len(steps)} steps by more than chance "
                f"allows ({100 * confidence:g} %, all steps at once)"
            )


def _lines(part: pd.DataFrame, others: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (key, rows from the smallest epsilon to no noise) for each group of two or more rows that differ in epsilon
    only; `others` are the swept columns but epsilon."""
    rows: list[dict[str, Any]] = part.assign(at=[float(e) for e in part[EPSILON]]).to_dict("records")
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(repr([row["method"], *(row[name] for name in others)]), []).append(row)
    for name, line in lines.items():
        if len(line) > 1:
            yield name, sorted(line, key=lambda row: row["at"])
