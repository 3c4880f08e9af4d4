"""Verdict cards and leakage tables: which finding a card quotes, the tables' blocks and rows, and colours of AUROCs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.doubts import verdict_word
from fedaudit.reports.evidence import Finding, ordered
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT, NONMEMBERS
from fedaudit.terms.populations import LAST_ROUND_MEMBERS
from fedaudit.terms.term import find
from fedaudit.terms.verdicts import CONFOUNDED, DOUBTED, INCONCLUSIVE, LEAK, NO_LEAK_FOUND, REVERSED, VERDICTS

COMPARISON = ("threat_model", "way", "population", "nonmembers")  # a block of the leakage table has one value of each
COUNTS = ("members", "nonmembers_n", "clients")
SYMBOLS = {LEAK: "●", REVERSED: "◉", CONFOUNDED: "◐", INCONCLUSIVE: "◌", NO_LEAK_FOUND: "○", DOUBTED: "?"}


def gravest(findings: Sequence[Finding]) -> Finding | None:
    """The finding with the gravest verdict; ties go to the smallest corrected p-value, then to the value furthest from
    0.5. None if no finding has a verdict."""
    judged = [f for f in findings if f["verdict"] in VERDICTS]
    return min(judged, key=_gravity, default=None)


def _gravity(f: Finding) -> tuple[float, ...]:
    p = f.get("p_adjusted")
    return VERDICTS.index(f["verdict"]), 1.0 if p is None else p, -abs((f["value"] or 0.5) - 0.5)


def quotable(findings: Sequence[Finding]) -> list[Finding]:
    """Those findings of one adversary that its verdict may quote: headline AUROCs of members against held-out records,
    whose corrected p-values allow for having picked one where coins decided; elsewhere those of the best of several
    attacks, if there are several, whose intervals allow for that."""
    best = [f for f in findings if is_best_of_several(f) and f.get("z") is None]
    return best if gravest(best) else [f for f in findings if is_headline_auroc(f)]


def is_best_of_several(f: Finding) -> bool:
    """Whether this is about the best of several attacks, members against held-out records."""
    return bool(f.get("best_of")) and f["nonmembers"] == HELD_OUT


def is_headline_auroc(f: Finding) -> bool:
    """Whether this is the AUROC of a single attack's headline signal, members against held-out records."""
    return f["metric"] == "auroc" and f["headline"] and not f.get("best_of") and f["nonmembers"] == HELD_OUT


def freshest(findings: Sequence[Finding]) -> Finding | None:
    """The finding about the adversary's first kind of model in `FRESHEST`, an order of preference, of those that reach
    at least half as many clients as the one that reaches most. Findings about last-round members are skipped; None if
    no other is left."""
    rows = [f for f in findings if f["population"] != LAST_ROUND_MEMBERS]
    wide = [f for f in rows if 2 * f["clients"] >= max(g["clients"] for g in rows)]
    order = ordered((f["way"] for f in wide), FRESHEST)
    return min(wide, key=lambda f: order.index(f["way"]), default=None)


def card(findings: Sequence[Finding], others: Sequence[Finding]) -> dict[str, Any]:
    """Template variables of a card about the gravest finding: `verdict`, its sentence split into `word` and `rest`,
    `rows` and `counts` of all verdicts, and `seeds`, in how many seeds the verdict is the same (None for a single one).

    `others` are findings of further seeds. Without any verdict the card is {"verdict": None, "rows": 0}.
    """
    worst = gravest(findings)
    if worst is None:
        return {"verdict": None, "rows": 0}
    word, _, rest = (worst["sentence"] or "").partition(":")
    if word.casefold() != verdict_word(worst):
        word, rest = verdict_word(worst).capitalize(), worst["sentence"] or ""
    same = [f["verdict"] == worst["verdict"] for f in (worst, *(g for g in others if key(g) == key(worst)))]
    return {
        "verdict": verdict_word(worst),
        "word": word,
        "rest": rest.strip(),
        "rows": sum(f["verdict"] in VERDICTS for f in findings),
        "counts": counts(findings),
        "seeds": f"{sum(same)} of {len(same)} seeds" if len(same) > 1 else None,
    }


