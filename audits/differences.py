"""Differences between methods on the same records and coins: leakage by adversary and utility, with corrected p-values.

Every two settings of a page are compared, or, where there are more than `ALL_PAIRS`, each with the first. P-values are
corrected for all differences of the page (Holm), as those of rows without coins are: an exchange of coins, which
corrects the verdicts, knows only the case that nothing leaks. What a difference compares is in `audits.two_settings`.

An interval is about these trainings and other records or clients; with several seeds it is about other trainings too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.run_comparison import METRICS, AuditedRun, Compared, points, world_names
from fedaudit.audits.settings import Confident
from fedaudit.audits.statistics.intervals import holm
from fedaudit.audits.two_settings import LEAKAGE, rows
from fedaudit.terms.sentences import SENTENCES

ALL_PAIRS = 4  # up to so many settings every two are compared
LISTED = 6  # differences that sentences tell
NOTHING = "they have no score and no utility in common"
COLUMNS = (
    "world a b part threat_model signal metric value_a value_b difference low high confidence p p_adjusted paired why "
    "how seeds members nonmembers_n clients"
).split()
Setting = tuple[str, Sequence[AuditedRun]]  # its name, and its trainings
Pair = tuple[str, Setting, Setting]  # the world's name, and two settings


class Facts(AuditFacts):
    needs = ("several",)
    across = True


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def differences(runs: Sequence[AuditedRun], params: Params) -> Compared:
    """The table `differences`, a row per two settings and quantity (see `audits.two_settings.rows`, and `a`, `b`: the
    settings; `world`; p_adjusted), and a sentence for each difference that was shown. Settings of different tasks or
    frozen models are not compared."""
    settings = points(runs)
    labels = [p.runs[0].method for p in settings]  # as in findings, unless reports on disk use one for several settings
    names = labels if len(set(labels)) == len(labels) else [p.name for p in settings]
    pairs: list[Pair] = []
    for world, task in world_names(settings).items():
        of_world = [(name, p.latest) for name, p in zip(names, settings, strict=True) if p.world == world]
        pairs += [(task, a, b) for a, b in _pairs(of_world)]
    return compared(pairs, params.confidence)


def compared(pairs: Sequence[Pair], confidence: float) -> Compared:
    """As `differences`, of these `pairs` of settings."""
    table_rows: list[dict[str, Any]] = [
        {"world": world, "a": a, "b": b, "confidence": confidence} | row
        for world, (a, runs_a), (b, runs_b) in pairs
        for row in rows(runs_a, runs_b, confidence)
    ]
    table = pd.DataFrame(table_rows, columns=COLUMNS)
    for name in ("low", "high", "p"):
        table[name] = table[name].astype(float)
    tested = table.p.notna().to_numpy()
    table["p_adjusted"] = np.nan
    table.loc[tested, "p_adjusted"] = holm(table.p[tested])
    return Compared({"differences": table}, sentences(table, confidence), "" if len(table) else NOTHING)


def _pairs(settings: Sequence[Setting]) -> Iterator[tuple[Setting, Setting]]:
    if len(settings) <= ALL_PAIRS:
        yield from itertools.combinations(settings, 2)
    else:
        yield from ((settings[0], other) for other in settings[1:])


def sentences(table: pd.DataFrame, confidence: float) -> list[str]:
    """A sentence for each difference of the table that was shown, the surest first, or one that none was; [] if none
    was tested."""
    sure = table[table.p_adjusted <= 1 - confidence].sort_values("p_adjusted", kind="stable")
    tested = int(table.p.notna().sum())
    if tested and not len(sure):
        return [f"No difference was shown: of {tested} the smallest corrected p is {table.p_adjusted.min():.2g}."]
    more = [f"{len(sure) - LISTED} more of {tested} differences were shown."] if len(sure) > LISTED else []
    return [*map(_sentence, sure.head(LISTED).to_dict("records")), *more]


def _sentence(row: Mapping[str, Any]) -> str:
    """A difference that was shown in words: which setting leaks more, or is the better, and by how much."""
    more, less = (row["b"], row["a"]) if row["difference"] > 0 else (row["a"], row["b"])
    high, low = sorted((row["value_a"], row["value_b"]), reverse=True)
    numbers = f"{quantity(row['metric'])} {high:.3g}, not {low:.3g} (corrected p {row['p_adjusted']:.2g})"
    if row["part"] == LEAKAGE:
        who = SENTENCES[row["threat_model"]].short
        if row["metric"] == "auroc" and low < 0.5:  # below one half less is not a smaller leak
            return f"Against {who}, {more} is above {less}: {numbers}."
        return f"{more} leaks more than {less} to {who}: {numbers}."
    better, worse = (less, more) if METRICS.get(row["metric"]) == "lower" else (more, less)
    return f"{better} is more useful than {worse}: {numbers}."


def quantity(metric: str) -> str:
    """The name of a quantity in words, such as "TPR at 1% FPR"."""
    name, _, number = metric.partition("@")
    if name == "named":
        return f"members among the {number} highest"
    return {"auroc": "AUROC", "tpr": f"TPR at {number} FPR", "cider": "CIDEr"}.get(name, metric.replace("_", " "))
