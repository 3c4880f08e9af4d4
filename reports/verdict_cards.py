"""Verdicts: the one that a card quotes, the rows of a leakage table, and the colour of a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from attacks.score_names import signal_name
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import NONMEMBERS
from fedaudit.terms.populations import LAST_ROUND_MEMBERS
from fedaudit.terms.term import find
from fedaudit.terms.verdicts import CONFOUNDED, INCONCLUSIVE, LEAK, NO_LEAK_FOUND, REVERSED, VERDICTS
from reports.evidence import Finding, ordered

PLACE = ("threat_model", "way", "population", "nonmembers")  # what makes a block of the leakage table
COUNTS = ("members", "nonmembers_n", "clients")
SYMBOLS = {LEAK: "●", REVERSED: "◉", CONFOUNDED: "◐", INCONCLUSIVE: "◌", NO_LEAK_FOUND: "○"}


def gravest(findings: Sequence[Finding]) -> Finding | None:
    """Of the findings with a verdict the gravest; of equals, the one with the smallest corrected p-value, then the one
    furthest from 0.5."""
    judged = [f for f in findings if f["verdict"] in VERDICTS]
    return min(judged, key=_gravity, default=None)


def _gravity(f: Finding) -> tuple[float, ...]:
    p = f.get("p_adjusted")
    return VERDICTS.index(f["verdict"]), 1.0 if p is None else p, -abs((f["value"] or 0.5) - 0.5)


def freshest(findings: Sequence[Finding]) -> Finding | None:
    """Of findings about an adversary's several models, all or own members, that of the freshest one which reaches at
    least half of the clients."""
    rows = [f for f in findings if f["population"] != LAST_ROUND_MEMBERS]
    wide = [f for f in rows if 2 * f["clients"] >= max(g["clients"] for g in rows)]
    order = ordered((f["way"] for f in wide), FRESHEST)
    return min(wide, key=lambda f: order.index(f["way"]), default=None)


def card(findings: Sequence[Finding], others: Sequence[Finding]) -> dict[str, Any]:
    """The gravest of the findings in words; `others` are those of the further seeds."""
    worst = gravest(findings)
    if worst is None:
        return {"verdict": None, "rows": 0}
    word, _, rest = (worst["sentence"] or "").partition(":")
    if word.casefold() != worst["verdict"]:
        word, rest = worst["verdict"].capitalize(), worst["sentence"] or ""
    same = [f["verdict"] == worst["verdict"] for f in (worst, *(g for g in others if key(g) == key(worst)))]
    return {
        "verdict": worst["verdict"],
        "word": word,
        "rest": rest.strip(),
        "rows": sum(f["verdict"] in VERDICTS for f in findings),
        "counts": counts(findings),
        "seeds": f"{sum(same)} of {len(same)} seeds" if len(same) > 1 else None,
    }


def counts(findings: Sequence[Finding]) -> str:
    """How many findings have which verdict, in words."""
    found = {verdict: sum(f["verdict"] == verdict for f in findings) for verdict in VERDICTS}
    return ", ".join(f"{n} {verdict}" for verdict, n in found.items() if n)


def key(finding: Finding) -> tuple[Any, ...]:
    """What the findings of different seeds about the same thing have in common. The best of several attacks is one
    thing, whichever it is."""
    best = finding.get("best_of")
    return *(finding[name] for name in PLACE), best or finding["signal"], finding["metric"]


def blocks(findings: Sequence[Finding], others: Sequence[Finding]) -> list[dict[str, Any]]:
    """The leakage table: a block for each comparison, in it a row for each signal, in it a finding for each metric."""
    found: dict[tuple[str, ...], dict[tuple[int, str], dict[str, Finding]]] = {}
    for f in findings:
        place, row = tuple(f[name] for name in PLACE), (f.get("best_of") or 0, f["signal"])
        found.setdefault(place, {}).setdefault(row, {})[f["metric"]] = f
    again: dict[tuple[Any, ...], list[Finding]] = {}
    for f in others:
        again.setdefault(key(f), []).append(f)
    return [
        dict(zip(PLACE, place, strict=True))
        | {"against": (kind := find(NONMEMBERS, place[-1], "nonmembers")).heading, "remark": kind.remark}
        | _with_counts([named(*row) | {"by": by, "seeds": spread(by.get("auroc"), again)} for row, by in rows.items()])
        for place, rows in found.items()
    ]


def _with_counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of a block, each with how many records it rests on, and the same `counts` for the block's head; None
    where they differ: a score may be of some of the records only."""
    every = [{name: next(iter(row["by"].values()))[name] for name in COUNTS} for row in rows]
    with_counts = [row | {"counts": counts} for row, counts in zip(rows, every, strict=True)]
    return {"rows": with_counts, "counts": every[0] if all(one == every[0] for one in every) else None}


def named(best_of: int, signal: str) -> dict[str, Any]:
    """A signal in two lines: what it is, and of which tokens; or the best of several attacks."""
    if best_of:
        detail = f"{signal_name(signal)}; corrected for picking it" if signal else "corrected for picking"
        return {"name": f"Best of {best_of} attacks", "detail": detail, "best": True}
    name, _, detail = signal_name(signal).partition(", ")
    return {"name": name, "detail": detail, "best": False}


def spread(finding: Finding | None, others: Mapping[tuple[Any, ...], Sequence[Finding]]) -> dict[str, Any] | None:
    """Mean and standard deviation over the seeds that measured the same thing, `others` by key; None for a single
    seed."""
    if finding is None:
        return None
    values = [f["value"] for f in (finding, *others.get(key(finding), ())) if f["value"] is not None]
    return {"mean": mean(values), "sd": stdev(values), "n": len(values)} if len(values) > 1 else None


def tint(auroc: float) -> str:
    """Background of an AUROC: white at 0.5, orange above, blue below."""
    if not math.isfinite(auroc):
        return "#ffffff"
    end, t = ((213, 94, 0) if auroc > 0.5 else (0, 114, 178)), 0.75 * min(1.0, 2 * abs(auroc - 0.5))
    return "#" + "".join(f"{round(255 + (c - 255) * t):02x}" for c in end)