def counts(findings: Sequence[Finding]) -> str:
    """Number of findings by verdict, in words: "2 leak, 1 inconclusive"."""
    numbers = {verdict: sum(verdict_word(f) == verdict for f in findings) for verdict in (*VERDICTS, DOUBTED)}
    return ", ".join(f"{n} {verdict}" for verdict, n in numbers.items() if n)


def key(finding: Finding) -> tuple[Any, ...]:
    """A key that findings of different seeds share if they measure the same quantity. A finding about the best of
    several attacks has the number of attacks in place of its signal, since the best attack may differ between seeds."""
    best = finding.get("best_of")
    return *(finding[name] for name in COMPARISON), best or finding["signal"], finding["metric"]


def blocks(findings: Sequence[Finding], others: Sequence[Finding]) -> list[dict[str, Any]]:
    """The leakage table as template variables: a block per comparison, with `rows` per signal; a row has the first
    seed's findings by metric (`by`) and the AUROC's spread over `seeds`. `others` are findings of further seeds."""
    table: dict[tuple[str, ...], dict[tuple[int, str], dict[str, Finding]]] = {}
    for f in findings:
        comparison, row = tuple(f[name] for name in COMPARISON), (f.get("best_of") or 0, f["signal"])
        table.setdefault(comparison, {}).setdefault(row, {})[f["metric"]] = f
    by_key: dict[tuple[Any, ...], list[Finding]] = {}
    for f in others:
        by_key.setdefault(key(f), []).append(f)
    return [
        dict(zip(COMPARISON, comparison, strict=True))
        | {"against": (kind := find(NONMEMBERS, comparison[-1], "nonmembers")).heading, "remark": kind.remark}
        | _with_counts([
            signal_heading(*row) | {"by": by, "seeds": spread(by.get("auroc"), by_key)} for row, by in rows.items()
        ])
        for comparison, rows in table.items()
    ]  # fmt: skip


def _with_counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `rows` of a block, each with its `counts` of members, non-members and clients; and the block's own `counts`,
    None where rows differ, since a score may exist for some of the records only."""
    every = [{name: next(iter(row["by"].values()))[name] for name in COUNTS} for row in rows]
    with_counts = [row | {"counts": counts} for row, counts in zip(rows, every, strict=True)]
    return {"rows": with_counts, "counts": every[0] if all(one == every[0] for one in every) else None}


def signal_heading(best_of: int, signal: str) -> dict[str, Any]:
    """The heading of a signal: `name`, `detail` (such as the tokens that it uses) and `best`, whether it stands for the
    best of `best_of` attacks (0: a single attack)."""
    if best_of:
        detail = f"{signal_name(signal)}; corrected for picking it" if signal else "corrected for picking"
        return {"name": f"Best of {best_of} attacks", "detail": detail, "best": True}
    name, _, detail = signal_name(signal).partition(", ")
    return {"name": name, "detail": detail, "best": False}


def spread(finding: Finding | None, others: Mapping[tuple[Any, ...], Sequence[Finding]]) -> dict[str, Any] | None:
    """`mean`, `sd` and `n` over the seeds (`others` by `key`); None without a finding or for a single seed."""
    if finding is None:
        return None
    values = [f["value"] for f in (finding, *others.get(key(finding), ())) if f["value"] is not None]
    return {"mean": mean(values), "sd": stdev(values), "n": len(values)} if len(values) > 1 else None


def tint(auroc: float) -> str:
    """Background colour (hex) of an AUROC: white at 0.5 and for NaN, orange above, blue below."""
    if not math.isfinite(auroc):
        return "#ffffff"
    end, t = ((213, 94, 0) if auroc > 0.5 else (0, 114, 178)), 0.75 * min(1.0, 2 * abs(auroc - 0.5))
    return "#" + "".join(f"{round(255 + (c - 255) * t):02x}" for c in end)
